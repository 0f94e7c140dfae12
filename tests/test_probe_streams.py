"""RidgeProbe on streams: one fit in many pieces, samples forgotten, classes that come late, chunks and memory maps."""

import sys
from itertools import count

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score

from probe_blobs import TIGHT, blobs, codes, same_choice, same_model
from squareloss import _estimator_inputs, _moments
from squareloss.probe import RidgeProbe


def test_streaming_is_one_fit():
    x, y = blobs(200, 8, 4)
    s = np.random.default_rng(1).uniform(0.1, 2, 200)
    whole = RidgeProbe(class_weight={0: 2.0}).fit(x, y, s)
    stream = RidgeProbe(class_weight={0: 2.0})
    for part in np.split(np.arange(200), [1, 5, 60, 61, 140]):
        stream.partial_fit(x[part], y[part], classes=np.arange(4), sample_weight=s[part])
    same_model(stream, whole)
    same_choice(stream, whole)  # fewer samples than are kept: the same lambda and probabilities too
    np.testing.assert_allclose(stream.predict_proba(x), whole.predict_proba(x), atol=1e-6)


def test_a_class_may_be_weighted_before_it_comes():
    x, y = blobs(200, 8, 4)
    order = np.argsort(y, kind="stable")
    x, y = x[order], y[order]
    whole = RidgeProbe(class_weight={3: 10.0}).fit(x, y)
    pieces = RidgeProbe(class_weight={3: 10.0}).fit_chunks(lambda: ((x[p], y[p]) for p in np.split(np.arange(200), 4)))
    same_model(pieces, whole)


def test_streaming_of_features_far_from_the_origin():
    x, y = blobs(300, 5)
    x += 1e5
    stream = RidgeProbe([0.5])
    for part in np.split(np.arange(300), 10):
        stream.partial_fit(x[part], y[part])
    whole = RidgeProbe([0.5]).fit(x, y)
    np.testing.assert_allclose(stream.decision_function(x) - stream.shift_, whole.decision_function(x) - whole.shift_, **TIGHT)


def test_fit_goes_on_with_partial_fit():
    x, y = blobs(100, 30)
    for first in (20, 60):  # fewer and more samples than features
        probe = RidgeProbe([1.0]).fit(x[:first], y[:first]).partial_fit(x[first:], y[first:])
        same_model(probe, RidgeProbe([1.0]).fit(x, y))


def test_more_samples_than_are_kept(monkeypatch):
    monkeypatch.setattr(_moments, "RESERVOIR", 150)
    x, y = blobs(3000, 5)
    stream = RidgeProbe()
    for part in np.split(np.arange(3000), 7 * [0] + [100, 120, 1000]):
        if len(part):
            stream.partial_fit(x[part], y[part])
    assert len(stream._engine.reservoir) == 150
    kept = {row.tobytes() for row in stream._engine.reservoir.samples[0].numpy()}
    places = np.array([i for i, row in enumerate(x) if row.tobytes() in kept])
    assert len(places) == 150
    assert 3000 * 0.4 < places.mean() < 3000 * 0.6  # from the whole stream
    whole = RidgeProbe([stream.lambda_]).fit(x, y)
    same_model(stream, whole)
    # leave-one-out of the kept samples is exact: it is that of the whole fit
    loo = whole.leave_one_out(x[places], y[places]) - whole.shift_
    errors = ((loo - codes(y[places], 3)) ** 2).sum(1).mean() / 9
    assert min(stream.path_["brier"]) == pytest.approx(errors, rel=1e-8)


def test_forgetting_is_never_having_seen():
    x, y = blobs(150, 6, 4)
    s = np.random.default_rng(1).uniform(0.1, 2, 150)
    gone, stay = np.arange(150) % 5 == 0, np.arange(150) % 5 != 0
    probe = RidgeProbe(class_weight={1: 2.0}).fit(x, y, s).forget(x[gone], y[gone], s[gone])
    never = RidgeProbe(class_weight={1: 2.0}).fit(x[stay], y[stay], s[stay])
    same_model(probe, never)
    same_choice(probe, never)
    back = probe.partial_fit(x[gone], y[gone], sample_weight=s[gone])
    same_model(back, RidgeProbe(class_weight={1: 2.0}).fit(x, y, s))


