"""What the pages of the image studies show: tables, claims, the paper's values, costs."""

import importlib
from pathlib import Path

import pytest

from squareloss.lab import studies
from squareloss.lab.report.header import Column
from squareloss.lab.report.views import image_claims, image_cost, image_rows, images
from squareloss.lab.report.write import gather
from squareloss.lab.runs import Cell, Job, Result, Store


def test_views_of_nothing_and_of_little_are_empty_tables():
    assert not any(make([]).rows for makers in images.VIEWS_OF.values() for make in makers)
    assert image_claims.tally([]) == [] == images.cautions([]) and not images.robustness([]).panels


def net(line, full=True, **metrics):
    seeds = {seed: {key: values[seed] for key, values in metrics.items()} for seed in range(2)}
    return image_rows.Net(line, "200 epochs, (0.01, 32)", full, metrics=seeds)


def test_readings_of_two_cells_come_together_and_a_missing_one_is_missing():
    ce, sl = (net(f"resnet18-cifar10-{loss}", readings=[{}, {}]) for loss in ("CE", "SL"))
    for seed in range(2):
        ce.metrics[seed]["readings"] = {"": {"ece": 0.03 + seed / 1000}}
        sl.metrics[seed]["readings"] = {"": {"ece": 0.016}, "+renormalised": {"ece": 0.01}}
    assert ce.by_seed("ece+renormalised") == {} and sl.by_seed("ece+renormalised") == {0: 0.01, 1: 0.01}
    told = {row[1].text: (row[2].text, row[3].text) for row in image_claims.claims([ce, sl]).rows}
    read = "ECE of SL below half of CE's, eta {} (not in the paper)".format
    assert told[read("projected")][0] == "0.0160 against 0.0305, 0.52 of it"
    assert told[read("clipped and renormalised")] == ("0.0100 against 0.0305, 0.33 of it", "holds")
    table = images.calibration([ce, sl])
    place = table.columns.index("ECE, eta clipped and renormalised")
    assert [row[place].text for row in table.rows if row[0].text] == ["–", "0.0100 (0.0000)"]


def test_claims_follow_the_numbers():
    ce = net("resnet18-cifar10-CE", accuracy=[0.951, 0.952], ece=[0.03, 0.031], worst_2=[0.02, 0.021])
    attacks = {"softmax_probability": 0.2, "log_probability": 0.3, "angle": 0.25, "residual": 0.5}
    attacks = {f"pgd_{name}_2": [value, 1.004 * value] for name, value in attacks.items()}
    sl = net("resnet18-cifar10-SL", accuracy=[0.94, 0.9411], ece=[0.01, 0.0111], worst_2=[0.019, 0.022], **attacks)
    rows = image_claims.claims([ce, sl]).rows
    told, here = ({(row[0].text, row[1].text): row[i].text for row in rows} for i in (3, 2))
    where, pair = "ResNet-18, CIFAR-10, {}", "ResNet-18, CIFAR-10"
    assert told[where.format("CE"), "accuracy 95.15 (0.11), to within half a point"] == "holds"
    assert told[where.format("SL"), "accuracy 95.04 (0.07), to within half a point"] == "does not hold"
    assert told[pair, "clean accuracy: SL below CE"] == "holds"
    assert told[pair, "ECE of SL below half of CE's, eta projected (not in the paper)"] == "holds"
    assert told[where.format("SL"), "attacks at 2/255: angle far better than square loss"] == "holds"
    assert told[where.format("SL"), "attacks at 2/255: L1, softmax_probability, is the best"] == "holds"
    left = here[where.format("SL"), "attacks at 2/255: angle far better than square loss"]
    assert left == "25.05 left by the angle, 50.10 by square loss"
    left = here[where.format("SL"), "attacks at 2/255: L1, softmax_probability, is the best"]
    assert left == "softmax_probability 20.04, log_probability 30.06, angle 25.05, residual 50.10"
    assert told[pair, "SL stands more at 2/255, worst case (not in the paper)"] == "can't be told from chance"
    # what asks more than the paper does is no claim of it
    assert image_claims.tally([ce, sl]) == [
        "Claims of the paper that could be tried: 6. Hold here: 5; do not: 1; can't be told from chance: 0."
    ]
    weaker = net("resnet18-cifar10-SL", **{**attacks, "pgd_angle_2": [0.1, 0.1]})
    (_, best) = image_claims.claims([weaker]).rows
    assert best[3].text == "does not hold"
    near = net("resnet18-cifar10-SL", **{**attacks, "pgd_angle_2": [0.45, 0.45]})
    (far, _) = image_claims.claims([near]).rows
    assert far[3].text == "does not hold", "a tenth fewer is not far"


