"""Codings and links: targets, what square loss converges to (Proposition 1), and how outputs are read."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

import squareloss
from squareloss import OneHot, Simplex, Softmax, functional
from squareloss.codings import Coding, Link, one_hot_15, scaled_one_hot

CLASSES = st.integers(2, 8)
SEEDS = st.integers(0, 2**31)
POSITIVE = st.floats(0.1, 20)
CODINGS = st.one_of(
    st.builds(Simplex, st.none() | POSITIVE, st.booleans()),
    st.builds(OneHot, st.just(1.0) | POSITIVE, POSITIVE),
)


def normal(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def random_eta(num_classes, seed):
    """A point of the simplex, away from its faces so that an iterative minimiser gets there."""
    return 0.95 * torch.softmax(1.5 * normal(num_classes, seed=seed), 0) + 0.05 / num_classes


def expected_loss(loss, f, eta, **options):
    """sum_c eta_c loss(f, c): the library's loss at every class, averaged by hand."""
    num_classes = len(eta)
    each = [loss(f.unsqueeze(0), torch.tensor([c]), reduction="sum", **options) for c in range(num_classes)]
    return (torch.stack(each) * eta).sum()


def minimise(objective, width):
    f = torch.zeros(width, dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.LBFGS(
        [f], max_iter=300, tolerance_grad=1e-10, tolerance_change=1e-15, history_size=20, line_search_fn="strong_wolfe"
    )

    def closure():
        optimiser.zero_grad()
        value = objective(f)
        value.backward()
        return value

    optimiser.step(closure)
    return f.detach()


@given(CLASSES, SEEDS, CODINGS)
def test_proposition_1_in_closed_form(num_classes, seed, coding):
    eta = random_eta(num_classes, seed)
    codes = coding.vertices(num_classes)
    best = eta @ codes if isinstance(coding, Simplex) else coding.k * coding.M * eta / (1 + (coding.k - 1) * eta)
    assert_close(coding.eta(best), eta)
    assert_close(coding.probabilities(best), eta)
    f = best.clone().requires_grad_()
    loss = expected_loss(lambda *a, **o: functional.square_loss(*a, coding, **o), f, eta)
    (slope,) = torch.autograd.grad(loss, f)
    assert slope.abs().max() < 1e-8 * (1 + codes.square().max())


@settings(max_examples=30)
@given(CLASSES, SEEDS, CODINGS, st.booleans(), st.sampled_from([0.0, 0.1, 0.4]))
def test_proposition_1_by_minimising_the_loss(num_classes, seed, coding, weighted, smoothing):
    """Also with class weights and label smoothing, which reading the probabilities undoes."""
    eta = random_eta(num_classes, seed)
    weight = torch.exp(normal(num_classes, seed=seed + 1)) if weighted else None
    # the scale only keeps the problem well conditioned: the minimiser is the same
    scale = num_classes / max(1.0, coding.vertices(num_classes).square().max().item())

    def loss(f, y, **options):
        return functional.square_loss(f, y, coding, scale=scale, **options)

    width = coding.vertices(num_classes).shape[1]
    f = minimise(lambda f: expected_loss(loss, f, eta, weight=weight, label_smoothing=smoothing), width)
    assert_close(coding.probabilities(f, weight=weight, label_smoothing=smoothing), eta, rtol=0, atol=1e-5)


def test_weights_are_undone_of_probabilities_not_of_an_eta_that_left_them():
    weight = torch.tensor([1.0, 0.25])
    beyond = Simplex().encode(torch.tensor([0]), 2) * 2  # eta = (1.5, -0.5): class 0, whatever the weights
    assert Simplex().probabilities(beyond, weight=weight).tolist() == [[1, 0]]


@settings(max_examples=10)
@given(
    st.integers(2, 5), SEEDS, st.booleans(), st.sampled_from([0.0, 0.2]), st.sampled_from(["cross_entropy", "softmax_brier"])
)
def test_the_softmax_losses_that_are_proper(num_classes, seed, weighted, smoothing, name):
    eta = random_eta(num_classes, seed)
    weight = torch.exp(0.3 * normal(num_classes, seed=seed + 1)) if weighted else None
    loss = getattr(functional, name)
    f = minimise(lambda f: expected_loss(loss, f, eta, weight=weight, label_smoothing=smoothing), num_classes)
    assert_close(Softmax().probabilities(f, weight=weight, label_smoothing=smoothing), eta, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "eta", "low", "high"),
    [
        ("squentropy", [0.9, 0.1], -0.18, -0.17),
        ("squentropy", [0.7, 0.2, 0.1], -0.20, -0.18),
        ("squentropy", [0.9] + [0.1 / 9] * 9, -0.09, -0.07),
        ("focal", [0.9, 0.1], -0.21, -0.20),
        ("focal", [0.9] + [0.1 / 9] * 9, -0.23, -0.21),
    ],
)
def test_how_far_squentropy_and_focal_loss_miss(name, eta, low, high):
    """Their softmax, at the minimum of the expected loss, is too low for the likely class by this much."""
    eta = torch.tensor(eta, dtype=torch.float64)
    f = minimise(lambda f: expected_loss(getattr(functional, name), f, eta), len(eta))
    assert low < (torch.softmax(f, 0) - eta)[0] < high


