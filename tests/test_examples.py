"""The examples run, and what they claim of Lightning, Accelerate, transformers and skorch holds in the real libraries."""

import runpy
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import squareloss
from squareloss import CrossEntropy, OneHot, Simplex, Softmax, SquareLoss
from squareloss.integrations import serve_log_probabilities, trainer_loss
from squareloss.models import MLP

EXAMPLES = Path(__file__).parent.parent / "examples"


def example(name, run_name="example"):
    return runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name=run_name)


@pytest.mark.parametrize("name", ["make_csv", "make_image_folder"])
def test_help_is_not_taken_for_a_name(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    with pytest.raises(SystemExit):
        example(name, "__main__")
    assert list(tmp_path.iterdir()) == []


def test_every_example_is_tested():
    tested = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))
    assert [path.stem for path in EXAMPLES.glob("*.py") if f'example("{path.stem}"' not in tested] == []


def test_plain_loop(capsys):
    example("plain_loop", run_name="__main__")
    words = capsys.readouterr().out.replace(",", "").split()
    assert float(words[1]) > 0.97
    plain, warm = float(words[6]), float(words[-1])
    assert abs(warm) < 0.02 < abs(plain) < 0.2


# Lightning


# lightning asks for a class that torch has renamed, and for workers that 1,257 images don't need
@pytest.mark.filterwarnings("ignore:.*LeafSpec.* is deprecated")
@pytest.mark.filterwarnings("ignore:.*does not have many workers")
def test_lightning():
    lightning = pytest.importorskip("lightning")
    names = example("lightning_module")
    accuracy, gap = names["main"]()
    assert accuracy > 0.95
    assert abs(gap) < 0.2
    model = names["Digits"]()
    assert all(key.startswith("network.") for key in model.state_dict())

    # two steps of the trainer are two steps by hand
    x = torch.rand(20, 64, generator=torch.Generator().manual_seed(0))
    y = torch.arange(20) % 10
    trainer = lightning.Trainer(
        max_epochs=1,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=10)
    trainer.fit(model, loader, loader)
    network = by_hand(MLP(64, (128,), 10, generator=torch.Generator().manual_seed(0)), [(x[:10], y[:10]), (x[10:], y[10:])])
    assert_same_parameters(model.network, network)


def by_hand(network, batches):
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
    for x, y in batches:
        optimizer.zero_grad()
        SquareLoss()(network(x), y).backward()
        optimizer.step()
    return network


def assert_same_parameters(a, b, atol=1e-6):
    for p, q in zip(a.parameters(), b.parameters(), strict=True):
        torch.testing.assert_close(p, q, atol=atol, rtol=0)


# Accelerate


@pytest.fixture
def accelerator():
    accelerate = pytest.importorskip("accelerate")
    yield accelerate.Accelerator(cpu=True, gradient_accumulation_steps=4)
    accelerate.state.AcceleratorState._reset_state(True)
    accelerate.state.GradientState._reset_state()


def test_accelerate(accelerator):
    accuracy, gap = example("accelerate_loop")["main"]()
    assert accuracy > 0.95
    assert abs(gap) < 0.2


def test_accelerate_accumulates_to_the_same_update(accelerator):
    x = torch.rand(64, 64, generator=torch.Generator().manual_seed(0))
    y = torch.arange(64) % 10
    network = MLP(64, (32,), 10, generator=torch.Generator().manual_seed(0))
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=8)
    network, optimizer, loader = accelerator.prepare(network, optimizer, loader)
    for inputs, labels in loader:
        with accelerator.accumulate(network):
            accelerator.backward(SquareLoss()(network(inputs), labels))
            optimizer.step()
            optimizer.zero_grad()
    expected = MLP(64, (32,), 10, generator=torch.Generator().manual_seed(0))
    assert_same_parameters(network, by_hand(expected, [(x[:32], y[:32]), (x[32:], y[32:])]))


# skorch


def test_skorch():
    pytest.importorskip("skorch")
    from sklearn.base import clone
    from sklearn.datasets import load_digits

    names = example("skorch_classifier")
    accuracy, gap = names["main"]()
    assert accuracy > 0.95
    assert abs(gap) < 0.2

    x, y = load_digits(return_X_y=True)
    x = (x[:200] / 16).astype(np.float32)
    net = clone(names["make"](epochs=2)).fit(x, y[:200])
    outputs = net.forward(x)
    np.testing.assert_allclose(net.predict_proba(x), squareloss.probabilities(outputs), atol=1e-6)
    assert (net.predict(x) == outputs.argmax(1).numpy()).all()
    silent = net.set_params(predict_nonlinearity="auto").predict_proba(x)
    assert abs(silent.sum(1) - 1).max() > 0.1, "skorch reads square loss by itself; the example's warning is out of date"


