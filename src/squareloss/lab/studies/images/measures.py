"""What is measured of a trained network: accuracy, calibration by several readings, noise, PGD by loss, worst case, AutoAttack.

Each measure is a function of the networks it needs, its settings (the "measure" of the cell's spec), the seed, and notes, which
keep what is done if the machine is taken away in the middle. Shares are of the test images, between 0 and 1.
"""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from squareloss import metrics, simplex
from squareloss.attacks.autoattack import autoattack
from squareloss.attacks.noise import gaussian_noise
from squareloss.attacks.pgd import pgd
from squareloss.attacks.results import AttackResult
from squareloss.attacks.worst_case import worst_case
from squareloss.calibrators import Asinh, Calibrator, Isotonic
from squareloss.codings import Coding
from squareloss.lab.data.dataset import drawn, take
from squareloss.lab.runs.store import write_atomically
from squareloss.lab.studies.common import Json, bins, fit_temperature, raw_eta, rounded, thinned
from squareloss.lab.studies.images.networks import Trained
from squareloss.lab.training.loop import outputs_of

_OF_SOFTMAX = ("ce", "margin", "angle", "dlr")
_OF_CODINGS = ("softmax_probability", "log_probability", "residual", "ce", "margin", "angle", "dlr")


class Notes:
    """What a job has found so far, in its scratch folder: a job that is started again does only the rest.

    A measure sets `total`, how many things there are to find.

    Arguments:
        folder: the scratch folder of the job.
        report: called with the share that is done.
    """

    def __init__(self, folder: Path, report: Callable[[float], None] = lambda share: None) -> None:
        self.folder, self.total, self.report = folder, 1, report
        self.path = folder / "notes.json"
        self.found: dict[str, Json] = json.loads(self.path.read_bytes()) if self.path.exists() else {}

    def once(self, name: str, find: Callable[[], Json]) -> Json:
        """What `find` gives, with the seconds it took; from the notes if it was found before."""
        if name not in self.found:
            began = time.perf_counter()
            found = find()
            self.found[name] = {**found, "seconds": round(time.perf_counter() - began, 3)}
            write_atomically(self.path, json.dumps(self.found).encode())
        self.part(0.0)
        return self.found[name]

    def part(self, share: float) -> None:
        """Report that of what is being found, beyond what was found, a share is done."""
        self.report(min(1.0, (len(self.found) + share) / self.total))


def clean(net: Trained, settings: Mapping[str, Any], seed: int, notes: Notes) -> Json:
    """Accuracy, calibration as trained and after a temperature, and accuracy under noise, on the whole test set."""
    notes.total = 1 + len(settings["noise"])
    read = notes.once("readings", lambda: _readings(net, notes))
    noise = [notes.once(f"noise {std:g}", partial(_noise, net, std, seed)) for std in settings["noise"]]
    under = [one["accuracy"] for one in noise]
    curve = net.facts["curve"]
    return {
        "accuracy": read["accuracy"],
        "train_accuracy": rounded(curve[-1]["train_accuracy"]),
        "temperature": read["temperature"],
        "readings": read["readings"],
        "noise": {"std": settings["noise"], "accuracy": under},
        **{f"noise_{std:g}": value for std, value in zip(settings["noise"], under, strict=True)},
        "curve": thinned(curve, most=50, digits=6),
        "side_by_side": net.facts["side_by_side"],
        "timings": {
            **{name: rounded(net.facts[key]) for name, key in (("training", "seconds"), ("training_wall", "wall"))},
            "calibration": read["seconds"],
            "noise": round(sum(one["seconds"] for one in noise), 3),
        },
    }


def _readings(net: Trained, notes: Notes) -> Json:
    outputs, labels = _outputs(net, notes), net.data.test.y
    fit = lambda rows: fit_temperature(net.loss, outputs[rows], labels[rows])[0]
    softened, fitted = crossed(net.loss.link.scores(outputs), labels, fit)
    own = _reading(net.loss.probabilities(outputs), labels)
    own |= {name: rounded(value) for name, value in raw_eta(net.loss, outputs, labels).items()}
    return {
        "accuracy": float((net.loss.link.predict(outputs) == labels).double().mean()),
        "temperature": sum(float(one.state()["temperature"]) for one in fitted) / 2,
        "readings": {"": own, "+temperature": _reading(softened, labels)},
    }