@pytest.mark.parametrize("seed", range(6))
def test_a_feature_that_only_absent_samples_had_counts_for_nothing(seed):
    """Forgotten, weighted by 0, or in a chunk of such: it is constant among those that count, and new samples may have it."""
    rng = np.random.default_rng(seed)
    x, y = blobs(300, 5)
    level, weight = 0.1 * (seed % 2), np.full(300, 0.1)
    flag = np.full(300, level)
    flag[:7], weight[:7] = rng.normal(size=7) * 10.0 ** rng.integers(-2, 4), 0
    x = np.c_[x, flag]
    never = RidgeProbe().fit(x[7:], y[7:])
    forgot = RidgeProbe().partial_fit(x, y).forget(x[:7], y[:7])
    weighted = RidgeProbe().fit(x, y, weight)
    pieces = RidgeProbe().fit_chunks(lambda: ((x[p], y[p], weight[p]) for p in np.split(np.arange(300), [100, 200])))
    new = np.c_[x[:50, :5], rng.normal(size=50)]
    for probe in (forgot, weighted, pieces):
        assert abs(probe.coef_[:, 5]).max() < 1e-9
        np.testing.assert_allclose(probe.predict_proba(new), never.predict_proba(new), atol=1e-6)


def test_samples_of_weight_zero_may_lie_anywhere():
    x, y = blobs(300, 5)
    weight = np.ones(300)
    weight[::10] = 0
    masked = np.where(weight[:, None] > 0, x, 1e12)
    whole, without = RidgeProbe().fit(masked, y, weight), RidgeProbe().fit(x[weight > 0], y[weight > 0])
    np.testing.assert_array_equal(whole.coef_, without.coef_)


def test_forgetting_one_sample_of_a_wide_fit():
    x, y = blobs(20, 30)
    x[3, 0] = 0.0
    gone = np.where(x[3:4] == 0, -0.0, x[3:4])  # the same number
    for lam in (1.0, 1e-12):  # so small that only products of samples, not sums, still tell what leaving one out does
        probe = RidgeProbe([lam]).fit(x, y).forget(gone, y[3:4])
        never = RidgeProbe([lam]).fit(np.delete(x, 3, 0), np.delete(y, 3))
        same_model(probe, never)
        same_choice(probe, never)


def test_new_classes():
    x, y = blobs(200, 6, 5)
    names = np.array(["dog", "cat", "newt", "ant", "owl"])[y]  # sorted: ant cat dog newt owl
    early = np.isin(names, ["dog", "owl"])
    probe = RidgeProbe([1.0]).partial_fit(x[early], names[early])
    assert probe.classes_.tolist() == ["dog", "owl"]
    with pytest.raises(ValueError, match=r"got 'cat'; to add classes call partial_fit\(X, y, classes=\.\.\.\)"):
        probe.partial_fit(x[names == "cat"], names[names == "cat"])
    same_model(probe, RidgeProbe([1.0]).fit(x[early], names[early]))  # the error changed nothing
    probe.partial_fit(x[~early], names[~early], classes=["cat", "newt", "ant"])
    whole = RidgeProbe([1.0]).fit(x, names)
    assert probe.classes_.tolist() == whole.classes_.tolist() == ["ant", "cat", "dog", "newt", "owl"]
    same_model(probe, whole)
    same_choice(probe, whole)
    assert (probe.predict(x) == whole.predict(x)).all()


@pytest.mark.parametrize("kind", [str, object])
def test_numbers_and_text_are_no_labels_of_one_probe(kind):
    x, y = blobs(60, 4)
    words = y.astype(str).astype(kind)
    probe = RidgeProbe([1.0]).fit(x, y)
    for method, arguments in (
        ("partial_fit", (x[:5], np.full(5, "newt", dtype=kind), ["newt"])),
        ("partial_fit", (x[:5], words[:5], ["0", "1", "2"])),
        ("partial_fit", (x[:5], words[:5])),
        ("partial_fit", (x[:5], y[:5], ["newt"])),
        ("fit_chunks", ([(x, y), (x, words)],)),
        ("forget", (x[:5], words[:5])),
        ("leave_one_out", (x, words)),
        ("score", (x, words)),
    ):
        with pytest.raises(ValueError, match=r"labels that are numbers, as the classes \[0, 1, 2\] are, got text such as"):
            getattr(probe, method)(*arguments)
        assert probe.classes_.tolist() == [0, 1, 2]
        same_model(probe, RidgeProbe([1.0]).fit(x, y))
    probe = RidgeProbe([1.0]).fit(x, words)
    with pytest.raises(ValueError, match=r"labels that are text, as the classes .* are, got numbers such as 7"):
        probe.partial_fit(x[:5], np.full(5, 7), classes=[7])
    assert probe.partial_fit(x[:5], np.full(5, "newt"), classes=["newt"]).classes_.tolist() == ["0", "1", "2", "newt"]
    numbers = RidgeProbe([1.0]).fit(x, y == 1).partial_fit(x[:5], np.full(5, 7.0), classes=[7.0]).partial_fit(x, y == 1, [])
    assert numbers.classes_.tolist() == [0, 1, 7]  # numbers of any kind go together


