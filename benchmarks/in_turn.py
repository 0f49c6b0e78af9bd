"""Compares the speed of two checkouts, or of two settings, alternately, on a machine whose speed drifts.

    python benchmarks/in_turn.py --before ../other-checkout
    python benchmarks/in_turn.py --set-before noise-draws=fast --set model=mlp
    python benchmarks/in_turn.py --before ../other-checkout --set model=mlp --turns 60
    python benchmarks/in_turn.py --before ../other-checkout --measure clipped-sum --set model=cnn
    python benchmarks/in_turn.py --before ../other-checkout --measure accounting --rounds 3

``--measure`` is one of

- ``round`` (the default): a whole round. Each side has two Ray actors and the federation of
  benchmarks/round.py: 250 sampled one-example clients of 10^6;
- ``clipped-sum``: one clipped sum of 250 per-example gradients of MNIST's size, on one thread;
- ``accounting``: epsilon by PLD of 5,000 different noise multipliers (benchmarks/accounting.py, "distinct").

``--cpu`` counts the processor seconds of a side's processes, Ray's included, in place of the wall's clock. It
is for machines that other programs keep busy. What two cores do at the same time counts twice.

``--set`` is for both sides, ``--set-before`` for the first alone. Without ``--before`` both sides are this
checkout.

Each side is a process that runs its own checkout's copy of this file, since modules move between checkouts.
Put an adapted copy into a checkout that has none. The sides take turns of ``--rounds`` measurements; while
one measures, the other waits for its next turn and computes nothing. Printed are the medians of all
measurements, and the median over turns of the ratio of the two sides' medians, with its quartiles.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")


def clipped_sum(changes: dict[str, Any]) -> Callable[[], Any]:
    """A function that computes one clipped sum of 250 per-example gradients."""
    import torch

    from fedpriv import models
    from fedpriv._internal.allocator import tune_allocator
    from fedpriv.clipping import sum_gradients
    from fedpriv.mechanism.query import Query, SumBlock, Term
    from fedpriv.tasks.task import Task

    torch.set_num_threads(1)
    tune_allocator()  # as the program does
    task = Task(models.build(changes.get("model", "cnn")))
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(250, 1, 28, 28, generator=generator)
    y = torch.randint(10, (250,), generator=generator)
    query = Query((0.01 * torch.randn(task.dimension, generator=generator),), (SumBlock((Term(1.0),)),))
    exact = changes.get("noise-draws") != "fast"  # whose units are added in float64
    return lambda: sum_gradients(task, query, x, y, None, exact=exact)


def accounting() -> Callable[[], Any]:
    """A function that computes the epsilon of 5,000 Poisson-sampled releases."""
    from fedpriv.accounting import Event, epsilon
    from fedpriv.accounting.methods import registry

    events = [Event(0.5 ** (step / 4999), "poisson", "add-remove", 1e-3) for step in range(5000)]
    cached = getattr(registry, "_epsilons", None)  # a checkout may keep no answers

    def compute() -> Any:
        if cached is not None:
            cached.cache_clear()
        return epsilon(events, 4e-7)

    return compute


def processor_seconds() -> float:
    """The processor time of this process and its descendants so far (Linux)."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # a process may have ended
            children.setdefault(int(stat.read_text().rsplit(")", 1)[1].split()[1]), []).append(
                int(stat.parent.name)
            )
    waiting, nanoseconds = [os.getpid()], 0
    while waiting:
        process = waiting.pop()
        waiting += children.get(process, [])
        for thread in Path(f"/proc/{process}/task").glob("*/schedstat"):
            with contextlib.suppress(OSError):
                nanoseconds += int(thread.read_text().split()[0])
    return 1e-9 * nanoseconds


def serve(compute: Callable[[], Any], repeats: int, turns: int, clock: Callable[[], float]) -> None:
    """One side: for each line of standard input, measure and print the seconds as JSON."""
    for _ in range(turns + 1):
        taken = []
        for _ in range(repeats):
            started = clock()
            compute()
            taken.append(clock() - started)
        print(json.dumps(taken), flush=True)
        sys.stdin.readline()