def test_what_the_paper_says_of_attack_losses_has_one_exception_and_is_of_its_own_table():
    attacks = {"softmax_probability": 0.05, "log_probability": 0.06, "angle": 0.04, "residual": 0.2}
    attacks = {f"pgd_{name}_{level}": [value, 1.004 * value] for name, value in attacks.items() for level in (2, 4)}
    rows = image_claims.claims([net("wrn16_10-cifar100-SL-b128", **attacks)]).rows
    told = {row[1].text: row[3].text for row in rows}
    assert told["attacks at 2/255: L1, softmax_probability, does not beat the angle"] == "holds"
    assert told["attacks at 4/255: L1, softmax_probability, is the best"] == "does not hold"
    for line in ("resnet18-cifar10-SLr1", "resnet18-cifar10-SL-adv7"):
        told = [row[1].text for row in image_claims.claims([net(line, **attacks)]).rows]
        assert len(told) == 4 and all(text.endswith("(not in the paper)") for text in told)
        assert image_claims.tally([net(line, **attacks)]) == []


def test_what_the_seeds_do_not_tell_is_not_told():
    """Means on the right side of a line, but spread across it, or of one seed, decide nothing."""
    ce = net("resnet18-cifar10-CE", ece=[0.03, 0.02], autoattack_2=[0.02, 0.02], least_2=[0.02, 0.02], worst_2=[0.0, 0.0])
    attacks = {"log_probability": [0.5, 0.5], "angle": [0.6, 0.6], "residual": [0.9, 0.7]}
    attacks = {f"pgd_{name}_2": values for name, values in attacks.items()} | {"pgd_softmax_probability_2": [0.48, 0.51]}
    sl = net("resnet18-cifar10-SL", ece=[0.014, 0.012], **attacks)
    sl.metrics[0] |= {"autoattack_2": 0.03, "least_2": 0.03}
    told = {row[1].text: (row[2].text, row[3].text) for row in image_claims.claims([ce, sl]).rows}
    assert told["ECE of SL below half of CE's, eta projected (not in the paper)"] == (
        "0.0130 against 0.0250, 0.52 of it",
        image_claims.NOT_BY_MEANS,
    )
    assert told["ECE: SL below CE"][0].startswith("-0.0120 [")
    assert told["AutoAttack at 2/255: SL above CE"] == ("+1.00 (one seed)", image_claims.BY_MEANS)
    assert told["attacks at 2/255: L1, softmax_probability, is the best"][1] == image_claims.BY_MEANS
    assert told["attacks at 2/255: angle far better than square loss"][1] == image_claims.BY_MEANS
    honest = told["SL stands more at 2/255, least over all attacks (not in the paper)"]
    assert honest == ("3.00 against 2.00: +1.00 (one seed)", image_claims.BY_MEANS)
    assert not any("worst case" in text for text in told), "the least over all has it"
    assert image_claims.tally([ce, sl]) == [
        "Claims of the paper that could be tried: 4. Hold here: 0; do not: 0; can't be told from chance: 4 "
        "(4 of them hold by the means)."
    ]


def test_what_stays_of_a_gap_is_over_the_same_seeds():
    keys = ("pgd_2", "pgd_least_2", "autoattack_2", "least_2")
    ce = net("resnet18-cifar10-CE", **{key: [0.1, 0.1] for key in keys})
    sl = net("resnet18-cifar10-SL", pgd_2=[0.5, 0.9], pgd_least_2=[0.3, 0.9])
    assert image_claims.gaps([ce, sl]).rows == []
    sl.metrics[0] |= {"autoattack_2": 0.13, "least_2": 0.12}
    (row,) = image_claims.gaps([ce, sl]).rows
    assert [entry.text for entry in row] == [
        "ResNet-18, CIFAR-10", "2/255", "1", "+40.00", "+20.00", "+3.00", "+2.00", "5%",
    ]  # fmt: skip
    sl.metrics[0] |= {"autoattack_2": 0.1 - 2e-5, "least_2": 0.1 + 2e-5}
    assert [entry.text for entry in image_claims.gaps([ce, sl]).rows[0][-3:]] == ["0.00", "0.00", "0%"], "zero has no sign"
    sl.metrics[0]["least_2"] = 0.0
    assert image_claims.gaps([ce, sl]).rows[0][-1].text == "0%", "less than nothing stays"
    sl.metrics[0]["pgd_2"] = 0.109
    assert image_claims.gaps([ce, sl]).rows == [], "of less than a point there is no part that stays"