def test_a_new_class_after_a_wide_fit():
    x, y = blobs(24, 20, 3)
    first = np.flatnonzero(y != 1)[:9]  # fewer samples than features, and the new class is sorted between the others
    rest = np.setdiff1d(np.arange(24), first)
    probe = RidgeProbe([1.0]).fit(x[first], y[first]).partial_fit(x[rest], y[rest], classes=[1])
    whole = RidgeProbe([1.0]).fit(x, y)
    same_model(probe, whole)
    same_choice(probe, whole)


@pytest.mark.parametrize("kept", [10, 100])
def test_a_wide_fit_does_not_hang_on_the_tensor_of_the_caller(monkeypatch, kept):
    monkeypatch.setattr(_moments, "RESERVOIR", kept)
    x, y = blobs(24, 30)
    tensor = torch.from_numpy(x).clone()
    probe = RidgeProbe([1.0]).fit(tensor, torch.from_numpy(y))
    tensor.mul_(2)
    np.testing.assert_array_equal(probe.leave_one_out(x, y), RidgeProbe([1.0]).fit(x, y).leave_one_out(x, y))
    if kept == 100:
        engine = probe._engine
        assert engine.pending[0] is engine.solved.samples[0] is engine.reservoir.samples[0]  # and is there once
    same_model(probe.partial_fit(x[:20] + 1, y[:20]), RidgeProbe([1.0]).fit(np.r_[x, x[:20] + 1], np.r_[y, y[:20]]))


def test_a_class_without_samples_yet():
    x, y = blobs(100, 4, 2)
    probe = RidgeProbe([1.0]).partial_fit(x, y, classes=[0, 1, 2])
    p = probe.predict_proba(x)
    assert p.shape == (100, 3)
    assert p[:, 2].max() < p[:, :2].max(1).min()
    few = [RidgeProbe([c]).partial_fit(x[:4], y[:4], [0, 1, 2], c * np.arange(1.0, 5)).shift_ for c in (1.0, 100.0)]
    np.testing.assert_allclose(few[0], few[1], rtol=1e-6)  # fewer samples than features; only ratios of weights matter


def test_label_sets_share_one_fit():
    x, y = blobs(150, 6, 4)
    sets = np.stack([y, y % 2, (y + 1) % 3], 1)
    probe = RidgeProbe().fit(x, sets)
    stream = RidgeProbe().partial_fit(x[:70], sets[:70]).partial_fit(x[70:], sets[70:])
    assert probe.predict(x).shape == (150, 3)
    for i in range(3):
        alone = RidgeProbe().fit(x, sets[:, i])
        for other in (probe, stream):
            assert other.lambda_[i] == pytest.approx(alone.lambda_)
            np.testing.assert_allclose(other.coef_[i], alone.coef_, **TIGHT)
            np.testing.assert_allclose(other.predict_proba(x)[i], alone.predict_proba(x), atol=1e-6)
            np.testing.assert_allclose(other.decision_function(x)[i], alone.decision_function(x), atol=1e-6)
            np.testing.assert_allclose(other.leave_one_out(x, sets)[i], alone.leave_one_out(x, sets[:, i]), atol=1e-6)
        assert (probe.predict(x)[:, i] == alone.predict(x)).all()
    s = np.linspace(0, 1, 150)
    right = probe.predict(x) == sets
    assert probe.score(x, sets) == pytest.approx(right.mean())
    assert probe.score(x, sets, s) == pytest.approx(s @ right.mean(1) / s.sum())
    binary = RidgeProbe().fit(x, sets[:, :2] % 2)
    assert binary.score(torch.from_numpy(x), torch.from_numpy(sets[:, :2] % 2)) == pytest.approx(
        np.mean(binary.predict(x) == sets[:, :2] % 2)
    )
    assert alone.score(x, sets[:, 2]) == accuracy_score(sets[:, 2], alone.predict(x))
    with pytest.raises(ValueError, match="expected 3 label sets, got 2 columns"):
        probe.score(x, sets[:, :2])