def test_the_papers_formula_at_radius_one():
    """eta_k = ((K-1) f.v_k + 1) / K."""
    coding, f = Simplex(radius=1.0), normal(3, 6)
    f = f - f.mean(1, keepdim=True)
    assert_close(coding.eta(f), (5 * f @ coding.vertices(6).T + 1) / 6)


@pytest.mark.parametrize("coding", [Simplex(), Simplex(1.0), Simplex(7.0), Simplex(3.0, reduced=True)])
@pytest.mark.parametrize("num_classes", [2, 3, 10, 100])
def test_the_example_of_the_appendix(coding, num_classes):
    """f = 2 v_y has a larger loss than 0.9 v_y, yet the same class, with confidence 2 - 1/K, (1/K - 1)/(K - 1) elsewhere."""
    codes, labels = coding.vertices(num_classes), torch.arange(num_classes)
    eta = coding.eta(2 * codes)
    expected = torch.full_like(eta, (1 / num_classes - 1) / (num_classes - 1)).fill_diagonal_(2 - 1 / num_classes)
    assert_close(eta, expected)
    assert torch.equal(coding.predict(2 * codes), labels)
    assert_close(coding.probabilities(2 * codes), torch.eye(num_classes, dtype=torch.float64))
    near, far = (functional.square_loss(c * codes, labels, coding) for c in (0.9, 2.0))
    assert far > near


@given(CLASSES, SEEDS, st.none() | POSITIVE)
def test_reduced_and_full_read_alike(num_classes, seed, radius):
    full, reduced = Simplex(radius), Simplex(radius, reduced=True)
    coordinates = normal(4, num_classes - 1, seed=seed) * 3
    f = reduced.scores(coordinates)
    assert_close(full.eta(f), reduced.eta(coordinates))
    assert_close(full.probabilities(f), reduced.probabilities(coordinates))
    assert torch.equal(full.predict(f), reduced.predict(coordinates))
    labels = torch.arange(num_classes)
    distances = [torch.cdist(x, c.encode(labels, num_classes).double()) for x, c in ((f, full), (coordinates, reduced))]
    assert_close(*distances, rtol=1e-5, atol=1e-5)


@given(CLASSES, SEEDS, CODINGS)
def test_encoding_is_a_row_of_the_vertices(num_classes, seed, coding):
    codes = coding.vertices(num_classes)
    labels = torch.randint(num_classes, (6,), generator=torch.Generator().manual_seed(seed))
    assert_close(coding.encode(labels, num_classes), codes[labels].float())
    soft = torch.softmax(normal(6, num_classes, seed=seed), 1)
    assert_close(coding.encode(soft, num_classes), soft @ codes)
    assert_close(coding.encode(soft[0], num_classes), soft[0] @ codes)
    assert_close(coding.encode(labels[0], num_classes), codes[labels[0]].float())
    grid = labels.view(3, 2).to(torch.uint8)  # (N, d1) gives (N, K, d1)
    assert_close(coding.encode(grid, num_classes), codes[grid.long()].float().movedim(-1, 1))