def test_means_beside_a_difference_are_over_its_seeds():
    """A third seed of one loss alone moves neither the difference nor the means it is told with."""
    readings = [{"+temperature": {"ece": value}} for value in (0.02, 0.021)]
    ce = net("resnet18-cifar10-CE", ece=[0.03, 0.031], least_2=[0.02, 0.021], readings=readings)
    sl = net("resnet18-cifar10-SL", ece=[0.01, 0.011], least_2=[0.04, 0.05], readings=readings)
    before = image_claims.claims([ce, sl]).rows
    ce.metrics[2] = {"ece": 0.9, "least_2": 0.9, "readings": {"+temperature": {"ece": 0.9}}}
    assert len(before) == 4 and image_claims.claims([ce, sl]).rows == before


def test_a_network_without_a_measure_is_neither_in_its_table_nor_in_the_figure():
    some, clean, none = (
        net("n-d-some", accuracy=[0.9, 0.8], pgd_2=[0.3, 0.1]),
        net("n-d-clean", full=False, accuracy=[0.9] * 2),
        net("n-d-no"),
    )
    assert [row[2].text for row in images.noise([some, clean, none]).rows] == ["some", "clean"]
    assert [panel.heading.split()[-1] for panel in images.robustness([some, clean, none]).panels] == ["some"]
    some.metrics[0]["least_2"] = some.metrics[1]["least_2"] = 0.05
    assert list(images.robustness([some]).panels[0].legend) == [(0, "PGD", False), (1, "least over all", True)]


def test_measures_that_some_seeds_lack_say_so():
    ours = net("resnet18-cifar10-SL", accuracy=[0.94, 0.96], worst_4=[1 - 0.9999, 0.0], least_4=[0.0001, 0.0])
    ours.metrics[0]["autoattack_2"] = 0.039
    ours.seconds = {"clean": {0: 1.0, 1: 1.0}, "autoattack": {0: 1.0}}
    shown = {key: ours.show(Column(key, key, percent=True)) for key in ("autoattack_2", "pgd_2", "worst_4", "least_4")}
    assert shown["autoattack_2"] == "3.90, 1 seed" and shown["pgd_2"] == "–"
    assert shown["worst_4"] == shown["least_4"], "the dust of a difference does not change what is shown"
    assert images.cautions([ours]) == ["CIFAR-10 ResNet-18 SL: not yet measured by autoattack at seed 1."]


def test_a_worst_case_measured_later_lowers_the_least_over_all(tmp_path):
    cells = {cell.name: cell for cell in studies.get("table1").cells("paper")}
    found = {"autoattack": {"least_2": 0.039, "least_4": 0.0}, "worst": {"worst_2": 0.035, "worst_4": 0.001}}
    for kind, metrics in found.items():
        Store(tmp_path).write("table1", Result(Job(cells[f"resnet18-cifar10-SL-{kind}"], 0), metrics))
    (ours,) = image_rows.nets(Store(tmp_path).records())
    assert (ours.metrics[0]["least_2"], ours.metrics[0]["least_4"]) == (0.035, 0.0)