def test_classes_of_several_label_sets_are_named_one_by_one():
    x, y = blobs(60, 5)
    both = np.stack([y, y % 2], 1)
    whole = RidgeProbe([1.0]).fit(x, both)
    stream = RidgeProbe([1.0]).partial_fit(x[:4], both[:4], classes=[[0, 1, 2], [1, 0]]).partial_fit(x[4:], both[4:])
    assert [c.tolist() for c in stream.classes_] == [[0, 1, 2], [0, 1]]
    for ours, theirs in zip(stream.coef_, whole.coef_, strict=True):
        np.testing.assert_allclose(ours, theirs, **TIGHT)
    with pytest.raises(ValueError, match="expected classes for 2 label sets"):
        RidgeProbe([1.0]).partial_fit(x, both, classes=[[0, 1, 2]])


def test_chunks_and_memmaps_are_one_fit(tmp_path):
    x, y = blobs(5000, 12, 3)
    x = x.astype(np.float32)
    path = np.memmap(tmp_path / "x", dtype=np.float32, mode="w+", shape=x.shape)
    path[:] = x
    path.flush()
    disk = np.memmap(tmp_path / "x", dtype=np.float32, mode="r", shape=x.shape)
    whole = RidgeProbe().fit(x, y)
    chunks = [(disk[i : i + 700], y[i : i + 700]) for i in range(0, 5000, 700)]
    for probe in (RidgeProbe().fit(disk, y), RidgeProbe().fit_chunks(chunks), RidgeProbe().fit_chunks(lambda: iter(chunks))):
        same_model(probe, whole)
        same_choice(probe, whole)
    once = RidgeProbe([whole.lambda_]).fit_chunks(iter(chunks))  # read once: the same sums, judged by the samples kept
    same_model(once, whole)
    assert once.temperature_ == pytest.approx(whole.temperature_, rel=0.1)
    with pytest.raises(ValueError, match="expected chunks"):
        RidgeProbe().fit_chunks(iter([]))


@pytest.mark.parametrize("readings", [[2, 1], [2, 3], [2, 2, 1], [2, 2, 3]])
def test_chunks_that_change_between_readings_are_refused(readings):
    x, y = blobs(60, 5, 3)
    chunks = [(x[i : i + 20], y[i : i + 20]) for i in (0, 20, 40)]
    counts = iter(readings)
    with pytest.raises(ValueError, match=f"same 40 samples at each reading, got {20 * readings[-1]}; give a list"):
        RidgeProbe().fit_chunks(lambda: chunks[: next(counts)])
    used = iter(chunks)
    with pytest.raises(ValueError, match="same 60 samples at each reading, got 0; give a list"):
        RidgeProbe().fit_chunks(lambda: used)


def test_chunks_with_weights_and_late_classes():
    x, y = blobs(300, 5, 3)
    order = np.argsort(y, kind="stable")  # as data often lie on a disk: one class after the other
    x, y, s = x[order], y[order], np.linspace(0.5, 2, 300)
    chunks = [(x[i : i + 50], y[i : i + 50], s[i : i + 50]) for i in range(0, 300, 50)]
    same_model(RidgeProbe([1.0]).fit_chunks(chunks), RidgeProbe([1.0]).fit(x, y, s))
    with pytest.raises(ValueError, match="got one class: \\[0\\]"):
        RidgeProbe().fit_chunks(chunks[:1])


def test_chunks_have_one_width_which_may_be_another_than_that_of_an_earlier_fit():
    x, y = blobs(60, 6)
    chunks = [(x[:30, :4], y[:30]), (x[30:, :4], y[30:])]
    same_model(RidgeProbe([1.0]).fit(x, y).fit_chunks(chunks), RidgeProbe([1.0]).fit(x[:, :4], y))
    with pytest.raises(ValueError, match="6 features.* 4"):
        RidgeProbe([1.0]).fit_chunks([*chunks, (x, y)])


