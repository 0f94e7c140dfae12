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
    cuda = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    model = next((line.split(":")[1].strip() for line in _cpuinfo() if line.startswith("model name")), platform.machine())
    return {
        "gpu": cuda,
        "cpu": model,
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def spread(values: list[float]) -> dict[str, float]:
    """n, median, mean, and the least and the greatest value."""
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
    folder = Path(os.environ.get("OUT", RESULTS))
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    command = " ".join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *["DIR" if "/" in a else a for a in sys.argv[1:]]])
    content = {"command": command, "date": time.strftime("%Y-%m-%d"), "machine": machine(), **facts, "rows": rows}
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(content, indent=1) + "\n")
    temporary.replace(path)
    return path


def _cpuinfo() -> list[str]:
    try:
        return Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return []