def test_the_cells_of_a_network_come_together_by_recipe_and_seed(tmp_path):
    cells = {cell.name: cell for study in ("table1", "beyond_paper") for cell in studies.get(study).cells("paper")}
    write = lambda study, cell, seed, metrics, *rest: Store(tmp_path).write(study, Result(Job(cell, seed), metrics, *rest))
    clean, beyond, other = (cells[f"resnet18-cifar10-SL-{kind}"] for kind in ("clean", "beyond", "from-CE"))
    shorter = Cell(clean.name, {**clean.spec, "recipe": {**clean.spec["recipe"], "epochs": 48}})
    for study in ("table1", "beyond_paper"):  # equal results count once
        write(study, clean, 0, {"accuracy": 0.9, "weights": "a", "readings": {"": {"ece": 0.1}}}, "done", 7.0)
    write("beyond_paper", beyond, 0, {"weights": "a", "readings": {"+asinh": {"ece": 0.05}}}, "done", 2.0)
    write("beyond_paper", other, 0, {"weights": "b", "transfer_2": 0.6}, "done", 3.0)
    write("table1", clean, 1, {"diverged": {"epoch": 4}}, "diverged")
    write("table1", clean, 2, {}, "diverged")
    part = Cell(clean.name, {**clean.spec, "data": {**clean.spec["data"], "train": 5000}})
    write("table1", part, 0, {"accuracy": 0.7, "weights": "d"})
    write("table1", shorter, 0, {"accuracy": 0.8, "weights": "c"})
    full, part, fast = image_rows.nets(Store(tmp_path).records())
    assert full.full and not fast.full and full.line == fast.line == part.line == "resnet18-cifar10-SL"
    assert not part.full and "5000" in part.stands_in and not fast.stands_in, "a part of the data stands in for all of them"
    assert full.by_seed("accuracy") == {0: 0.9} and fast.by_seed("accuracy") == {0: 0.8}
    assert full.by_seed("ece") == {0: 0.1} and full.by_seed("ece+asinh") == {0: 0.05}
    assert full.by_seed("transfer_2_CE") == {0: 0.6}, "by the network that the examples were made on"
    assert full.diverged == {1: {"epoch": 4}, 2: {}} and not fast.diverged
    assert full.seconds == {"clean": {0: 7.0}, "beyond": {0: 2.0}, "from-CE": {0: 3.0}}
    assert "90.00" in [entry.text for row in images.noise([full]).rows for entry in row], "other seeds stand where one diverged"
    said = images.cautions([full])
    assert sum("seed 1: diverged at epoch 4" in line for line in said) == 1
    assert sum("seed 2: diverged" in line for line in said) == 1
    assert sum("at seed 0 are of networks trained more than once" in line for line in said) == 1


def test_a_pair_of_two_batch_sizes_stands_together(tmp_path):
    cells = {cell.name: cell for cell in studies.get("table1").cells("paper")}
    lines = ["wrn16_10-cifar100-CE", "wrn16_10-cifar100-SL-b128", "resnet18-cifar10-SLr1"]
    for line in reversed(lines):
        Store(tmp_path).write("table1", Result(Job(cells[f"{line}-clean"], 0), {"accuracy": 0.8}))
    found = image_rows.nets(Store(tmp_path).records())
    assert [one.line for one in found] == lines
    assert [(ce.line, sl.line) for ce, sl in image_rows.pairs(found)] == [(lines[0], lines[1])]
    same = [net(f"wrn16_10-cifar100-{line}", accuracy=[0.8, 0.8]) for line in ("CE-b128", "SL-b128")]
    assert [(ce.line, sl.line) for ce, sl in image_rows.pairs([*found, same[0]])] == [
        (lines[0], lines[1]), (same[0].line, lines[1])
    ]  # fmt: skip
    third = net("wrn16_10-cifar100-SL", accuracy=[0.8, 0.8])
    full = [net(lines[0], accuracy=[0.8, 0.8]), *same, third]
    tried = [row[0].text for row in image_claims.claims(full).rows if "SL above CE" in row[1].text]
    pair = "WRN-16-10, CIFAR-100, "
    assert tried == [pair + "CE (.01, 32), SL (.1, 128)", pair + "both (.1, 128)", pair + "both (.01, 32)"]
    coding = [net(f"wrn16_10-cifar10-{line}", accuracy=[0.9, 0.9]) for line in ("CE", "SL-b128")]
    assert image_rows.pairs(coding) == [], "beyond Table 1, only what was trained at the same batch size is a pair"


def test_attack_losses_stand_below_each_other():
    ce = net("resnet18-cifar10-CE", pgd_ce_2=[0.1, 0.1], pgd_least_2=[0.1, 0.1], pgd_least_4=[0.0, 0.0])
    sl = net("resnet18-cifar10-SL", pgd_ce_2=[0.2, 0.2], pgd_residual_2=[0.3, 0.3], pgd_least_2=[0.2, 0.2])
    table = images.attack_losses([ce, sl])
    assert list(table.columns)[3:] == ["it climbs", "2/255", "4/255"]
    climbed = [(row[0].text, row[3].text.partition(",")[0], row[4].text) for row in table.rows]
    assert climbed == [
        ("CIFAR-10, ResNet-18, CE", "ce", "10.00 (0.00)"), ("", "the least over these", "10.00 (0.00)"),
        ("CIFAR-10, ResNet-18, SL", "residual", "30.00 (0.00)"), ("", "ce", "20.00 (0.00)"),
        ("", "the least over these", "20.00 (0.00)"),
    ]  # fmt: skip


