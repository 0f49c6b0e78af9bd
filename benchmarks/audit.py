"""Audits of sound runs: how often is one called a violation, and how much of the claim is proved?

    python benchmarks/audit.py --seeds 2            # prints a Markdown table

A run is an optimizer with a placement, at the aggregation level, audited with canaries at 99 % confidence. In
sound code one audit in a hundred may be called a violation, and no bound may exceed the claim more often.
"""

from __future__ import annotations

import argparse
import itertools
import time
from typing import Any

from fedpriv.auditing.auditor import audit
from fedpriv.auditing.finding import Finding
from fedpriv.config.schema import Config

OPTIMIZERS = ("dp-sgd", "dynamic-dp-sgd", "dp-adam", "adp-sgd", "dp2-rmsprop", "dp-srm", "adadp")
PLACES: dict[str, dict[str, Any]] = {
    "clients, central": {},
    "clients, distributed": {"placement": "distributed", "sampler": "fixed-size"},
}


def settings(optimizer: str, place: str, units: int, seed: int) -> dict[str, Any]:
    """The audited run's settings: four rounds at epsilon 4."""
    own = PLACES[place]
    run = {"clients": units, "sampling-rate": 0.2, "rounds": 4, "epsilon": 4.0, "delta": 1e-5}
    return {**run, **own, "optimizer": optimizer, "seed": seed}


def row(place: str, found: list[Finding]) -> str:
    """One line of the table."""
    violated = sum(one.violated for one in found)
    exceeded = sum(max(one.proved, one.proved_by_curves) > one.claimed for one in found)
    most = max(max(one.proved, one.proved_by_curves) / one.claimed for one in found)
    return f"| {place} | {len(found)} | {violated} | {exceeded} | {most:.2f} |"


def main() -> None:
    """Runs the audits and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--units", type=int, default=600)
    chosen = parser.parse_args()
    print(f"{chosen.units} canaries, {', '.join(OPTIMIZERS)}, {chosen.seeds} seeds each")
    print(
        "| units, placement | audits | called a violation | bounds above the claim | largest share proved |"
    )
    print("|---|---|---|---|---|")
    start = time.perf_counter()
    for place in PLACES:
        pairs = itertools.product(OPTIMIZERS, range(chosen.seeds))
        found = [audit(Config.parse(settings(name, place, chosen.units, seed))) for name, seed in pairs]
        print(row(place, found), flush=True)
    print(f"{time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
