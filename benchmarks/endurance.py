"""Whether a long run keeps its pace: memory, a round's time and the ledger's size over 20,000 rounds.

    python benchmarks/endurance.py
    python benchmarks/endurance.py --rounds 2000 --set optimizer=dp-adam
    python benchmarks/endurance.py --deployment     # two nodes under TLS on this machine; an hour and more

One simulation in this process, on a model of 7,850 parameters; further settings with ``--set``. Or a run of a
deployment, as benchmarks/deployment.py makes it. Rounds are grouped into windows, by default 20. Printed for
each: the median, and the mean of the middle half, of the milliseconds of a round, the processor's
milliseconds a round, the resident memory at the window's end, and the ledger's bytes a round; for a
deployment processor and memory of each program, and what the whole folder grows by: ledgers, journals,
database and logs. At the end windows are compared: memory from the end of the second on, a round from the
second to the last.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")

from deployment import Fleet, Use, cost, watched

Costs = dict[str, tuple[float, float]]  # {program: (seconds of the processor, resident MiB)}

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
    """What a group of rounds took."""

    rounds: int  # so far
    median: float  # ms of a round
    middle: float  # ms of a round, mean of the middle half
    cpu: dict[str, float]  # {program: ms of the processor a round}
    memory: dict[str, float]  # {program: MiB at the end}
    ledger: float  # bytes a round
    folder: float  # bytes a round, of all files

    def line(self) -> str:
        """A line of the table."""
        used = [f"{values[key]:.1f}" for values in (self.cpu, self.memory) for key in sorted(values)]
        times = [f"{self.rounds:,}", f"{self.median:.2f}", f"{self.middle:.2f}"]
        return f"| {' | '.join([*times, *used, f'{self.ledger:.1f}', f'{self.folder:.0f}'])} |"

    def heading(self) -> str:
        """The table's head."""
        used = [f"{key}, {what}" for what in ("CPU ms", "MiB") for key in sorted(self.cpu)]
        names = [
            "rounds",
            "median, ms",
            "middle half, ms",
            *used,
            "ledger, bytes a round",
            "files, bytes a round",
        ]
        return f"| {' | '.join(names)} |\n|{'---|' * len(names)}"


def size(folder: Path) -> int:
    """The bytes of a folder's files."""
    return sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file())


class Table:
    """Windows of ``length`` rounds, printed as they end; ``costs`` says what each program has used so far."""

    def __init__(self, length: int, ledger: Path, folder: Path, costs: Callable[[], Costs]) -> None:
        self.windows = list[Window]()
        self._length, self._ledger, self._folder, self._costs = length, ledger, folder, costs
        self._ms, self._began = list[float](), time.perf_counter()
        self._used, self._bytes = costs(), (0, 0)

    def add(self) -> None:
        """A round has ended."""
        now = time.perf_counter()
        self._ms.append(1000 * (now - self._began))
        self._began = now
        if len(self._ms) == self._length:
            self._end()
            self._began = time.perf_counter()

    def _end(self) -> None:
        """Prints a window, and begins the next."""
        used, written = self._costs(), (self._ledger.stat().st_size, size(self._folder))
        middle = sorted(self._ms)[self._length // 4 : self._length - self._length // 4]
        zero = (0.0, 0.0)
        window = Window(
            self._length * (1 + len(self.windows)),
            statistics.median(self._ms),
            statistics.mean(middle),
            {key: 1000 * (used[key][0] - self._used.get(key, zero)[0]) / self._length for key in used},
            {key: memory for key, (_, memory) in used.items()},
            *((now - before) / self._length for now, before in zip(written, self._bytes, strict=True)),
        )
        if not self.windows:
            print(window.heading())
        print(window.line(), flush=True)
        self.windows.append(window)
        self._used, self._bytes = used, written
        self._ms.clear()


def simulation(folder: Path, rounds: int, changes: dict[str, str], length: int) -> list[Window]:
    """Runs a simulation in this process and returns its windows."""
    from fedpriv.config.reading import read_assignment
    from fedpriv.config.schema import Config
    from fedpriv.simulation.run import simulate

    run = folder / "run"
    table = Table(length, run / "ledger.jsonl", run, lambda: {"simulation": cost(os.getpid())})
    settings = dict(read_assignment(f"{key}={value}") for key, value in changes.items())
    simulate(Config.parse(SETTINGS | {"rounds": rounds} | settings), lambda status: table.add(), run)
    return table.windows


def deployment(folder: Path, rounds: int, changes: dict[str, str], length: int) -> list[Window]:
    """Runs a deployment of two nodes and returns its windows."""
    with Fleet(folder / "d", nodes=2, cheap=False) as fleet:
        fleet.begin()
        table = Table(length, fleet.ledger, fleet.folder, lambda: Use.now(fleet.folder, None).costs)
        with watched(fleet.ledger, table.add):
            fleet.run(rounds, changes)
    return table.windows


def main() -> None:
    """Measures and prints."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--deployment", action="store_true", help="a deployment in place of a simulation")
    parser.add_argument("--rounds", type=int, default=20_000)
    parser.add_argument("--windows", type=int, default=20)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    given = parser.parse_args()
    changes = dict(pair.split("=", 1) for pair in given.set)
    with tempfile.TemporaryDirectory() as name:
        began = time.perf_counter()
        measure = deployment if given.deployment else simulation
        found = measure(Path(name), given.rounds, changes, given.rounds // given.windows)
        whole = time.perf_counter() - began
    second, last = found[1], found[-1]
    for program, before in sorted(second.memory.items()):
        most = max(window.memory[program] for window in found[1:])
        cpu = last.cpu[program] / second.cpu[program] - 1
        print(f"{program}: memory {most / before - 1:+.1%} at most after the second window; CPU {cpu:+.1%}")
    for what in ("median", "middle"):
        print(f"a round, {what}: {getattr(last, what) / getattr(second, what) - 1:+.1%} at the end")
    print(f"start to end: {whole:.0f} s")


if __name__ == "__main__":
    main()