def test_the_papers_value_stands_below_ours_once():
    ours = net("resnet18-cifar10-SL", accuracy=[0.94, 0.96], autoattack_4=[0.0, 0.001])
    first, second = images.table_1([ours]).rows
    assert first[5].text == "95.00 (1.41)" and second[5].text == "95.04 (0.07)" and second[6].text == "0*"
    shorter = net("resnet18-cifar10-SL", full=False, accuracy=[0.94, 0.96], autoattack_4=[0.0, 0.0])
    for found in ([ours, shorter], [shorter]):
        assert [row[3].text for row in images.table_1(found).rows] == [found[0].trained, images.PAPER]
    shorter.metrics[0]["pgd_2"] = 0.4
    assert len(images.table_1([ours, shorter]).rows) == 3, "it has a measure that ours lacks"
    assert len(images.noise([ours, shorter]).rows) == 2, "but none of this table"
    del shorter.metrics[0]["pgd_2"]
    lost = image_rows.Net("resnet18-cifar10-SL", ours.recipe, True, diverged={0: {}})
    assert shorter.trained in [row[3].text for row in images.table_1([lost, shorter]).rows]
    other = net("resnet18-cifar10-OH1", full=False, accuracy=[0.94, 0.96])
    assert [row[3].text for row in images.codings([ours, other, shorter]).rows] == [
        other.trained, images.PAPER, ours.trained, images.PAPER, shorter.trained
    ]  # fmt: skip
    shorter.stands_in = "a small network"
    assert images.codings([shorter]).rows == [], "simplex alone compares nothing"
    other = net("resnet18-cifar10-OH1", full=False, accuracy=[0.94, 0.96])
    other.stands_in = "a small network"
    assert [row[2].text for row in images.codings([shorter, other]).rows] == ["one-hot (1, 1)", "SL"]


def test_tables_wider_than_long_are_turned():
    ours = net("resnet18-cifar10-SL", accuracy=[0.94, 0.96], autoattack_4=[0.0, 0.001], pgd_2=[0.3, 0.4])
    table = images.table_1([ours])
    assert list(table.columns) == ["ResNet-18, CIFAR-10", "SL", "the paper"]
    assert [[entry.text for entry in row] for row in table.rows] == [
        ["trained", "200 epochs, (0.01, 32)", "200 epochs"],
        ["seeds", "2", "5"],
        ["clean", "95.00 (1.41)", "95.04 (0.07)"],
        ["PGD 2/255", "35.00 (7.07)", "30.53 (0.92)"],
        ["AutoAttack 4/255", "0.05 (0.07)", "0*"],
    ]


def test_networks_of_the_codings_stand_in_their_own_table_in_its_order_diverged_or_not():
    sl = net("resnet18-cifar10-SL", accuracy=[0.95, 0.95], ece=[0.01, 0.01], nc1=[0.1, 0.1])
    one_hot = net("resnet18-cifar10-OH1", accuracy=[0.94, 0.94])
    lost = [image_rows.Net(f"resnet18-cifar10-{loss}-b128", "", True, diverged={0: {}}) for loss in ("SL", "OH1")]
    ours = lambda make: [row[2].text for row in make([sl, *lost, one_hot]).rows if row[0].text]
    assert ours(images.codings) == ["one-hot (1, 1)", "SL", "one-hot (1, 1) (.1, 128)", "SL (.1, 128)"]
    assert [row[5].text for row in images.codings(lost).rows if row[0].text] == ["diverged", "diverged"]
    for make in (images.table_1, images.noise, images.calibration):
        assert make([sl, *lost, one_hot]).rows == make([sl]).rows
    assert "diverged" not in str(images.beyond([sl, *lost]).rows)


def test_losses_for_many_classes_stand_last_in_the_table_of_codings_and_in_no_other():
    sl = net("resnet50-cifar100-SL", accuracy=[0.76] * 2, ece=[0.08] * 2)
    own = [net(f"resnet50-cifar100-{loss}", full=False, accuracy=[0.7] * 2, ece=[0.1] * 2) for loss in ("squentropy", "OHK")]
    assert [row[2].text for row in images.codings([*own, sl]).rows if row[0].text] == ["SL", "one-hot (K/5, 5)", "squentropy"]
    for make in (images.table_1, images.noise, images.calibration):
        assert make([*own, sl]).rows == make([sl]).rows


