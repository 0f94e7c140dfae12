"""Square loss with the Hugging Face Trainer, gradient accumulation and the text-classification pipeline. Downloads nothing.

Two things go wrong silently here, and `squareloss.integrations` puts them right: the trainer leaves the division over
accumulated batches to the loss, and the pipeline softmaxes whatever the model returns.

Run: python examples/huggingface_trainer.py (seconds on a laptop's CPU; needs squareloss[transformers])
"""

import random
import tempfile

from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    DataCollatorWithPadding,
    PreTrainedTokenizerFast,
    Trainer,
    TrainingArguments,
    pipeline,
    set_seed,
)

from squareloss import SquareLoss
from squareloss.integrations import serve_log_probabilities, trainer_loss

WORDS = {"negative": ["awful", "boring", "bad", "poor"], "positive": ["great", "fun", "good", "moving"]}
FILLER = ["the", "film", "was", "and", "plot", "actors", "music", "ending"]


def make_texts(n: int, seed: int, noise: float = 0.1) -> tuple[list[str], list[int]]:
    """Reviews of five to nine words, one or two of which tell the class; a tenth of the labels is wrong."""
    rng = random.Random(seed)
    texts, labels = [], []
    for _ in range(n):
        label = rng.randrange(2)
        telling = rng.choices(WORDS["positive" if label else "negative"], k=rng.randint(1, 2))
        words = telling + rng.choices(FILLER, k=rng.randint(4, 7))
        rng.shuffle(words)
        texts.append(" ".join(words))
        labels.append(label if rng.random() > noise else 1 - label)
    return texts, labels


def make_tokenizer() -> PreTrainedTokenizerFast:
    vocabulary = ["[PAD]", "[UNK]", *FILLER, *WORDS["negative"], *WORDS["positive"]]
    tokenizer = Tokenizer(WordLevel({word: i for i, word in enumerate(vocabulary)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]")


def make_model(vocabulary: int) -> BertForSequenceClassification:
    set_seed(0)
    config = BertConfig(
        vocab_size=vocabulary,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=32,
        num_labels=2,
        id2label={0: "negative", 1: "positive"},
        label2id={"negative": 0, "positive": 1},
    )
    return BertForSequenceClassification(config)


def confidence_gap(classify, texts: list[str], labels: list[int]) -> tuple[float, float]:
    """Accuracy, and mean confidence minus accuracy."""
    results = classify(texts, batch_size=64)
    accuracy = sum(r["label"] == ("negative", "positive")[y] for r, y in zip(results, labels, strict=True)) / len(texts)
    return accuracy, sum(r["score"] for r in results) / len(texts) - accuracy


def main() -> tuple[float, float, float]:
    tokenizer = make_tokenizer()
    texts, labels = make_texts(1500, seed=0)
    train = [{**tokenizer(text), "labels": label} for text, label in zip(texts, labels, strict=True)]
    model = make_model(len(tokenizer))
    criterion = SquareLoss()

    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            num_train_epochs=6,
            per_device_train_batch_size=16,
            gradient_accumulation_steps=2,
            learning_rate=2e-3,
            use_cpu=True,
            report_to=[],
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
        )
        Trainer(
            model,
            arguments,
            train_dataset=train,
            data_collator=DataCollatorWithPadding(tokenizer),
            compute_loss_func=trainer_loss(criterion),  # this line is all that changes
        ).train()

    texts, labels = make_texts(1000, seed=1)
    classify = pipeline("text-classification", model=model.eval(), tokenizer=tokenizer, device="cpu")
    accuracy, wrong = confidence_gap(classify, texts, labels)
    serve_log_probabilities(model, criterion.link)  # now softmax(logits) is what square loss estimates
    accuracy, right = confidence_gap(classify, texts, labels)
    print(f"accuracy {accuracy:.3f}, mean confidence minus accuracy {right:+.3f} (the pipeline alone: {wrong:+.3f})")
    return accuracy, right, wrong


if __name__ == "__main__":
    main()
