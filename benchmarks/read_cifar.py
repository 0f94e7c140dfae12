"""From the files of CIFAR-10 to tensors: `load("cifar10")` beside a plain reader that takes one record after the other.

    SQUARELOSS_DATA=DIR python benchmarks/read_cifar.py      DIR holds cifar-10-batches-bin; about a minute

`load` also verifies the SHA-1 of every file and computes mean and standard deviation; the plain readers do neither. "at once"
is np.fromfile on each file and one copy, the least numpy can do. Every reading is a process of its own, so that no memory is
warm; "cold" tells the system to forget the files first, "warm" leaves them in its cache. Readers take turns; the seconds count
reading, not starting Python. Bar: `load` under 2 s on 2 cores. The evidence is in results/benchmarks/read_cifar.json.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from _evidence import spread, write

from squareloss.lab.data import cifar, load
from squareloss.lab.data.sources import default_root

BAR = 2.0
LAYOUT = cifar.LAYOUTS["cifar10"][0]


def by_load(folder: Path) -> int:
    data = load(folder)
    return data.train.n + data.test.n


def one_by_one(folder: Path) -> int:
    images, labels = [], []
    for file in (*LAYOUT.train, *LAYOUT.test):
        with open(folder / file.name, "rb") as stream:
            while record := stream.read(3073):
                labels.append(record[0])
                images.append(torch.frombuffer(bytearray(record[1:]), dtype=torch.uint8).view(3, 32, 32))
    x, y = torch.stack(images), torch.tensor(labels)
    return min(len(x), len(y))


def at_once(folder: Path) -> int:
    files = [np.fromfile(folder / file.name, np.uint8).reshape(-1, 3073) for file in (*LAYOUT.train, *LAYOUT.test)]
    x = torch.from_numpy(np.concatenate([f[:, 1:] for f in files])).view(-1, 3, 32, 32)
    y = torch.from_numpy(np.concatenate([f[:, 0] for f in files])).long()
    return min(len(x), len(y))


READERS: dict[str, Callable[[Path], int]] = {"load": by_load, "record by record": one_by_one, "at once": at_once}


def read_once(reader: str, folder: Path, cold: bool) -> None:
    """In the child: seconds of one reading, on stdout."""
    torch.set_num_threads(2)
    for path in folder.iterdir():
        with path.open("rb") as stream:
            if cold:
                os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            else:
                while stream.read(1 << 20):
                    pass
    start, cpu = time.perf_counter(), time.process_time()
    assert READERS[reader](folder) == 60_000
    print(time.perf_counter() - start, time.process_time() - cpu)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--one", choices=READERS, help=argparse.SUPPRESS)
    parser.add_argument("--cold", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    folder = default_root() / LAYOUT.folder
    if args.one:
        read_once(args.one, folder, args.cold)
        return
    seconds: dict[tuple[str, str], list[list[float]]] = {
        (reader, state): [] for state in ("warm", "cold") for reader in READERS
    }
    for _ in range(args.rounds):
        for (reader, state), found in seconds.items():
            command = [sys.executable, __file__, "--one", reader, *(["--cold"] if state == "cold" else [])]
            found.append([float(s) for s in subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()])
    rows = []
    for (reader, state), found in seconds.items():
        wall, cpu = (spread([pair[i] for pair in found]) for i in (0, 1))
        rows.append({"reader": reader, "files": state, "seconds": wall, "cpu_seconds": cpu})
        print(
            f"{reader:<18}{state:<6}{wall['median']:7.3f} s ({wall['min']:.3f} to {wall['max']:.3f}), CPU {cpu['median']:.3f} s"
        )
    print(write("read_cifar", rows, threads=2, bar_seconds=BAR, load_average=list(os.getloadavg())))


if __name__ == "__main__":
    main()