def test_adversarial_training_has_its_own_tables_and_the_papers_order_is_tried_at_any_length():
    ce, sl = (
        net(f"resnet18-cifar10-{loss}-adv7", full=False, accuracy=[0.8] * 2, ece=[0.1] * 2, autoattack_8=left)
        for loss, left in (("CE", [0.42, 0.43]), ("SL", [0.44, 0.451]))
    )
    plain = net("resnet18-cifar10-SL", accuracy=[0.95] * 2, ece=[0.01] * 2)
    headings = [table.heading for table in images.apart(images.calibration, [plain, ce, sl])]
    assert headings == ["Calibration: ResNet-18, CIFAR-10", "Calibration: ResNet-18, CIFAR-10, PGD-7"]
    assert images.table_1([plain, ce, sl]).rows == images.table_1([plain]).rows
    told = {row[1].text: (row[0].text, row[3].text) for row in image_claims.claims([ce, sl]).rows}
    assert told["AutoAttack at 8/255: SL above CE"] == (f"ResNet-18, CIFAR-10, PGD-7 ({sl.trained})", "holds")
    ce.stands_in = sl.stands_in = "a small network"
    assert not any("AutoAttack" in row[1].text for row in image_claims.claims([ce, sl]).rows)


def test_the_papers_order_is_tried_on_shorter_trainings_until_a_full_pair_has_the_measure():
    def pair(**how):
        return [net(f"resnet18-cifar10-{loss}-adv7", **how, accuracy=[0.8, 0.82]) for loss in ("CE", "SL")]

    short, full = pair(full=False, autoattack_8=[0.4, 0.41]), pair()
    for one in short:
        one.recipe = "48 epochs, (0.01, 32)"
    tried = lambda: [row[0].text for row in image_claims.claims(full + short).rows if row[1].text.startswith("AutoAttack")]
    assert tried() == ["ResNet-18, CIFAR-10, PGD-7 (48 epochs, (0.01, 32))"]
    assert [row[0].text for row in image_claims.claims(full + short).rows if "clean" in row[1].text] == [
        "ResNet-18, CIFAR-10, PGD-7"
    ]
    for one in full:
        for metrics in one.metrics.values():
            metrics["autoattack_8"] = 0.4
    assert tried() == ["ResNet-18, CIFAR-10, PGD-7"]


def test_cross_entropy_at_another_learning_rate_is_another_pair():
    full = [net(f"wrn16_10-cifar100-{end}", accuracy=[0.7, 0.8]) for end in ("CE", "SL-b128")]
    short = [net(f"wrn16_10-cifar100-{end}", full=False, accuracy=[0.7, 0.8]) for end in ("CE", "CE-b128", "SL-b128")]
    for one in short:
        one.recipe = "48 epochs, (0.1, 128)"
    tried = [row[0].text for row in image_claims.claims(full + short).rows if row[1].text.startswith("clean accuracy")]
    assert tried == [
        "WRN-16-10, CIFAR-100, CE (.01, 32), SL (.1, 128)", "WRN-16-10, CIFAR-100 (48 epochs, (0.1, 128))",
    ]  # fmt: skip


def test_codings_learning_rates_and_fits_are_claims_too():
    """Of networks trained as the paper trains them; a coding or a rate without the other is none."""
    ends = {"SL": [0.78, 0.782], "OH5": [0.77, 0.771], "OH5-b128": [0.79, 0.793], "CE-b128": [0.8, 0.8]}
    found = [net(f"wrn16_10-cifar100-{end}", accuracy=values) for end, values in ends.items()]
    told = {row[1].text: (row[0].text, row[3].text) for row in image_claims.claims(found).rows if "clean" in row[1].text}
    assert told == {
        "clean accuracy: SL below one-hot (5, 15)": ("WRN-16-10, CIFAR-100", "does not hold"),
        "clean accuracy: one-hot (5, 15) (.1, 128) below one-hot (5, 15)": ("WRN-16-10, CIFAR-100", "does not hold"),
    }
    found[1].metrics = {seed + 9: metrics for seed, metrics in found[1].metrics.items()}  # no seed in common
    assert not any("clean" in row[1].text for row in image_claims.claims(found).rows)
    for one in found:
        one.full = False
    assert not any("clean" in row[1].text for row in image_claims.claims(found).rows)
    ones = [net("resnet18-cifar10-SL", accuracy=[0.95, 0.951]), net("resnet18-cifar10-SLr1", accuracy=[0.94, 0.942])]
    (row,) = [row for row in image_claims.claims(ones).rows if "clean" in row[1].text]
    assert [row[1].text, row[3].text] == ["clean accuracy: SL above SL, radius 1", "holds"]