def serve_rounds(changes: dict[str, Any], rounds: int, turns: int, clock: Callable[[], float]) -> None:
    """As ``serve``, for whole rounds; the mean of a turn if processor seconds are counted."""
    from fedpriv.accounting import Ledger
    from fedpriv.config.builders import initial_params, make_source, make_task
    from fedpriv.config.plan import make_plan
    from fedpriv.config.schema import Config
    from fedpriv.federated.loop import run
    from fedpriv.flower.grid_engine import GridEngine
    from fedpriv.flower.grids.ray import RayGrid
    from fedpriv.runs.budget import RunAccountant

    # The seed gives both sides cohorts of the same sizes.
    common = {
        "clients": 10**6,
        "sampling-rate": 250 / 10**6,
        "rounds": rounds * (turns + 1),
        "actors": 2,
        "seed": 0,
    }
    config = Config.parse({**common, "cpus-per-actor": 1.0, **changes})
    plan = make_plan(config)
    engine = GridEngine(RayGrid(2, plan.config.table(), num_cpus=config.cpus_per_actor))
    key, taken, started = plan.key(), list[float](), clock()
    params = initial_params(make_task(config, make_source(config)), key)

    def observe(progress: Any) -> None:
        nonlocal started
        if clock is not processor_seconds:  # looking at all processes takes longer than a round
            taken.append(clock() - started)
        if progress.round % rounds == 0:
            print(json.dumps(taken or [(clock() - started) / rounds]), flush=True)
            taken.clear()
            sys.stdin.readline()
            started = clock()
        elif clock is not processor_seconds:
            started = clock()

    with (
        tempfile.TemporaryDirectory() as folder,
        Ledger.create(path := Path(folder) / "ledger.jsonl", {}) as ledger,
    ):
        run(
            plan.mechanism,
            params,
            engine,
            RunAccountant(plan, ledger, path),
            key,
            plan.cohorts(key),
            observe,
        )
        engine.close()


def turn(side: subprocess.Popen[str]) -> list[float]:
    """Let a side measure, and return its seconds."""
    assert side.stdin is not None
    side.stdin.write("go\n")
    side.stdin.flush()
    return figures(side)


def figures(side: subprocess.Popen[str]) -> list[float]:
    """The next seconds that a side prints, among lines of other libraries."""
    assert side.stdout is not None
    for line in side.stdout:
        if line.startswith("["):
            return list(json.loads(line))
    raise SystemExit("a side failed; its error is above")


def alternate(sides: dict[str, subprocess.Popen[str]], turns: int) -> None:
    """Let two sides take turns, and print their medians and the ratio of the second to the first.

    The first figures of each side have been read: these rounds compile, and fill caches.
    """
    taken: dict[str, list[float]] = {name: [] for name in sides}
    ratios, (first, second) = [], sides
    for number in range(turns):
        order = list(sides) if number % 2 else list(sides)[::-1]
        found = {name: turn(sides[name]) for name in order}
        for name, seconds in found.items():
            taken[name] += seconds
        ratios.append(statistics.median(found[second]) / statistics.median(found[first]))
    for side in sides.values():
        assert side.stdin is not None
        side.stdin.close()
        side.wait()
    for name, seconds in taken.items():
        print(f"{name}: {1000 * statistics.median(seconds):.2f} ms ({len(seconds)} measurements)")
    low, middle, high = statistics.quantiles(ratios, n=4)
    print(f"{second} / {first}: {middle:.3f}, quartiles {low:.3f} to {high:.3f} ({len(ratios)} turns)")


def main() -> None:
    """Start both sides, measure them alternately, and print the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--before", type=Path, help="the other checkout")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--set-before", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--measure", choices=("round", "clipped-sum", "accounting"), default="round")
    parser.add_argument("--rounds", type=int, default=10, help="measurements a turn")
    parser.add_argument("--turns", type=int, default=40)
    parser.add_argument("--cpu", action="store_true", help="processor seconds of all processes")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        from fedpriv.config.reading import read_assignment

        changes = dict(map(read_assignment, given.set))
        clock = processor_seconds if given.cpu else time.perf_counter
        if given.measure == "round":
            serve_rounds(changes, given.rounds, given.turns, clock)
        else:
            compute = clipped_sum(changes) if given.measure == "clipped-sum" else accounting()
            serve(compute, given.rounds, given.turns, clock)
        return
    # Each side runs its own checkout's copy of this file: modules move between the two.
    this = Path(__file__).resolve().parent.parent
    sides: dict[str, subprocess.Popen[str]] = {}
    common = ["--measure", given.measure, "--rounds", str(given.rounds), "--turns", str(given.turns)]
    common += ["--cpu"] if given.cpu else []
    of_both = [f"--set={pair}" for pair in given.set]
    of_first = [f"--set={pair}" for pair in given.set_before]
    trees = (given.before.resolve() if given.before else this), this
    for name, tree, changes in zip(("before", "after"), trees, ([*of_both, *of_first], of_both), strict=True):
        command = [sys.executable, "benchmarks/in_turn.py", "--serve", *common, *changes]
        environment = {**os.environ, "PYTHONPATH": str(tree)}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        sides[name] = subprocess.Popen(command, env=environment, cwd=tree, text=True, **pipes)
    for side in sides.values():
        figures(side)
    alternate(sides, given.turns)


if __name__ == "__main__":
    main()