def test_default_radius():
    """v_y = K e_y - 1 and eta = (1 + f)/K on zero-sum outputs: softmax linearised."""
    assert_close(Simplex().vertices(5), 5 * torch.eye(5, dtype=torch.float64) - 1)
    f = normal(4, 5)
    f = f - f.mean(1, keepdim=True)
    assert_close(Simplex().eta(f), (1 + f) / 5)
    tiny = 1e-5 * f
    assert_close(Simplex().eta(tiny), torch.softmax(tiny, 1), rtol=0, atol=1e-9)
    assert_close(squareloss.probabilities(f), Simplex().probabilities(f))


def test_scaled_one_hot_is_not_f_over_m():
    coding, eta = OneHot(k=5.0, M=15.0), torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    best = coding.k * coding.M * eta / (1 + (coding.k - 1) * eta)
    assert (best / coding.M - eta).abs().max() > 0.3
    wild = torch.tensor([-3.0, 16.0, 19.0, 1e6])  # beyond the pole at kM / (k-1) = 18.75
    assert coding.eta(wild).tolist() == [0.0, 1.0, 1.0, 1.0]


def test_the_codings_for_many_classes():
    assert [one_hot_15(K) for K in (4, 20, 100)] == [OneHot(1.0, 3.0), OneHot(1.0, 15.0), OneHot(5.0, 15.0)]
    assert [scaled_one_hot(K) for K in (4, 5, 100)] == [OneHot(1.0, 4), OneHot(1.0, 5), OneHot(20.0, 5)]


@given(CLASSES, SEEDS, CODINGS)
def test_probabilities_are_probabilities_and_keep_the_class(num_classes, seed, coding):
    f = 5 * normal(8, coding.vertices(num_classes).shape[1], seed=seed)
    p = coding.probabilities(f)
    assert (p >= 0).all()
    assert_close(p.sum(1), torch.ones(8, dtype=torch.float64))
    chosen = p.gather(1, coding.predict(f).unsqueeze(1))
    assert_close(chosen, p.amax(1, keepdim=True))
    assert torch.equal(coding.predict(f), coding.scores(f).argmax(1))


def test_reduced_scores_of_many_classes_in_float16():
    """The sum of K - 1 coordinates is beyond float16, no score is."""
    coding, labels = Simplex(reduced=True), torch.arange(3)
    scores = coding.scores(coding.encode(labels, 5000).half())
    assert scores.dtype == torch.float16
    assert_close(scores.float(), Simplex().encode(labels, 5000), rtol=2e-3, atol=0.02)


@pytest.mark.parametrize("link", [Softmax(), Simplex(), Simplex(10.0), Simplex(reduced=True), OneHot(), OneHot(5.0, 15.0)])
def test_half_precision_and_shapes(link):
    f = normal(3, 10, 2, 2, dtype=torch.float32)
    weight = torch.linspace(0.5, 2, 11 if link == Simplex(reduced=True) else 10)
    exact = link.probabilities(f.bfloat16().float(), weight=weight, label_smoothing=0.1)
    half = link.probabilities(f.bfloat16(), weight=weight, label_smoothing=0.1)
    assert half.dtype == torch.bfloat16
    assert_close(half.float(), exact, rtol=2**-8, atol=1e-6)  # one rounding, at the end
    assert_close(exact[1, :, 0, 1], link.probabilities(f.bfloat16().float()[1, :, 0, 1], weight=weight, label_smoothing=0.1))
    assert link.predict(f).shape == (3, 2, 2)
    assert link.predict(f[0, :, 0, 0]).shape == ()


@pytest.mark.parametrize("link", [Softmax(), Simplex(), Simplex(reduced=True), OneHot(5.0, 15.0)])
def test_reading_compiles_into_one_graph(link):
    f = normal(4, 6)
    weight = torch.linspace(0.5, 2, 7 if link == Simplex(reduced=True) else 6, dtype=torch.float64)

    def read(f):
        return link.probabilities(f, weight=weight, label_smoothing=0.1), link.predict(f)

    compiled = torch.compile(read, fullgraph=True, backend="aot_eager")
    for got, expected in zip(compiled(f), read(f), strict=True):
        assert_close(got, expected)