# transformers


def trainer_run(folder, model, dataset, compute_loss_func, *, batch, accumulate, **more):
    from transformers import Trainer, TrainingArguments

    arguments = TrainingArguments(
        output_dir=str(folder),
        num_train_epochs=2,
        per_device_train_batch_size=batch,
        gradient_accumulation_steps=accumulate,
        optim="sgd",
        learning_rate=0.05,
        lr_scheduler_type="constant",
        max_grad_norm=0.0,
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
    )
    trainer = Trainer(model, arguments, train_dataset=dataset, compute_loss_func=compute_loss_func, **more)
    trainer.train()
    return trainer


def tiny_bert(kind, num_labels=3):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=20,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=8,
        num_labels=num_labels,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        classifier_dropout=0.0,
    )
    return getattr(transformers, kind)(config)


def sentences(labels_of, n=40):
    ids = torch.randint(2, 20, (n, 6), generator=torch.Generator().manual_seed(0))
    return [{"input_ids": row, "labels": labels_of(i, row)} for i, row in enumerate(ids)]


def per_token(i, row):
    labels = row % 3
    return labels.masked_fill(torch.arange(6) > i % 6, -100)  # one to six labels a sentence


SOFT = torch.softmax(torch.randn(40, 3, generator=torch.Generator().manual_seed(2)), 1)
TASKS = {
    "hard": ("BertForSequenceClassification", lambda i, row: i % 3),
    "soft": ("BertForSequenceClassification", lambda i, row: SOFT[i]),
    "tokens": ("BertForTokenClassification", per_token),
}


@pytest.mark.parametrize("criterion", [SquareLoss(), SquareLoss(OneHot(k=5, M=15), scale=0.01), CrossEntropy()], ids=str)
@pytest.mark.parametrize("task", TASKS)
def test_trainer_accumulates_to_the_same_update(task, criterion, tmp_path):
    kind, labels_of = TASKS[task]
    dataset = sentences(labels_of)  # 40 = 2 x 16 + 8: the last update of an epoch is smaller
    whole, parts = tiny_bert(kind), tiny_bert(kind)
    start = tiny_bert(kind)
    trainer_run(tmp_path, whole, dataset, trainer_loss(criterion), batch=16, accumulate=1)
    trainer_run(tmp_path, parts, dataset, trainer_loss(criterion), batch=4, accumulate=4)
    assert_same_parameters(parts, whole, atol=1e-6)
    assert (whole.classifier.weight - start.classifier.weight).abs().max() > 1e-3


@pytest.mark.parametrize("task", TASKS)
def test_trainer_without_accumulation_is_the_mean_by_hand(task, tmp_path):
    kind, labels_of = TASKS[task]
    dataset = sentences(labels_of, n=12)
    model, expected = tiny_bert(kind), tiny_bert(kind)
    trainer_run(tmp_path, model, dataset, trainer_loss(SquareLoss()), batch=12, accumulate=1)
    ids = torch.stack([row["input_ids"] for row in dataset])
    labels = torch.stack([torch.as_tensor(row["labels"]) for row in dataset])
    optimizer = torch.optim.SGD(expected.parameters(), lr=0.05)
    for _ in range(2):
        optimizer.zero_grad()
        logits = expected(input_ids=ids).logits
        SquareLoss()(logits.mT if task == "tokens" else logits, labels).backward()
        optimizer.step()
    assert_same_parameters(model, expected)


def test_trainer_mean_alone_would_make_a_larger_update(tmp_path):
    """Why `trainer_loss` exists: the criterion's own mean is summed over the accumulated batches."""
    dataset = sentences(lambda i, row: i % 3)
    right, naive, start = (tiny_bert("BertForSequenceClassification") for _ in range(3))
    trainer_run(tmp_path, right, dataset[:16], trainer_loss(SquareLoss()), batch=4, accumulate=4)
    mean = lambda outputs, labels, num_items_in_batch=None: SquareLoss()(outputs["logits"], labels)
    trainer_run(tmp_path, naive, dataset[:16], mean, batch=4, accumulate=4)
    moved = (right.classifier.bias - start.classifier.bias).norm()
    assert (naive.classifier.bias - start.classifier.bias).norm() > 2 * moved


