"""Audits of sound runs: how often is one called a violation, and how much of the claim is proved?

    python benchmarks/audit.py            # prints a Markdown table
    python benchmarks/audit.py --write    # and writes it to tests/audits.json, for docs/trust.md

A run is an optimizer with a unit, a level, a placement and an adversary, audited at 99 % confidence, each
with a seed of its own. In sound code one audit in a hundred may be called a violation, and no bound may
exceed the claim more often. The smallest p-value, times the number of audits, says whether there is a
violation at 99 % confidence for all of them together. There is no audit where an optimizer refuses a place.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from pathlib import Path
from typing import Any

import fedpriv
from fedpriv import ArgumentError
from fedpriv.auditing.finding import Finding
from fedpriv.optimizers.registry import METHODS

ALL: dict[str, Any] = {"sampler": "everyone", "sampling_rate": 1.0}
SILOS: dict[str, Any] = {"unit": "example", "clients": 6, "examples_per_client": 50}
OWN: dict[str, Any] = {"own_data": True, "model": "logistic", "canaries": 30}
# (unit and level, noise, adversary): settings
PLACES: dict[tuple[str, str, str], dict[str, Any]] = {
    ("clients", "central", "models"): {},
    ("clients", "central", "last model"): {"view": "last-model"},
    ("clients", "distributed", "models"): {"placement": "distributed", "sampler": "fixed-size"},
    ("clients", "distributed", "colluders"): {
        "placement": "distributed", "sampler": "fixed-size", "colluding_parties": 20, "view": "parties",
    },
    ("clients", "local", "server"): {"placement": "local", "sampler": "fixed-size"},
    ("examples", "central", "models"): SILOS,
    ("examples", "distributed", "server"): {**SILOS, "placement": "distributed", "view": "server"},
    ("examples", "local", "server"): {**SILOS, "placement": "local"},
    ("examples, client level", "of each silo", "in the silo"): {
        **SILOS, "level": "client", "rounds": 2, "silo_steps": 2,
    },
    ("clients, own data", "central", "models"): OWN,
    ("clients, own data", "local", "server"): {**OWN, "placement": "local", "sampler": "fixed-size"},
}  # fmt: skip


def audited(optimizer: str, place: dict[str, Any], units: int, seed: int) -> Finding | None:
    """The finding about a run of four releases at epsilon 4; None where there is no such run."""
    run = {"clients": units, "sampling_rate": 0.2, "rounds": 4, "epsilon": 4.0, "delta": 1e-5, **place}
    run |= {"optimizer": optimizer, "seed": seed, "engine": "in-process"}
    run |= ALL if optimizer == "dp-gd" else {}
    run |= {"public_examples": 20} if "public-examples" in METHODS[optimizer].settings.fields() else {}
    try:
        return fedpriv.audit(**run)
    except ArgumentError:
        return None


RESULTS = Path(__file__).parents[1] / "tests/audits.json"


def row(place: tuple[str, str, str], found: list[Finding]) -> dict[str, Any]:
    """What the audits of one place found."""
    return {
        **dict(zip(("unit", "noise", "adversary"), place, strict=True)),
        "audits": len(found),
        "violated": sum(one.violated for one in found),
        "exceeded": sum(max(one.proved, one.proved_by_curves) > one.claimed for one in found),
        "share": round(
            max((max(one.proved, one.proved_by_curves) / one.claimed for one in found), default=0.0), 2
        ),
        # Guesses, and noise and cohorts, have half of what the confidence leaves each.
        "least": float(f"{min([1.0, *(2 * min(one.p_value, one.noise_p_value) for one in found)]):.2g}"),
    }


def line(cells: dict[str, Any]) -> str:
    """A row of the table."""
    return f"| {' | '.join(str(cell) for cell in cells.values())} |"


def main() -> None:
    """Runs the audits and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=1, help="audits of each optimizer and place")
    parser.add_argument("--units", type=int, default=300)
    parser.add_argument("--write", action="store_true", help=f"write the table to {RESULTS.name}, too")
    chosen = parser.parse_args()
    print(f"{chosen.units} units, {len(METHODS)} optimizers where they allow it, {chosen.seeds} times each")
    print("| unit | noise | adversary | audits | violations | bounds above the claim | share | p-value |")
    print("|---|---|---|---|---|---|---|---|")
    start, seeds, rows = time.perf_counter(), itertools.count(), list[dict[str, Any]]()
    for place, own in PLACES.items():
        tried = [
            audited(name, own, chosen.units, next(seeds)) for name in METHODS for _ in range(chosen.seeds)
        ]
        rows.append(row(place, [one for one in tried if one]))
        print(line(rows[-1]), flush=True)
    print(f"{time.perf_counter() - start:.0f} s")
    if chosen.write:
        results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
        RESULTS.write_text(json.dumps({**results, "sound": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
