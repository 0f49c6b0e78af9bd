"""Whether a long run keeps its pace: memory, a round's time and the ledger's size over 20,000 rounds.

    python benchmarks/endurance.py
    python benchmarks/endurance.py --rounds 2000 --set optimizer=dp-adam

One simulation in this process, on a model of 7,850 parameters; further settings with ``--set``. Rounds are
grouped into windows, by default 20. Printed for each: the median, and the mean of the middle half, of the
milliseconds of a round, the processor's milliseconds a round, the resident memory at the window's end, and
the ledger's bytes a round. At the end they are compared: memory from the end of the second window on, a round
from the second window to the last.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from dataclasses import astuple, dataclass
from pathlib import Path

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")

SETTINGS = {
    "engine": "in-process",
    "model": "logistic",
    "clients": 1000,
    "sampling-rate": 0.05,
    "epsilon": 3.0,
    "evaluate-every": 1000,
}


@dataclass(frozen=True)
class Window:
    """What a group of rounds took: ms of a round (median; middle half), CPU ms, MiB, bytes a round."""

    rounds: int
    median: float
    middle: float
    cpu: float
    memory: float
    ledger: float


def resident() -> float:
    """This process's resident memory in MiB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def windows(folder: Path, rounds: int, changes: dict[str, str], size: int) -> list[Window]:
    """Runs the simulation and returns its windows of ``size`` rounds."""
    from fedpriv.config.reading import read_assignment
    from fedpriv.config.schema import Config
    from fedpriv.runs.runner import Status
    from fedpriv.simulation.run import simulate

    found, ms = list[Window](), list[float]()
    marks = {"time": time.perf_counter(), "cpu": time.process_time(), "bytes": 0.0}

    def show(status: Status) -> None:
        now = time.perf_counter()
        ms.append(1000 * (now - marks["time"]))
        marks["time"] = now
        if len(ms) < size:
            return
        cpu, written = time.process_time(), (folder / "ledger.jsonl").stat().st_size
        quarter = len(ms) // 4
        found.append(
            Window(
                status.round,
                statistics.median(ms),
                statistics.mean(sorted(ms)[quarter : len(ms) - quarter]),
                1000 * (cpu - marks["cpu"]) / len(ms),
                resident(),
                (written - marks["bytes"]) / len(ms),
            )
        )
        print("| {:,} | {:.2f} | {:.2f} | {:.2f} | {:.1f} | {:.1f} |".format(*astuple(found[-1])), flush=True)
        ms.clear()
        marks.update(cpu=cpu, bytes=written, time=time.perf_counter())

    settings = dict(read_assignment(f"{key}={value}") for key, value in changes.items())
    simulate(Config.parse(SETTINGS | {"rounds": rounds} | settings), show, folder)
    return found


def main() -> None:
    """Measures and prints."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--rounds", type=int, default=20_000)
    parser.add_argument("--windows", type=int, default=20)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    given = parser.parse_args()
    changes = dict(pair.split("=", 1) for pair in given.set)
    print("| rounds | median, ms | middle half, ms | processor, ms | memory, MiB | ledger, bytes a round |")
    print("|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as name:
        began = time.perf_counter()
        found = windows(Path(name) / "run", given.rounds, changes, given.rounds // given.windows)
        whole = time.perf_counter() - began
        total = (Path(name) / "run" / "ledger.jsonl").stat().st_size
    _, second, *_ = found
    last = found[-1]
    memory = [window.memory for window in found[1:]]
    print(f"memory: {max(memory) / second.memory - 1:+.1%} at most after the second window")
    for what in ("median", "middle", "cpu"):
        print(f"a round, {what}: {getattr(last, what) / getattr(second, what) - 1:+.1%} at the end")
    print(f"ledger: {total:,} bytes for {given.rounds:,} rounds; start to report: {whole:.0f} s")


if __name__ == "__main__":
    main()
