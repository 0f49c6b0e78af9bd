"""How a round's time depends on the population N, the cohort and the number of actors; and a long run.

    python benchmarks/scaling.py                 # populations, cohorts and actors: ten minutes on 2 cores
    python benchmarks/scaling.py --only cohorts  # one of the three
    python benchmarks/scaling.py --long          # 5,000 rounds of MNIST-250K, from start to report
    python benchmarks/scaling.py --only actors --device cuda   # actors that share the GPUs there are

Synthetic populations (the long run's is InfiniteMNIST), the 26,010-parameter network, central noise,
accounting and ledger on. Each figure is measured in a separate process, for its peak memory. Every sweep is
run twice, the second time backwards, because the machine's speed drifts.

The long run evaluates and writes its model every 500 rounds; the default of 10 takes longer.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from round import ours

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

POPULATIONS = [10**4, 10**5, 10**6, 10**7, 10**8, 10**9]
COHORTS = [250, 1000, 5000, 25_000, 100_000]
ACTORS = [1, 2, 4]


def apart(**settings: Any) -> dict[str, float]:
    """``ours(**settings)`` in a separate process."""
    command = [sys.executable, __file__, "--child", json.dumps(settings)]
    output = subprocess.run(command, capture_output=True, text=True, timeout=3600, check=False)
    for line in output.stdout.splitlines():
        if line.startswith("FIGURES "):
            figures: dict[str, float] = json.loads(line.removeprefix("FIGURES "))
            return figures
    raise RuntimeError(f"no figures of {settings}:\n{output.stderr[-2000:]}")


def sweep(title: str, name: str, cases: list[dict[str, Any]]) -> None:
    """Measure the cases forwards and backwards, and print them compared with the first."""
    taken: dict[int, list[dict[str, float]]] = {index: [] for index in range(len(cases))}
    for index in [*taken, *reversed(taken)]:
        taken[index].append(apart(**cases[index]))
    print(f"\n{title}\n| {name} | ms a round | times the first | peak memory, MiB |\n|---|---|---|---|")
    first = statistics.mean(figures["seconds"] for figures in taken[0])
    for index, figures in taken.items():
        seconds = [one["seconds"] for one in figures]
        ms = " and ".join(f"{1000 * value:.1f}" for value in seconds)
        memory = " and ".join(f"{one['memory']:,.0f}" for one in figures)
        ratio = statistics.mean(seconds) / first
        print(f"| {cases[index][name]:,} | {ms} | {ratio:.2f} | {memory} |", flush=True)


def long_run() -> None:
    """The wall time of Du's MNIST-250K experiment, from start to report."""
    with tempfile.TemporaryDirectory() as folder:
        settings = {
            "dataset": "infinite-mnist",
            "clients": 250_000,
            "sampling-rate": 0.001,
            "rounds": 5000,
            "epsilon": 2.0,
            "input-mean": 0.1307,
            "input-std": 0.3081,
            "evaluate-every": 500,
        }
        command = [sys.executable, "-m", "fedpriv", "simulate", "--out", str(Path(folder) / "run")]
        for key, value in settings.items():
            command += ["--set", f"{key}={value}"]
        started = time.perf_counter()
        output = subprocess.run(command, capture_output=True, text=True, check=False)
        seconds = time.perf_counter() - started
    print("\n".join(output.stdout.splitlines()[-3:]), output.stderr[-500:])
    print(f"5,000 rounds of 250 of 250,000 clients, start to report: {seconds:.0f} s")


def main() -> None:
    """See the module's docstring."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--long", action="store_true")
    parser.add_argument("--only", choices=["populations", "cohorts", "actors"])
    parser.add_argument("--actors", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    parser.add_argument("--gpus-per-actor", type=float, default=0.0, help="0: an equal share")
    parser.add_argument("--child", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print("FIGURES " + json.dumps(ours(**json.loads(options.child))))
        return
    if options.long:
        long_run()
        return
    usual = {"population": 10**6, "cohort": 250, "actors": options.actors, "rounds": options.rounds}
    usual |= {"device": options.device, "gpus_per_actor": options.gpus_per_actor}
    if options.only in (None, "populations"):
        sweep("Populations, cohorts of 250:", "population", [{**usual, "population": n} for n in POPULATIONS])
    if options.only in (None, "cohorts"):
        cases = [{**usual, "cohort": m, "rounds": max(14, options.rounds * 250 // m)} for m in COHORTS]
        sweep("Cohorts, of 10^6 clients:", "cohort", cases)
    if options.only in (None, "actors"):
        sweep("Actors, cohorts of 250:", "actors", [{**usual, "actors": a} for a in ACTORS])


if __name__ == "__main__":
    main()
