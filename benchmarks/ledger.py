"""What the sealed head of a ledger costs: a charge with and without it, beside a round.

    python benchmarks/ledger.py
    python benchmarks/ledger.py --folder /data/runs --set model=cnn --set clients=250000

Charges to two ledgers take turns, in ``--folder`` (by default a temporary folder): one seals its head, the
other only syncs its line. The round is that of a run with the given settings (by default those of `fedpriv
simulate`) in this process, from its start to the next one's; its charge, with the head, is a part of it.
Printed are medians, and the share of a round that the head adds.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import tempfile
import time
from pathlib import Path

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")


def charges(folder: Path, count: int) -> tuple[float, float]:
    """(seconds of a charge without a head, with one): medians."""
    from fedpriv.accounting import Event, Ledger

    events = [Event(1.1, "poisson", "add-remove", rate=0.01)]
    with (
        Ledger.create(folder / "bare.jsonl", {}) as bare,
        Ledger.create(folder / "sealed.jsonl", {}) as sealed,
    ):
        bare._seal = lambda: None  # type: ignore[method-assign]
        taken: dict[Ledger, list[float]] = {bare: [], sealed: []}
        for turn in range(count):
            for ledger in (bare, sealed) if turn % 2 else (sealed, bare):
                started = time.perf_counter()
                ledger.record(events)
                taken[ledger].append(time.perf_counter() - started)
        return statistics.median(taken[bare]), statistics.median(taken[sealed])


def a_round(folder: Path, changes: dict[str, str], rounds: int) -> float:
    """The median seconds of a round without an evaluation."""
    from fedpriv.config.reading import read_assignment
    from fedpriv.config.schema import Config
    from fedpriv.runs.runner import Status
    from fedpriv.simulation.run import simulate

    ends: list[float] = []

    def show(status: Status) -> None:
        ends.append(time.perf_counter())

    settings = dict(read_assignment(f"{key}={value}") for key, value in changes.items())
    common = {"engine": "in-process", "rounds": rounds, "evaluate-every": rounds}
    simulate(Config.parse(common | settings), show, folder / "run")
    return statistics.median(after - before for before, after in itertools.pairwise(ends[:-1]))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, help="a folder on the disk that is measured")
    parser.add_argument("--charges", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    given = parser.parse_args()
    changes = dict(pair.split("=", 1) for pair in given.set)
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        bare, sealed = charges(Path(folder), given.charges)
        whole = a_round(Path(folder), changes, given.rounds)
    added = sealed - bare
    print(f"charge without head: {1000 * bare:.3f} ms; with head: {1000 * sealed:.3f} ms")
    print(f"round: {1000 * whole:.1f} ms; the head adds {added / (whole - added):.2%}")


if __name__ == "__main__":
    main()
