"""What every benchmark writes with its numbers: when, on which chip, with which versions, from how many runs."""

from __future__ import annotations

import json
import os
import platform
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch

RESULTS = Path(__file__).resolve().parent.parent / "results" / "benchmarks"


def machine() -> dict[str, Any]:
    """The chip and the versions."""
    from squareloss.lab.runs import facts

    hardware = facts.machine("cuda" if torch.cuda.is_available() else "cpu")["hardware"]
    versions = {"torch": torch.__version__, "python": platform.python_version()}
    return {key: hardware[key] for key in ("gpu", "cpu", "cores")} | versions


def spread(values: list[float]) -> dict[str, float]:
    """n, median, mean, standard deviation, and the least and the greatest value."""
    return {
        "n": len(values),
        "median": statistics.median(values),
        "mean": statistics.fmean(values),
        "std": statistics.stdev(values) if len(values) > 1 else 0.0,
        "min": min(values),
        "max": max(values),
    }


def write(name: str, rows: Any, **facts: Any) -> Path:
    """results/benchmarks/<name>.json: the rows, the machine, the command and the date; to $OUT instead if that is set."""
    from squareloss.lab.runs.store import write_atomically

    path = Path(os.environ.get("OUT", RESULTS)) / f"{name}.json"
    command = " ".join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *["DIR" if "/" in a else a for a in sys.argv[1:]]])
    content = {"command": command, "date": time.strftime("%Y-%m-%d"), "machine": machine(), **facts, "rows": rows}
    write_atomically(path, json.dumps(content, indent=1).encode() + b"\n")
    return path


def memory(field: str) -> float:
    """A line of Linux's account of this process, in MB: resident now (VmRSS) or at most so far (VmHWM)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(float(line.split()[1]) / 1e3 for line in lines if line.startswith(field))
