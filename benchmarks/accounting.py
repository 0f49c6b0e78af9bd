"""Seconds to account for a run, compared with dp-accounting, Opacus and prv-accountant.

    pip install --no-deps opacus prv-accountant   # peers; left out where they are not installed
    python benchmarks/accounting.py               # all of it, about ten minutes
    python benchmarks/accounting.py --limit 10    # gives each peer less time

Each cell runs in a separate process. After a small warm-up case it computes up to five times within
``--limit`` seconds; the median is printed. "none" means no result in that time. The cases:

- constant: one noise multiplier, q = 0.01, z = 1, T = 1,000, delta 1e-5;
- distinct: 5,000 multipliers falling from 1.0 to 0.5, q = 1e-3, delta 4e-7;
- rare: q = 2.5e-7, as 250 of 10^9 clients, z = 0.5, T = 2,000, delta 1e-10;
- long: distinct with 100,000 multipliers (fedpriv only);
- calibrate: the schedule of 5,000 steps calibrated to epsilon 1 by PLD (fedpriv only);
- online: one affords and one charge at round 1 and at round 5,000 of such a run (fedpriv only).
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

Run = tuple[list[tuple[float, int]], float, float]  # (z, count) pairs, q, delta
CASES: dict[str, Run] = {
    "constant": ([(1.0, 1000)], 0.01, 1e-5),
    "distinct": ([(float(z), 1) for z in 0.5 ** (np.arange(5000) / 4999)], 1e-3, 4e-7),
    "rare": ([(0.5, 2000)], 2.5e-7, 1e-10),
    "long": ([(float(z), 1) for z in 0.5 ** (np.arange(100_000) / 99_999)], 1e-3, 4e-7),
    "warm-up": ([(2.0, 10), (3.0, 10)], 0.1, 1e-5),
}


def ours(method: str) -> Callable[[Run], Any]:
    def answer(run: Run) -> Any:
        from fedpriv.accounting import Event, epsilon
        from fedpriv.accounting.methods import rdp, registry

        rdp._divergences.cache_clear()
        registry._epsilons.cache_clear()
        pairs, rate, delta = run
        found = epsilon([Event(z, "poisson", "add-remove", rate, count=n) for z, n in pairs], delta, method)
        return [found.epsilon_lower, found.epsilon]

    return answer


def dp_accounting(kind: str) -> Callable[[Run], Any]:
    def answer(run: Run) -> Any:
        import dp_accounting as dp
        from dp_accounting import pld, rdp

        pairs, rate, delta = run
        accountant = pld.PLDAccountant() if kind == "pld" else rdp.RdpAccountant()
        for z, count in pairs:
            accountant.compose(dp.PoissonSampledDpEvent(rate, dp.GaussianDpEvent(z)), count)
        return [None, accountant.get_epsilon(delta)]

    return answer


def opacus(kind: str) -> Callable[[Run], Any]:
    def answer(run: Run) -> Any:
        from opacus import accountants

        pairs, rate, delta = run
        accountant = accountants.PRVAccountant() if kind == "prv" else accountants.RDPAccountant()
        accountant.history = [(z, rate, count) for z, count in pairs]
        return [None, accountant.get_epsilon(delta)]

    return answer


def prv_accountant(run: Run) -> Any:
    from prv_accountant import PoissonSubsampledGaussianMechanism, PRVAccountant

    pairs, rate, delta = run
    counts = [count for _, count in pairs]
    accountant = PRVAccountant(
        prvs=[PoissonSubsampledGaussianMechanism(rate, z) for z, _ in pairs],
        max_self_compositions=counts,
        eps_error=0.01,
        delta_error=delta / 1000,
    )
    low, _, high = accountant.compute_epsilon(delta, counts)
    return [low, high]


PEERS: dict[str, Callable[[Run], Any]] = {
    "fedpriv PLD, both bounds": ours("pld"),
    "fedpriv RDP": ours("rdp"),
    "dp-accounting PLD": dp_accounting("pld"),
    "dp-accounting RDP": dp_accounting("rdp"),
    "Opacus PRV": opacus("prv"),
    "Opacus RDP": opacus("rdp"),
    "prv-accountant, both bounds": prv_accountant,
}


def calibrated(run: Run) -> Any:
    from fedpriv.accounting import Budget, Event, calibrate, epsilon, scaled
    from fedpriv.accounting.methods import registry

    registry._epsilons.cache_clear()
    pairs, rate, delta = run
    events = [Event(z, "poisson", "add-remove", rate, count=n) for z, n in pairs]
    scale = calibrate(events, Budget(1.0, delta))
    spent = epsilon([scaled(event, scale) for event in events], delta)
    return [spent.epsilon_lower, spent.epsilon]


def timed(answer: Callable[[Run], Any], case: str, repeats: int = 5) -> dict[str, Any]:
    """Median seconds of up to ``repeats`` computations after a small one; printed after each."""
    answer(CASES["warm-up"])
    seconds: list[float] = []
    found: dict[str, Any] = {}
    for _ in range(repeats):
        start = time.perf_counter()
        value = answer(CASES[case])
        seconds.append(time.perf_counter() - start)
        found = {"seconds": statistics.median(seconds), "epsilon": value, "runs": len(seconds)}
        print(json.dumps(found), flush=True)
    return found


def online() -> dict[str, Any]:
    """Median seconds of affords and charge over rounds 1..100 and 4,901..5,000; the plan's verification."""
    from fedpriv.accounting import Accountant, Budget, Event

    plan = [Event(float(z), "poisson", "add-remove", 1e-3) for z in np.linspace(4.0, 3.0, 5000)]
    start = time.perf_counter()
    budget_gate = Accountant(Budget(5.0, 4e-7), plan=plan)
    budget_gate.affords(plan[:1])
    found: dict[str, Any] = {"verification of the plan": time.perf_counter() - start}
    times = []
    for event in plan:
        start = time.perf_counter()
        assert budget_gate.affords([event])
        budget_gate.charge([event])
        times.append(time.perf_counter() - start)
    found["rounds 1 to 100"] = statistics.median(times[:100])
    found["rounds 4,901 to 5,000"] = statistics.median(times[-100:])
    return found


