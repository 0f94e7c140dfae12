"""What the pages of the image studies show: tables, claims, the paper's values, costs."""

import importlib
from pathlib import Path

from squareloss.lab import studies
from squareloss.lab.report.views import image_rows, images
from squareloss.lab.runs import Job, Result, Store


def test_views_of_nothing_and_of_little_are_empty_tables():
    assert not any(make([]).rows for makers in images.VIEWS_OF.values() for make in makers)
    assert images.tally([]) == [] == images.cautions([]) and not images.robustness([]).panels


def net(line, full=True, **metrics):
    seeds = {seed: {key: values[seed] for key, values in metrics.items()} for seed in range(2)}
    return image_rows.Net(line, "200 epochs, (0.01, 32)", full, metrics=seeds)


def test_claims_follow_the_numbers():
    ce = net("resnet18-cifar10-CE", accuracy=[0.951, 0.952], ece=[0.03, 0.031], worst_2=[0.02, 0.021])
    attacks = {"softmax_probability": 0.2, "log_probability": 0.3, "angle": 0.25, "residual": 0.5}
    attacks = {f"pgd_{name}_2": [value, value] for name, value in attacks.items()}
    sl = net("resnet18-cifar10-SL", accuracy=[0.94, 0.941], ece=[0.01, 0.011], worst_2=[0.019, 0.022], **attacks)
    told = {(row[0].text, row[1].text): row[3].text for row in images.claims([ce, sl]).rows}
    where, pair = "ResNet-18, CIFAR-10, {}", "ResNet-18, CIFAR-10"
    assert told[where.format("CE"), "accuracy 95.15 (0.11), to within half a point"] == "holds"
    assert told[where.format("SL"), "accuracy 95.04 (0.07), to within half a point"] == "does not hold"
    assert told[pair, "clean accuracy: SL below CE"] == "holds"
    assert told[pair, "ECE of SL below half of CE's, as trained"] == "holds"
    assert told[where.format("SL"), "attacks at 2/255: angle far better than square loss"] == "holds"
    assert told[where.format("SL"), "attacks at 2/255: L1, softmax_probability, is the best"] == "holds"
    assert told[pair, "SL stands more at 2/255, worst case (not in the paper)"] == "not told apart"
    # what asks more than the paper does is no claim of it
    assert images.tally([ce, sl]) == ["Claims of the paper that could be tried: 7. Hold here: 6; do not: 1; not told apart: 0."]
    weaker = net("resnet18-cifar10-SL", **{**attacks, "pgd_angle_2": [0.1, 0.1]})
    (_, best) = images.claims([weaker]).rows
    assert best[3].text == "does not hold"


def test_the_papers_value_stands_below_ours_once():
    ours = net("resnet18-cifar10-SL", accuracy=[0.94, 0.96], autoattack_4=[0.0, 0.001])
    first, second = images.table_1([ours]).rows
    assert first[5].text == "95.00 (1.41)" and second[5].text == "95.04 (0.07)" and second[6].text == "0*"
    shorter = net("resnet18-cifar10-SL", full=False, accuracy=[0.94, 0.96], autoattack_4=[0.0, 0.0])
    assert len(images.table_1([ours, shorter]).rows) == 3 and len(images.table_1([shorter]).rows) == 2
    shorter.stands_in = "a small network"
    assert [row[2].text for row in images.codings([shorter]).rows] == ["SL"]


def test_tables_wider_than_long_are_turned():
    ours = net("resnet18-cifar10-SL", accuracy=[0.94, 0.96], autoattack_4=[0.0, 0.001], pgd_2=[0.3, 0.4])
    table = images.table_1([ours])
    assert list(table.columns) == ["measure", "CIFAR-10, ResNet-18, SL", images.PAPER]
    assert [[entry.text for entry in row] for row in table.rows] == [
        ["trained", "200 epochs, (0.01, 32)", images.PAPER],
        ["seeds", "2", "5"],
        ["clean", "95.00 (1.41)", "95.04 (0.07)"],
        ["PGD 2/255", "35.00 (7.07)", "30.53 (0.92)"],
        ["AutoAttack 4/255", "0.05 (0.07)", "0*"],
    ]


def test_pages_are_filled_from_results_of_whole_data_sets_only(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "docs"))
    pages = importlib.import_module("image_tables")
    monkeypatch.setattr(pages, "RESULTS", tmp_path / "images")
    pages.found.cache_clear()
    assert {made() for name, made in pages.TABLES.items() if name != "images-figures"} == {"Not run yet.", "Nothing yet.", ""}
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


def test_cost_is_projected_from_complete_networks():
    ours = net("resnet18-cifar10-SL", accuracy=[0.9, 0.9])
    for metrics in ours.metrics.values():
        metrics["timings"] = {"clean": {"training": 250.0}}
    ours.seconds = {kind: {0: 110.0, 1: 110.0} for kind in ("worst", "pgd", "autoattack")} | {"clean": {0: 260.0, 1: 260.0}}
    table = images.cost([ours])
    assert [row[1].text for row in table.rows[1:]] == ["250", "10", "110", "110", "110", "590"]
    assert "0.8 hours for 1 of its 8 networks" in table.caption  # five times 590 seconds