def test_forgetting_what_was_not_there():
    x, y = blobs(30, 4)
    probe = RidgeProbe([1.0]).fit(x, y)
    whole = RidgeProbe([1.0]).fit(x, y)
    with pytest.raises(ValueError, match="Nothing was forgotten"):
        probe.forget(x, y)
    with pytest.raises(ValueError, match="Nothing was forgotten"):
        probe.forget(x[:20], np.zeros(20, int))
    with pytest.raises(ValueError, match="samples that no such sums can have in them.*Nothing was forgotten"):
        probe.forget(1e8 * x[:1], y[:1])  # what remained would have a negative variance
    some = np.flatnonzero(y == 0)
    with pytest.raises(ValueError, match="Nothing was forgotten"):
        probe.forget(x[some] + 1, y[some])  # all of a class, and yet its features do not add up to nothing
    assert np.array_equal(probe.coef_, whole.coef_)
    with pytest.raises(ValueError, match="got 7"):
        probe.forget(x[:1], [7])
    with pytest.raises(ValueError, match="features, but RidgeProbe is expecting"):
        probe.forget(x[:1, :-1], y[:1])


@pytest.mark.parametrize("scale", [1e-9, 1.0, 1e9])
def test_forgetting_what_was_there_is_never_refused(scale):
    rng = np.random.default_rng(0)
    for n, d in ((40, 3), (30, 29), (20, 50)):
        x, y = blobs(n, d)
        x = x * 10.0 ** rng.integers(-6, 6, d)  # features of any size, a constant one, one twice, a point far out
        x[:, 0], x[:, 1], x[5] = 3.0, x[:, 2], 1e6 * x[5]
        s = scale * 10.0 ** rng.uniform(-6, 3, n)
        probe = RidgeProbe([scale]).fit(x, y, s)
        for rows in np.array_split(rng.permutation(n)[1:], 5):
            probe.forget(x[rows], y[rows], s[rows])


@pytest.mark.parametrize("begun", [False, True])
def test_a_refused_call_changes_nothing(begun):
    x, y = blobs(40, 4)
    probe, same = (RidgeProbe([0.0, 1.0], class_weight={0: 2.0}).fit(x, y) for _ in range(2))
    if begun:
        probe.partial_fit(x[:9], y[:9])
        same.partial_fit(x[:9], y[:9])
    twice, huge = np.hstack([x, x]), np.ones((4106, 4))  # more than one block
    huge[-1] = 1e150
    for method, arguments, options in (
        ("fit", (x, y), {"sample_weight": -np.ones(40)}),
        ("fit", (twice, y), {}),  # singular at lambda = 0
        ("fit", (x, np.zeros(40, int)), {}),
        ("partial_fit", (x, y), {"classes": [7], "sample_weight": -np.ones(40)}),
        ("partial_fit", (x[:3], [0, 1, 9]), {"classes": [7]}),
        ("partial_fit", (x[:3], np.zeros((3, 2), int)), {"classes": [[7], [7]]}),
        ("partial_fit", (twice, y), {}),
        ("partial_fit", (huge, np.arange(4106) % 3), {}),
        ("partial_fit", (huge[-3:], [0, 1, 7]), {"classes": [7]}),
        ("fit", (huge, np.arange(4106) % 3), {}),
        ("fit_chunks", ([(x[:3], y[:3]), (twice, y)],), {}),
        ("fit_chunks", ([(x[:3], y[:3]), (huge[-3:], y[:3])],), {}),
        ("forget", (huge[-1:], y[:1]), {}),
        ("forget", (x, y), {"sample_weight": -np.ones(40)}),
        ("forget", (x[:1], [9]), {}),
    ):
        with pytest.raises(ValueError, match=r"."):
            getattr(probe, method)(*arguments, **options)
        assert probe.n_features_in_ == 4
        assert probe.classes_.tolist() == [0, 1, 2]
        assert probe._engine.count == same._engine.count
        same_model(probe, same)
        np.testing.assert_array_equal(probe.predict_proba(x), same.predict_proba(x))
    probe.class_weight = {0: -1.0}
    with pytest.raises(ValueError, match="class weights > 0"):
        probe.partial_fit(x, y, classes=[7])
    assert probe.classes_.tolist() == [0, 1, 2]
    same_model(probe, same)


