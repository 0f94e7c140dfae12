"""A CSV as people have them: numbers, text, gaps, and a class that the columns only partly decide.

    python examples/make_csv.py customers.csv
    squareloss compare customers.csv --target leaves --quick

Whether a customer leaves is drawn with a probability that depends on the columns, so even the best classifier errs, and
calibrated probabilities are worth having.
"""

from __future__ import annotations

import argparse
import csv

import numpy as np

CITIES = ("Arden", "Brook", "Carrow", "Dale")
PLANS = ("basic", "family", "business")


def rows(count: int, seed: int = 0) -> list[list[str]]:
    rng = np.random.default_rng(seed)
    age = rng.integers(18, 80, count)
    income = rng.lognormal(10.3, 0.4, count)
    visits = rng.poisson(6, count)
    months = rng.integers(1, 120, count)
    city, plan = rng.integers(len(CITIES), size=count), rng.integers(len(PLANS), size=count)
    pull = 1.2 - 0.25 * visits - 0.012 * months + 0.9 * np.sin(age / 9) + np.array([0.0, 0.8, -0.5, 0.2])[city]
    pull += np.array([0.4, -0.6, 0.1])[plan] - 0.6 * np.log(income / 30000)
    leaves = rng.random(count) < 1 / (1 + np.exp(-2 * pull))
    missing = rng.random(count) < 0.05
    return [
        [str(age[i]), "" if missing[i] else f"{income[i]:.0f}", str(visits[i]), str(months[i]), CITIES[city[i]], PLANS[plan[i]],
         "yes" if leaves[i] else "no"]
        for i in range(count)
    ]  # fmt: skip


def main(path: str, count: int = 2000) -> None:
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["age", "income", "visits", "months", "city", "plan", "leaves"])
        writer.writerows(rows(count))
    print(f"{path}: {count} rows; the class is in the column 'leaves'")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", nargs="?", default="customers.csv")
    main(parser.parse_args().path)