@pytest.mark.parametrize(("right", "told"), [(0.98, "holds"), (0.999, "does not hold"), (None, "holds")])
def test_what_is_said_not_to_fit_does_not(right, told):
    one = net("wrn16_10-cifar10-OH1", **({} if right is None else {"train_accuracy": [right] * 2}))
    one.diverged = {0: {"epoch": 0}} if right is None else {}
    (row,) = image_claims.claims([one]).rows
    assert [row[1].text, row[3].text] == ["training images are not fit", told]
    assert not image_claims.claims([net("wrn16_10-cifar10-SL", train_accuracy=[0.9] * 2)]).rows, "the paper marks it not"


def test_networks_attacked_in_other_modes_are_no_pair():
    found = []
    for mode in ({}, {"mode": "eval"}):
        recipe = {"epochs": 200, "lr": 0.01, "batch_size": 32, "adversary": {"steps": 3, **mode}}
        for loss in ("CE", "SL"):
            one = net(f"resnet18-cifar10-{loss}-adv3", accuracy=[0.8, 0.8])
            one.recipe = image_rows.trained(recipe)
            found.append(one)
    assert [one.epochs for one in found[1:3]] == ["200 epochs", "200 epochs, PGD in eval mode"]
    assert image_rows.pairs(found) == [(found[0], found[1]), (found[2], found[3])]
    named = {row[0].text for row in image_claims.claims(found).rows if "to within" in row[1].text}
    assert named == {
        f"ResNet-18, CIFAR-10, {loss} PGD-3{end}"
        for loss in ("CE", "SL") for end in ("", " (200 epochs, PGD in eval mode, (0.01, 32))")
    }  # fmt: skip


def test_under_the_fast_recipe_every_network_of_table_1_is_in_its_table():
    """There, names have no batch size: SL of WRN-16-10 on CIFAR-100 goes by the name of a network of the codings."""
    fast, coding = (net("wrn16_10-cifar100-SL", full=False, **{"accuracy": [0.7, 0.7], "noise_0.1": [0.6, 0.6]}) for _ in "ab")
    fast.recipe, coding.recipe = "48 epochs, (0.4, 256)", "48 epochs, (0.01, 32)"
    for make in (images.table_1, images.noise):
        assert [row[3].text for row in make([fast, coding]).rows if row[0].text] == [fast.recipe]


def test_long_tables_are_one_for_each_network():
    lines = [f"{name}-cifar10-{loss}" for name in ("resnet18", "wrn16_10") for loss in ("CE", "SL")]
    keys = ("accuracy", "noise_0.1", *(f"{name}_{level}" for name in ("pgd", "worst") for level in (2, 4)))
    found = [net(line, **{key: [0.9, 0.9] for key in keys}) for line in lines]
    first, second = images.apart(images.table_1, found)
    assert (first.columns[0], second.columns[0]) == ("ResNet-18, CIFAR-10", "WRN-16-10, CIFAR-10")
    assert second.heading == "Accuracy and robustness: WRN-16-10, CIFAR-10" and second.caption and not first.caption
    (noise,) = images.apart(images.noise, found)
    assert noise.heading == "Gaussian noise" and noise.caption


def test_pages_are_filled_from_results_of_whole_data_sets_only(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "docs"))
    pages = importlib.import_module("image_tables")
    monkeypatch.setattr(pages, "RESULTS", tmp_path / "images")
    for scale, accuracy in (("paper", 0.9), ("laptop", 0.1)):
        cells = {cell.name: cell for cell in studies.get("table1").cells(scale)}
        result = Result(Job(cells["resnet18-cifar10-CE-clean"], 0), {"accuracy": accuracy, "weights": "a"})
        Store(tmp_path / "images").write("table1", result)
    pages.found.cache_clear()
    page = pages.TABLES["images-table1"]()
    assert "| CIFAR-10 | ResNet-18 | CE | 200 epochs, (0.01, 32) | 1 | 90.00 |" in page
    assert "| the paper, 200 epochs | 5 | 95.15 (0.11) |" in page and "10.00" not in page
    assert "torch" in pages.TABLES["images-runs"]() and "| 90.00 |" in pages.TABLES["images"]()
    pages.found.cache_clear()


def costly(line, training, measuring):
    ours = net(line, accuracy=[0.9, 0.9])
    for metrics in ours.metrics.values():
        metrics["timings"] = {"clean": {"training": training}}
    kinds = ("worst", "pgd", "autoattack")
    ours.seconds = {kind: {0: measuring, 1: measuring} for kind in kinds} | {"clean": dict.fromkeys((0, 1), training + 10)}
    return ours