def child(name: str, case: str, limit: float) -> dict[str, Any] | None:
    """The last line that a separate process printed within the limit."""
    command = [sys.executable, __file__, "--peer", name, "--case", case]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        # Imports are not timed.
        output, errors = process.communicate(timeout=limit + 15)
    except subprocess.TimeoutExpired:
        process.kill()
        output, errors = process.communicate()
    if process.returncode and not output and errors:
        last = errors.strip().splitlines()[-1]
        return {"error": last}
    answers = [json.loads(line) for line in output.splitlines()]
    return answers[-1] if answers and answers[-1]["seconds"] <= limit else None


def row(name: str, found: dict[str, Any] | None, least: float | None, limit: float) -> str:
    if found is None:
        return f"| {name} | none in {limit:g} s | | |"
    if "error" in found:
        return f"| {name} | fails: {found['error'][:70]} | | |"
    low, high = found["epsilon"]
    value = f"{high:.4f}" if low is None else f"{low:.4f} to {high:.4f}"
    ratio = f"{found['seconds'] / least:.1f}" if least else "1"
    return f"| {name} | {value} | {found['seconds']:.3f} | {ratio} |"


def versions() -> str:
    names = []
    for package in ("numpy", "scipy", "dp-accounting", "opacus", "prv-accountant"):
        try:
            names.append(f"{package} {importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:
            names.append(f"{package} not installed")
    return f"Python {platform.python_version()}, {', '.join(names)}; {os.cpu_count()} cores"


def main(limit: float) -> None:
    print(versions())
    for case in ("constant", "distinct", "rare"):
        print(f"\n{case}\n\n| accountant | epsilon | seconds | times ours |\n|---|---|---|---|")
        least = None
        for name in PEERS:
            found = child(name, case, limit)
            print(row(name, found, least, limit), flush=True)
            if least is None and found:
                least = found["seconds"]
    print("\n| ours alone | epsilon | seconds |\n|---|---|---|")
    for name, case in (("100,000 events", "long"), ("calibrate 5,000 steps to epsilon 1", "distinct")):
        found = child("calibrate" if name.startswith("cal") else next(iter(PEERS)), case, 120)
        assert found is not None
        low, high = found["epsilon"]
        print(f"| {name} | {low:.4f} to {high:.4f} | {found['seconds']:.3f} |", flush=True)
    print("\n| affords and charge | milliseconds |\n|---|---|")
    for name, seconds in online().items():
        print(f"| {name} | {1000 * seconds:.3f} |")


if __name__ == "__main__":
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--limit", type=float, default=30, help="seconds that each peer gets")
    parser.add_argument("--peer", help=argparse.SUPPRESS)
    parser.add_argument("--case", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.peer:
        warnings.simplefilter("ignore")
        chosen = calibrated if arguments.peer == "calibrate" else PEERS[arguments.peer]
        timed(chosen, arguments.case)
    else:
        main(arguments.limit)