def test_trainer_evaluates_the_mean_loss(tmp_path):
    dataset = sentences(lambda i, row: i % 3)
    model = tiny_bert("BertForSequenceClassification")
    trainer = trainer_run(tmp_path, model, dataset, trainer_loss(SquareLoss()), batch=16, accumulate=1, eval_dataset=dataset)
    with torch.no_grad():
        logits = model(input_ids=torch.stack([row["input_ids"] for row in dataset])).logits
    expected = SquareLoss()(logits, torch.arange(40) % 3).item()
    assert trainer.evaluate()["eval_loss"] == pytest.approx(expected, rel=1e-5)


def test_trainer_loss_needs_the_trainers_ignore_index_and_leaves_the_criterion_alone():
    with pytest.raises(ValueError, match="expected ignore_index=-100, by which the trainer counts labels, got 0"):
        trainer_loss(SquareLoss(ignore_index=0))
    with pytest.raises(TypeError, match=r"expected a loss such as SquareLoss\(\), got <class"):
        trainer_loss(SquareLoss)
    criterion = SquareLoss(reduction="none", weight=torch.tensor([1.0, 2.0, 3.0]))
    logits, labels = torch.randn(4, 3, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 2, -100])
    loss = trainer_loss(criterion)
    torch.testing.assert_close(loss({"logits": logits}, labels, 3), criterion(logits, labels).sum() / 3)
    torch.testing.assert_close(loss({"logits": logits}, labels), SquareLoss(weight=criterion.weight)(logits, labels))
    assert criterion.reduction == "none"


def test_huggingface_example():
    pytest.importorskip("transformers")
    accuracy, right, wrong = example("huggingface_trainer")["main"]()
    assert accuracy > 0.87  # a tenth of the labels is wrong
    assert abs(right) < 0.03
    assert wrong < right - 0.04


@pytest.mark.parametrize("link", [Simplex(), Simplex(radius=1.0), OneHot(k=5, M=15), Softmax()], ids=str)
def test_text_classification_pipeline(link):
    """The pipeline alone shows softmax(f), whatever the loss; with `serve_log_probabilities` it shows the link's p."""
    transformers = pytest.importorskip("transformers")
    names = example("huggingface_trainer")
    tokenizer, text = names["make_tokenizer"](), "the film was good"
    model = names["make_model"](len(tokenizer)).eval()
    with torch.no_grad():
        model.classifier.bias.copy_(torch.tensor([-0.6, 0.8]))  # as a network sure of itself gives
        f = model(**tokenizer(text, return_tensors="pt")).logits

    def shown():
        classify = transformers.pipeline("text-classification", model=model, tokenizer=tokenizer, device="cpu")
        scores = {row["label"]: row["score"] for row in classify(text, top_k=None)}
        return torch.tensor([[scores["negative"], scores["positive"]]])

    torch.testing.assert_close(shown(), torch.softmax(f, 1))
    handle = serve_log_probabilities(model, link)
    torch.testing.assert_close(shown(), link.probabilities(f), atol=1e-6, rtol=0)
    serve_log_probabilities(model, link)  # a second time changes nothing
    torch.testing.assert_close(shown(), link.probabilities(f), atol=1e-6, rtol=0)
    if link != Softmax():
        assert (link.probabilities(f) - torch.softmax(f, 1)).abs().max() > 0.02
    handle.remove()


class Tokens(torch.nn.Module):
    """The least a transformers model is: outputs with logits, one vector per token."""

    def forward(self, logits):
        return {"logits": logits}


def test_log_probabilities_for_tokens_and_their_limits():
    logits = 5 * torch.randn(2, 4, 3, generator=torch.Generator().manual_seed(0))
    model = Tokens().eval()
    handle = serve_log_probabilities(model, Simplex())
    out = model(logits.bfloat16())["logits"]
    assert out.isfinite().all()
    expected = Simplex().probabilities(logits.bfloat16().float().mT).mT
    torch.testing.assert_close(F.softmax(out, -1), expected, atol=1e-6, rtol=0)
    with pytest.raises(RuntimeError, match=r"call remove\(\) on the handle before training"):
        model.train()(logits)
    handle.remove()
    assert torch.equal(model(logits)["logits"], logits)
    with pytest.raises(ValueError, match="expected a link with one output per class"):
        serve_log_probabilities(model, Simplex(reduced=True))
    for link in ("simplex", Simplex):
        with pytest.raises(TypeError, match=r"expected a link, got .*; pass Simplex\(\), or the link of the loss"):
            serve_log_probabilities(model, link)
    with pytest.raises(TypeError, match=r"expected a link, got SquareLoss\(.*; pass criterion\.link"):
        serve_log_probabilities(model, SquareLoss())
    model.config = type("Config", (), {"problem_type": "multi_label_classification"})
    with pytest.raises(ValueError, match=r"expected config\.problem_type"):
        serve_log_probabilities(model, Simplex())