def test_cost_is_projected_from_complete_networks():
    sl, ce = costly("resnet18-cifar10-SL", 250.0, 110.0), costly("resnet18-cifar10-CE", 250.0, 40.0)
    table = image_cost.cost([sl])
    assert [entry.text for entry in table.rows[0][4:]] == ["250", "10", "110", "110", "110", "590"]
    assert table.caption.endswith("0.8 hours for 1 of its 8 networks; the others are not complete yet.")  # five times 590 s
    # measures 470 s a pair: 2 WRNs at (2.2 x 500 + 3.9 x 470) s, ResNet-50 at (3.3 x 500 + 2.0 x 470) s
    hours = 5 * (500 + 470 + 2 * (2.2 * 500 + 3.9 * 470) + 3.3 * 500 + 2.0 * 470) / 3600
    assert f"1.3 hours for 2 of its 8 networks; about {hours:.1f} for all" in image_cost.cost([ce, sl]).caption
    sl.metrics[0]["timings"]["clean"]["training"] = 400.0  # a busy chip
    sl.seconds["clean"][0], sl.seconds["pgd"][1] = 415.0, 300.0
    assert [entry.text for entry in image_cost.cost([sl]).rows[0][4:]] == ["250", "10", "110", "110", "110", "590"]
    for metrics in ce.metrics.values():
        del metrics["timings"]
    assert [entry.text for entry in image_cost.cost([ce]).rows[0][4:7]] == ["–", "260", "40"], "training is not known"
    for metrics in ce.metrics.values():
        metrics["timings"] = {"clean": {}}  # as of a result without them
    assert [entry.text for entry in image_cost.cost([ce]).rows[0][4:7]] == ["–", "260", "40"]
    del sl.seconds["pgd"]
    assert "hours" not in image_cost.cost([sl]).caption and image_cost.cost([sl]).rows[0][7].text == "–"


def test_figures_are_drawn_of_what_is_there(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "docs" / "figures"))
    drawing = importlib.import_module("images")
    table = {"count": [0, 1, 9], "confidence": [0.0, 0.5, 0.9], "accuracy": [0.0, 1.0, 0.8]}
    other = {"count": [0, 0, 10], "confidence": [0.0, 0.0, 0.8], "accuracy": [0.0, 0.0, 0.7]}
    both = [net(f"resnet18-cifar10-{loss}", accuracy=[0.9, 0.9], pgd_2=[0.3, 0.1]) for loss in ("CE", "SL")]
    for one in both:
        for metrics, bins in zip(one.metrics.values(), (table, other), strict=True):
            metrics["readings"] = {"": {"ece": 0.02, "reliability": bins}}
    merged = drawing.bins(both[0], "")
    assert merged.count.tolist() == [0, 1, 10] and merged.accuracy.tolist() == pytest.approx([0, 1, (7.2 + 7) / 19])
    pair = both
    assert [axes.get_title() for axes in drawing.reliability(pair).axes[:2]] == [
        "CE, as trained\nECE 0.0200, accuracy 0.9000", "SL, as trained\nECE 0.0200, accuracy 0.9000",
    ]  # fmt: skip
    left, right = drawing.robustness(pair).axes
    assert [text.get_text() for text in right.texts] == ["20.0", "20.0"]
    assert left.lines[0].get_ydata() == pytest.approx([90, 20])
    shorter = [net(f"resnet18-cifar10-{loss}", full=False, accuracy=[0.8] * 2, pgd_2=[0.1] * 2) for loss in ("CE", "SL")]
    for one in shorter:
        one.recipe = "48 epochs, (0.01, 32)"
    whose = lambda: drawing.drawn(both + shorter, drawing.robustness)["resnet18-cifar10"].axes[0].get_title()
    assert whose() == "ResNet-18, CIFAR-10: by radius"
    del both[1].metrics[0]["pgd_2"], both[1].metrics[1]["pgd_2"]
    assert drawing.robustness(pair) is None and whose() == "ResNet-18, CIFAR-10, 48 epochs: by radius"
    assert drawing.drawn(both, drawing.robustness) == {} and list(drawing.drawn(both, drawing.reliability)) == [
        "resnet18-cifar10"
    ]


def test_only_what_was_run_as_the_paper_does_stands_beside_it():
    reports = gather(Path(__file__).parents[1] / "results" / "images")
    found = {report.settings: report for report in reports if report.header.study == "table1"}
    (beside,) = (table for table in found.pop("recipe paper").tables if table.heading == "Beside the paper")
    assert beside.rows and all(row[2].value is not None for row in beside.rows)
    (short,) = found.values()
    assert short.settings == "recipe short" and "Beside the paper" not in {table.heading for table in short.tables}
