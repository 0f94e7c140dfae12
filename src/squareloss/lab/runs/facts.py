"""What is noted with every result: the command, the commit, the versions and the hardware."""

from __future__ import annotations

import functools
import os
import platform
import shlex
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch


@functools.cache
def machine(device: str = "cpu") -> dict[str, Any]:
    """Versions, and the hardware of a job on a device: a GPU is named only where it is used."""
    gpu = torch.cuda.get_device_name(device) if device.startswith("cuda") else None
    return {"versions": _versions(), "hardware": {"cpu": _processor(), "cores": cores(), "gpu": gpu, "system": sys.platform}}


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in ("squareloss", "torch", "numpy", "scikit-learn"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def command() -> str:
    """The command that was given, without the folder the program lies in."""
    program = Path(sys.argv[0]).name if sys.argv and sys.argv[0] else "python"
    return shlex.join(["squareloss" if program == "__main__.py" else program, *sys.argv[1:]])


@functools.cache
def commit() -> str | None:
    """The git commit of this package's own source, with "-dirty" if files differ from it; None if it is no checkout."""
    here = Path(__file__).resolve()
    try:
        # raises for a package that is installed inside some other checkout, but not in it
        _git(here.parent, "ls-files", "--error-unmatch", here.name)
        return _git(here.parent, "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")
    except (OSError, subprocess.SubprocessError):
        return None


def _git(folder: Path, *words: str) -> str:
    done = subprocess.run(["git", "-C", str(folder), *words], capture_output=True, text=True, check=True, timeout=10)
    return done.stdout.strip()