def more_readings(net: Trained, settings: Mapping[str, Any], seed: int, notes: Notes) -> Json:
    """Calibration if eta is clipped and renormalised instead of projected, by `Asinh`, and by isotonic regression."""
    outputs, labels = _outputs(net, notes), net.data.test.y
    scores = net.loss.link.scores(outputs)
    found = {}
    for name, kind in {"asinh": Asinh, "isotonic": Isotonic}.items():
        probabilities, _ = crossed(scores, labels, lambda rows, kind=kind: kind().fit(scores[rows], labels[rows]))  # type: ignore[misc]
        found[f"+{name}"] = _reading(probabilities, labels)
    if isinstance(net.loss.link, Coding):
        found["+renormalised"] = _reading(simplex.clip(net.loss.link.eta(outputs)), labels)
    return {"readings": found}


def _outputs(net: Trained, notes: Notes) -> Tensor:
    return outputs_of(net.network, net.data.test.x, preprocess=net.model.preprocess, progress=notes.part).cpu()


def crossed(scores: Tensor, labels: Tensor, fit: Callable[[Tensor], Calibrator]) -> tuple[Tensor, list[Calibrator]]:
    """Probabilities (N, K), each half of the test set by the calibrator fitted on the rows of the other half, and both.

    So training keeps all its images, and no image is read by a calibrator that has seen its label.
    """
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0)).to(labels.device)
    halves = (order[: len(order) // 2], order[len(order) // 2 :])
    fitted, probabilities = [], torch.empty_like(scores)
    for mine, other in (halves, halves[::-1]):
        calibrator = fit(other)
        probabilities[mine] = calibrator.transform(scores[mine])
        fitted.append(calibrator)
    return probabilities, fitted


def _reading(probabilities: Tensor, labels: Tensor) -> Json:
    evaluation = metrics.evaluate(probabilities, labels, bootstrap=0)
    return {
        **{name: rounded(float(evaluation[name])) for name in ("ece", "smooth_ece", "classwise_ece", "brier", "nll")},
        "reliability": bins(probabilities, labels),
    }


def _noise(net: Trained, std: float, seed: int) -> Json:
    x, y = points(net)
    return {"accuracy": gaussian_noise(net.model, x, y, std, channel_std=net.data.std, seed=seed).accuracy[0]}


def under_pgd(net: Trained, settings: Mapping[str, Any], seed: int, notes: Notes) -> Json:
    """PGD at each radius by every loss, each on all images by itself; and per image the least over the losses.

    "pgd_2" is what the paper reports: by cross-entropy, or for codings by its L1, softmax_probability.
    """
    coding = net.loss.link if isinstance(net.loss.link, Coding) else None
    names = _OF_SOFTMAX if coding is None else _OF_CODINGS
    x, y = points(net, settings["points"])
    notes.total = len(names) * len(settings["levels"])
    found: Json = {"points": len(y), "timings": dict.fromkeys(names, 0.0)}
    for level in settings["levels"]:
        broken = torch.zeros(len(y), dtype=torch.bool)
        for name in names:
            attack = partial(pgd, net.model, x, y, level / 255, loss=name, steps=settings["steps"], coding=coding, seed=seed)
            one = notes.once(f"{name} {level}", partial(_record, attack))
            found[f"pgd_{name}_{level}"] = one["robust"]
            found["timings"][name] = round(found["timings"][name] + one["seconds"], 3)
            broken |= _unpacked(one["broken"], len(y))
        found[f"pgd_{level}"] = found[f"pgd_{'ce' if coding is None else 'softmax_probability'}_{level}"]
        found[f"pgd_least_{level}"] = 1 - float(broken.double().mean())
    return found


def under_worst_case(net: Trained, settings: Mapping[str, Any], seed: int, notes: Notes) -> Json:
    """The worst case over the losses, targets, scales and starts of `attacks.worst_case`, at each radius."""
    x, y = points(net, settings["points"])
    notes.total = len(settings["levels"])
    found: Json = {"points": len(y), "timings": {}}
    for level in settings["levels"]:
        attack = partial(_worst, net, x, y, level / 255, seed)
        one = notes.once(f"worst {level}", partial(_record, attack))
        found[f"worst_{level}"] = one["robust"]
        found["timings"][f"{level}/255"] = one["seconds"]
        found[f"worst_passes_{level}"] = one["passes"]
    return found


def under_autoattack(net: Trained, settings: Mapping[str, Any], seed: int, notes: Notes) -> Json:
    """AutoAttack on the scores and, of codings, on eta; and per image the least over these and the worst case."""
    x, y = points(net, settings["points"])
    coded = isinstance(net.loss.link, Coding)
    notes.total = (2 + coded) * len(settings["levels"])
    found: Json = {"points": len(y), "timings": {}}
    for level in settings["levels"]:
        # files to go on from in the middle of a long one
        paths = [notes.folder / f"autoattack-{level}{part}.safetensors" for part in ("", "-eta", "-eta-rest")]
        attack = partial(autoattack, net.model, x, y, level / 255, attacks=settings["attacks"], seed=seed, save=paths[0])
        parts = {"autoattack": notes.once(f"autoattack {level}", partial(_record, attack))}
        if coded:
            again = partial(_on_eta, net, x, y, level / 255, settings["attacks"], seed, parts["autoattack"], paths[1:])
            parts["autoattack_eta"] = notes.once(f"autoattack on eta {level}", again)
        for path in paths:
            path.unlink(missing_ok=True)
        broken = torch.stack([_unpacked(part["broken"], len(y)) for part in parts.values()]).any(0)
        last = notes.once(f"least {level}", partial(_left, net, x, y, (~broken).nonzero().squeeze(1), level / 255, seed))
        found |= {f"{name}_{level}": part["robust"] for name, part in parts.items()}
        found[f"least_{level}"] = last["standing"] / len(y)
        found[f"autoattack_passes_{level}"] = parts["autoattack"]["passes"]
        found["timings"] |= {f"{name} {level}/255": part["seconds"] for name, part in {**parts, "least": last}.items()}
    return found


def _on_eta(
    net: Trained, x: Tensor, y: Tensor, eps: float, names: Sequence[str], seed: int, scores: Json,
    paths: Sequence[Path | None] = (None, None),
) -> Json:  # fmt: skip
    """AutoAttack on eta. But for its first part, cross-entropy, it knows no scale: what the others broke on scores is broken.

    So cross-entropy climbs eta on all images, and the other parts run only where cross-entropy on the scores left them nothing.
    """

    def run(rows: Tensor | slice, parts: Sequence[str], save: Path | None) -> Tensor:
        return _quietly(partial(autoattack, net.eta, x[rows], y[rows], eps, attacks=parts, seed=seed, save=save)).broken

    first, rest = ([name for name in names if (name == "apgd-ce") == ce] for ce in (True, False))
    by_ce, broken = (_unpacked(scores[key], len(y)).to(x.device) for key in ("by_ce", "broken"))
    broken = broken & ~by_ce | (run(slice(None), first, paths[0]) if first else False)
    left = (by_ce & ~broken).nonzero().squeeze(1)
    if rest and len(left):
        broken[left] = run(left, rest, paths[1])
    return {"robust": 1 - float(broken.double().mean()), "broken": _packed(broken.cpu())}


def _worst(net: Trained, x: Tensor, y: Tensor, eps: float, seed: int) -> AttackResult:
    return worst_case(net.model, x, y, eps, report=False, seed=seed).result


def _left(net: Trained, x: Tensor, y: Tensor, rows: Tensor, eps: float, seed: int) -> Json:
    """How many of some images the worst case leaves."""
    if not len(rows):
        return {"standing": 0}
    rows = rows.to(x.device)
    return {"standing": int((~_worst(net, x[rows], y[rows], eps, seed).broken).sum())}


def points(net: Trained, most: int | None = None) -> tuple[Tensor, Tensor]:
    """Test images (n, C, H, W) in [0, 1] and labels (n,) on the network's device: all, or a draw, always the same."""
    device, test = next(net.network.parameters()).device, net.data.test
    x, y = test if most is None else take(test, drawn(test.n, most))
    return x.to(device).float() / 255, y.to(device)


def _record(attack: Callable[[], AttackResult]) -> Json:
    """What is noted of an attack: the share that stands, the passes, and in hexadecimal which broke, and which by APGD's CE."""
    result = _quietly(attack)
    by_ce, broken = torch.tensor([name == "apgd-ce" for name in result.attack]), result.broken.cpu()
    return {"robust": result.robust_accuracy, "passes": result.passes, "broken": _packed(broken), "by_ce": _packed(by_ce)}


def _quietly(attack: Callable[[], AttackResult]) -> AttackResult:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="the scores are probabilities")  # eta may be; its scores are attacked too
        return attack()


def _packed(mask: Tensor) -> str:
    return np.packbits(mask.numpy()).tobytes().hex()


def _unpacked(text: str, count: int) -> Tensor:
    bits = np.unpackbits(np.frombuffer(bytes.fromhex(text), np.uint8), count=count)
    return torch.from_numpy(bits.astype(bool))