def test_a_refused_first_call_leaves_nothing():
    x, y = blobs(40, 4)
    for options in ({"classes": [0, 1]}, {"sample_weight": -np.ones(40)}):
        probe = RidgeProbe([1.0])
        with pytest.raises(ValueError, match=r"expected labels among|[Nn]egative"):
            probe.partial_fit(x, y, **options)
        assert not hasattr(probe, "classes_")
        same_model(probe.partial_fit(x, y), RidgeProbe([1.0]).fit(x, y))


@pytest.mark.parametrize("late", [200, 3000])
def test_the_samples_kept_are_uniform_after_forgetting(monkeypatch, late):
    """2000 come, 1500 are forgotten, some come: of all that are left each is kept as often as any other."""
    monkeypatch.setattr(_moments, "RESERVOIR", 100)
    x = torch.arange(2000.0 + late, dtype=torch.float64).unsqueeze(1)
    labels, weight = x.long(), 1 + x[:, 0]  # of its own
    times, runs = np.zeros(len(x)), 400
    for seed in range(runs):
        reservoir = _moments.Reservoir(seed)
        for part in (slice(0, 1300), slice(1300, 2000)):
            reservoir.add(x[part], labels[part], weight[part])
        reservoir.discard(x[500:2000], labels[500:2000], weight[500:2000])
        for part in (slice(2000, 2050), slice(2050, None)):
            reservoir.add(x[part], labels[part], weight[part])
        kept = reservoir.samples[0][:, 0].long()
        assert torch.equal(reservoir.samples[1], labels[kept]) and torch.equal(reservoir.samples[2], weight[kept])
        times[kept.numpy()] += 1
    left = np.r_[times[:500], times[2000:]]
    assert not times[500:2000].any()
    early, new = left[:500].mean(), left[500:].mean()
    assert early == pytest.approx(new, rel=0.05)
    assert left.sum() / runs == pytest.approx(100 if late == 3000 else 100 * 700 / 2000, rel=0.1)
    assert left.var() == pytest.approx(left.mean() * (1 - left.mean() / runs), rel=0.25)  # each on its own terms


def test_of_three_samples_each_is_as_often_the_one_that_is_kept(monkeypatch):
    monkeypatch.setattr(_moments, "RESERVOIR", 1)
    x, labels, weight = torch.arange(3.0).unsqueeze(1), torch.zeros(3, 1, dtype=torch.long), torch.ones(3)
    times = np.zeros(3)
    for seed in range(600):
        reservoir = _moments.Reservoir(seed)
        reservoir.add(x, labels, weight)
        times[int(reservoir.samples[0])] += 1
    assert abs(times - 200).max() < 50  # more than four standard deviations


def test_as_many_as_left_make_the_samples_kept_complete_again(monkeypatch):
    monkeypatch.setattr(_moments, "RESERVOIR", 50)
    x = torch.arange(300.0, dtype=torch.float64).unsqueeze(1)
    labels, weight = torch.zeros(len(x), 1, dtype=torch.long), torch.ones(len(x), dtype=torch.float64)
    for seed in range(5):
        reservoir = _moments.Reservoir(seed)
        reservoir.add(x[:200], labels[:200], weight[:200])
        reservoir.discard(x[:100], labels[:100], weight[:100])
        for first in range(200, 300, 20):
            assert len(reservoir) < 50
            part = slice(first, first + 20)
            reservoir.add(x[part], labels[part], weight[part])
        assert (len(reservoir), reservoir.seen, reservoir.gone_kept, reservoir.gone_other) == (50, 200, 0, 0)
        assert not reservoir.whole


def test_forgetting_all_samples_that_were_kept(monkeypatch):
    monkeypatch.setattr(_moments, "RESERVOIR", 50)
    x, y = blobs(500, 4)
    for lambdas in ([1.0], [1.0, 2.0]):
        probe = RidgeProbe(lambdas).partial_fit(x, y)
        kept = {row.tobytes() for row in probe._engine.reservoir.samples[0].numpy()}
        gone = np.array([row.tobytes() in kept for row in x])
        assert gone.sum() == 50
        probe.forget(x[gone], y[gone])
        if len(lambdas) == 1:
            never = RidgeProbe([1.0]).fit(x[~gone], y[~gone])
            same_model(probe, never)
            assert np.mean(probe.predict(x) == never.predict(x)) > 0.9  # without the shift, which needs samples
            with pytest.raises(ValueError, match="samples to fit probabilities on"):
                probe.predict_proba(x)
        else:
            with pytest.raises(ValueError, match="all that were kept have been forgotten; add some, or give one lambda"):
                probe.predict(x)
        probe.partial_fit(x[gone], y[gone])
        assert len(probe._engine.reservoir) == 50
        assert np.isfinite(probe.predict_proba(x)).all()