def test_protocols():
    for link in (Softmax(), Simplex(), OneHot()):
        assert isinstance(link, Link)
    assert isinstance(Simplex(), Coding)
    assert isinstance(OneHot(), Coding)
    assert not isinstance(Softmax(), Coding)
    assert Simplex(2.0) == Simplex(2.0) != Simplex()
    assert len({Simplex(), Simplex(), OneHot()}) == 2


@pytest.mark.parametrize("value", [0, -1.0, math.nan, math.inf])
@pytest.mark.parametrize(("make", "name"), [(Simplex, "radius"), (lambda v: OneHot(k=v), "k"), (lambda v: OneHot(M=v), "M")])
def test_numbers_must_be_positive(make, name, value):
    with pytest.raises(ValueError, match=f"expected {name} > 0 and finite, got {value}"):
        make(value)
    with pytest.raises(TypeError, match=f"expected {name} to be a number, got '3'"):
        make("3")


@pytest.mark.parametrize("link", [Simplex(), Simplex(reduced=True), OneHot(), OneHot(2.0, 3.0), Softmax()], ids=str)
def test_classes_are_not_outputs(link):
    reads = [link.probabilities, link.predict, *([link.eta] if isinstance(link, Coding) else [])]
    for read in reads:
        with pytest.raises(TypeError, match=r"floating-point outputs, got torch.int32; pass the network"):
            read(torch.ones(3, 3, dtype=torch.int32))


@pytest.mark.parametrize("coding", [Simplex(), OneHot()])
def test_bad_input_says_what_was_expected(coding):
    for read in (coding.scores, coding.eta, coding.probabilities, coding.predict):
        with pytest.raises(ValueError, match=r"expected two outputs or more .* got 1; .* Simplex\(reduced=True\)"):
            read(torch.zeros(4, 1))
    with pytest.raises(ValueError, match=r"expected labels in \[0, 3\) for 3 classes, got 3"):
        coding.encode(torch.tensor([0, 3]), 3)
    with pytest.raises(ValueError, match=r"expected labels in \[0, 3\) for 3 classes, got -1"):
        coding.encode(torch.tensor([0, -1]), 3)
    with pytest.raises(ValueError, match=r"expected soft labels with 3 classes.*labels.long\(\)"):
        coding.encode(torch.tensor([0.0, 1.0]), 3)
    with pytest.raises(ValueError, match="sum to one"):
        coding.encode(torch.tensor([[0.5, 0.2, 0.2]]), 3)
    with pytest.raises(TypeError, match=r"expected labels as a tensor, got list; use torch.as_tensor\(labels\)"):
        coding.encode([0, 1], 3)
    with pytest.raises(TypeError, match=r"got torch.bool; use labels.long\(\)"):
        coding.encode(torch.tensor([True, False]), 3)
    with pytest.raises(ValueError, match="weight of shape"):
        coding.probabilities(torch.zeros(4, 3), weight=torch.ones(4))
    with pytest.raises(ValueError, match="label_smoothing"):
        coding.probabilities(torch.zeros(4, 3), label_smoothing=1.0)
    with pytest.raises(ValueError, match="two classes or more"):
        Simplex().encode(torch.tensor([0]), 1)


def test_labels_of_any_whole_type_are_encoded():
    labels = torch.arange(6) % 3
    assert torch.equal(Simplex().encode(labels.to(torch.uint16), 3), Simplex().encode(labels, 3))


def test_the_plain_readings():
    """What stands without any option: softmax of logits, and one-hot targets as plain regression has them."""
    f, labels = normal(6, 4), torch.arange(6) % 4
    assert_close(Softmax().probabilities(f), torch.softmax(f, 1))
    target = torch.nn.functional.one_hot(labels).double()
    assert_close(functional.square_loss(f, labels, OneHot(), scale=1.0), torch.nn.functional.mse_loss(f, target))
    assert_close(OneHot().eta(f), f)


@pytest.mark.parametrize("coding", [Simplex(), Simplex(reduced=True), OneHot()])
def test_codes_lie_where_the_labels_do(coding):
    codes = coding.encode(torch.zeros(5, dtype=torch.long, device="meta"), 3)
    assert codes.device.type == "meta" and codes.shape == (5, coding.vertices(3).shape[1])