def test_a_stream_longer_than_what_is_kept_with_fewer_samples_than_features(monkeypatch):
    """Only sums are left: the default path is right, and what rounding hides is not chosen."""
    monkeypatch.setattr(_moments, "RESERVOIR", 20)
    x, y = blobs(40, 90)
    stream = RidgeProbe().partial_fit(x, y)
    whole = RidgeProbe([stream.lambda_]).fit(x, y)
    kept = stream._engine.reservoir.samples[0].numpy()
    places = [int(np.flatnonzero((x == row).all(1))[0]) for row in kept]
    errors = ((whole.leave_one_out(x, y) - whole.shift_ - codes(y, 3))[places] ** 2).sum(1).mean() / 9
    assert min(stream.path_["brier"]) == pytest.approx(errors, rel=1e-6)
    with pytest.warns(UserWarning, match="lost in rounding at lambda = 1e-12"):
        assert RidgeProbe([1e-12, 1e-2]).partial_fit(x, y).lambda_ == 1e-2
    with pytest.warns(UserWarning, match="lost in rounding at lambda = 1e-12, .*: no probabilities"):
        same_model(RidgeProbe(1e-12).partial_fit(x, y), RidgeProbe(1e-12).fit(x, y))


@pytest.mark.parametrize("differ", ["weights", "labels"])
def test_forgetting_one_of_two_samples_of_equal_features(differ):
    x, y = blobs(20, 30)
    x[1], y[1] = x[0], y[0] if differ == "weights" else (y[0] + 1) % 3
    s = np.linspace(1, 3, 20) if differ == "weights" else np.ones(20)
    for gone in (0, 1):
        rest = np.arange(20) != gone
        probe = RidgeProbe([1.0]).fit(x, y, s).forget(x[gone : gone + 1], y[gone : gone + 1], s[gone : gone + 1])
        never = RidgeProbe([1.0]).fit(x[rest], y[rest], s[rest])
        same_model(probe, never)
        same_choice(probe, never)


@pytest.mark.parametrize(("total", "said"), [(None, "sums: 300 samples"), (900, "sums: 300 samples of 900, 6 min left")])
def test_a_stream_says_how_far_it_is(capsys, monkeypatch, total, said):
    clock = count(0, 60)  # a block a minute
    monkeypatch.setattr("squareloss._estimator_inputs.time.perf_counter", lambda: next(clock))
    blocks = [(range(100),)] * 3
    assert list(_estimator_inputs.watch(blocks, total, "sums", verbose=True)) == blocks
    shown = capsys.readouterr().err
    assert shown.count("\n") == 3 and shown.splitlines()[-1] == said
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert list(_estimator_inputs.watch(blocks, total, "sums", verbose=True)) == blocks
    shown = capsys.readouterr().err
    assert shown.count("\n") == 1 and shown.split("\r")[-1].rstrip(" ") == said + "\n"
    assert list(_estimator_inputs.watch(blocks, total, "sums", verbose=False)) == blocks
    assert capsys.readouterr().err == ""


def test_a_chunk_of_samples_that_count_for_nothing():
    x, y = blobs(200, 8)
    weight = np.repeat([0.0, 1.0, 0.0, 2.0], 50)
    whole = RidgeProbe().fit(x, y, weight)
    pieces = RidgeProbe().fit_chunks(lambda: ((x[p], y[p], weight[p]) for p in np.split(np.arange(200), 4)))
    stream = RidgeProbe()
    for p in np.split(np.arange(200), 4):
        stream.partial_fit(x[p], y[p], sample_weight=weight[p])
    for probe in (pieces, stream):
        same_model(probe, whole)
    with pytest.raises(ValueError, match="weights of zero leave none"):
        RidgeProbe().fit(x, y, np.zeros(200))
    with pytest.raises(ValueError, match="NaN"):
        RidgeProbe().fit(x, y, [None] * 200)
    same_model(RidgeProbe().fit(x, y, 2.0), RidgeProbe().fit(x, y, np.full(200, 2.0)))  # one number for all
