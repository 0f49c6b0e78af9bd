"""Wu et al. 2021, section 6.1: ADP-SGD against DP-SGD with step sizes 1/sqrt(20 + t).

    python simulations/adp_sgd/run.py --run           # MNIST, every setting, 5 seeds each
    python simulations/adp_sgd/run.py --run --budget 0.8 --clip-norm 2.5
    python simulations/adp_sgd/run.py --run --data cifar-10 --budget 0.8
    python simulations/adp_sgd/run.py                 # the tables from results.jsonl and cifar.jsonl

MNIST, and CIFAR-10 (JPEG) on fixed features; softmax regression on both. Needs them under $FEDPRIV_DATA
(`fedpriv data fetch mnist`; for CIFAR-10 see ``simulations/cifar_features.py``). Finished runs are appended
to the file of the data set beside this one and skipped the next time, so an interrupted batch goes on where
it was. Runs are seeded to be repeatable; such runs are not private.

A run is `fedpriv train` with the configuration of :func:`config`; ``simulations/side_by_side.py`` makes those
of one length and seed together.
"""

from __future__ import annotations

import argparse
import itertools
import math
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from batches import FRESH, Record, append, markdown, read, spread, unfinished
from side_by_side import Softmax, side_by_side

from fedpriv.accounting import Event, epsilon
from fedpriv.config.centralised import resolve
from fedpriv.config.plan import Plan, make_plan
from fedpriv.optimizers.adp_sgd import Polynomial, predicted_gain


@dataclass(frozen=True)
class DataSet:
    """A data set of the tables: `dataset` of a run, its training examples and the file of its results."""

    dataset: str
    examples: int
    results: Path


HERE = Path(__file__).parent
MNIST = DataSet("mnist", 60_000, HERE / "results.jsonl")
CIFAR = DataSet("cifar_features:features", 50_000, HERE / "cifar.jsonl")
DATA = {"mnist": MNIST, "cifar-10": CIFAR}
COHORT, DELTA = 256, 1e-5
EPOCHS = (60, 120, 200)
STEP_SIZES = Polynomial(a=20.0, c=1.0)  # b_{t+1}
METHODS = {"ADP-SGD": "fitted", "DP-SGD": "constant"}
BUDGETS, CLIP_NORMS = (0.8, 1.2, 1.6, 3.2, 6.4), (2.5, 1.0, 0.5)
SETTINGS = tuple(itertools.product(BUDGETS, CLIP_NORMS))  # (eps-bar, clip norm)


def rounds_of(epochs: float, data: DataSet = MNIST) -> int:
    """The number of releases in ``epochs`` passes over the data."""
    return round(epochs * data.examples / COHORT)


def theorem_multiplier(budget: float, alphas: list[float], data: DataSet = MNIST) -> float:
    """z at alpha = 1 by theorem 4.1 at eps = 16 ``budget``, with their sigma on the MEAN of a cohort.

    Only so do the multipliers give the epsilons of their footnote 3. ``accounting.advanced`` has the theorem
    as it is proved, and refuses these: its proof needs an eps below them.
    """
    logs = math.log(16 * len(alphas) / (data.examples * DELTA)) * math.log(1.25 / DELTA)
    return COHORT / (data.examples * budget) * math.sqrt(logs * math.fsum(1 / a**2 for a in alphas))


def theorem_budget(multiplier: float, alphas: list[float], data: DataSet = MNIST) -> float:
    """The eps-bar of a multiplier at alpha = 1: :func:`theorem_multiplier` solved for it."""
    return theorem_multiplier(1.0, alphas, data) / multiplier


@cache
def certified(budget: float, rounds: int, data: DataSet = MNIST) -> float:
    """The epsilon by PLD of DP-SGD with the theorem's noise: the budget of BOTH methods."""
    z = theorem_multiplier(budget, [1.0] * rounds, data)
    event = Event(z, "poisson", "add-remove", rate=COHORT / data.examples, count=rounds)
    return round(epsilon([event], DELTA).epsilon, 4)


def config(
    budget: float, clip_norm: float, rounds: int, method: str, data: DataSet = MNIST
) -> dict[str, Any]:
    """The settings of `fedpriv train`, except for the seed."""
    return {
        "dataset": data.dataset,
        "model": "logistic",
        "sampling-rate": COHORT / data.examples,
        "rounds": rounds,
        "optimizer": "adp-sgd",
        "averaging": 0.0,  # the paper hands out the newest model
        "adp-noise": METHODS[method],
        "adp-a": STEP_SIZES.a,
        "adp-c": STEP_SIZES.c,
        "learning-rate": 1.0,
        "clip-norm": clip_norm,
        "epsilon": certified(budget, rounds, data),
        "delta": DELTA,
        "evaluate-every": rounds,
    }


@cache
def plan_of(budget: float, clip_norm: float, rounds: int, method: str, data: DataSet) -> Plan:
    """The calibrated run of a method."""
    return make_plan(resolve(config(budget, clip_norm, rounds, method, data)))


@cache
def cost(plan: Plan, data: DataSet) -> dict[str, float]:
    """The plan's noise multipliers, and its epsilon by theorem 4.1 (as eps-bar), by PLD and by RDP."""
    events = plan.mechanism.planned_events()
    alphas = [event.noise_multiplier / plan.mechanism.scale for event in events]
    return {
        "first multiplier": events[0].noise_multiplier,
        "last multiplier": events[-1].noise_multiplier,
        "eps-bar": theorem_budget(plan.mechanism.scale, alphas, data),
        **{name: epsilon(events, DELTA, name).epsilon for name in ("pld", "rdp")},
    }


def run(
    settings: Sequence[tuple[float, float]], epochs: float, seed: int, data: DataSet = MNIST
) -> list[Record]:
    """One seeded run of each method in each setting, its test scores and its cost.

    ``seconds`` are those of all of them.
    """
    started, rounds = time.perf_counter(), rounds_of(epochs, data)
    plans = {
        (setting, method): plan_of(*setting, rounds, method, data)
        for setting, method in itertools.product(settings, METHODS)
    }
    scores = dict(zip(plans, side_by_side(list(plans.values()), seed, Softmax.of), strict=True))
    seconds = round(time.perf_counter() - started, 1)
    return [
        {
            **_key(*setting, epochs, seed),
            **{m: {**scores[setting, m], **cost(plans[setting, m], data)} for m in METHODS},
            "seconds": seconds,
            "note": "reproducible, not private",
        }
        for setting in settings
    ]


def _setting(budget: float, clip_norm: float, epochs: float) -> dict[str, float]:
    return {"budget": budget, "clip norm": clip_norm, "epochs": epochs}


def _key(budget: float, clip_norm: float, epochs: float, seed: int) -> dict[str, float]:
    return {**_setting(budget, clip_norm, epochs), "seed": seed}


def batch(settings: Sequence[tuple[float, float]], data: DataSet) -> None:
    """Run the settings that have no result yet, those of one length and seed together."""
    for seed, epochs in itertools.product(FRESH, EPOCHS):
        print(f"{epochs} epochs, seed {seed}: ", end="")
        todo = unfinished(data.results, [_key(*setting, epochs, seed) for setting in settings])
        if todo:
            some = [(job["budget"], job["clip norm"]) for job in todo]
            append(data.results, run(some, epochs, seed, data))


def runs_of(data: DataSet) -> Callable[[float, float, float], list[Record]]:
    """Gives the finished runs of a data set by budget, clip norm and epochs, with the seeds of the tables."""
    records = [r for r in read(data.results) if r["seed"] in FRESH]
    return lambda *setting: [r for r in records if _setting(*setting).items() <= r.items()]


def row(records: list[dict[str, Any]], data: DataSet) -> tuple[str, ...]:
    """One line of the table, from the runs of a setting."""
    one = records[0]
    gaps = [100 * (r["ADP-SGD"]["accuracy"] - r["DP-SGD"]["accuracy"]) for r in records]
    rounds = rounds_of(one["epochs"], data)
    return (
        f"{one['budget']:g}",
        f"{one['ADP-SGD']['eps-bar']:.3f}, {one['DP-SGD']['eps-bar']:.3f}",
        f"{one['ADP-SGD']['pld']:.4f}, {one['DP-SGD']['pld']:.4f}",
        f"{one['clip norm']:g}",
        f"{one['epochs']} ({rounds:,})",
        *(spread((r[m]["accuracy"] for r in records), 100) for m in METHODS),
        f"**{statistics.mean(gaps):+.2f}** ({', '.join(f'{gap:+.2f}' for gap in gaps)})",
        *(spread((r[m]["loss"] for r in records), digits=3) for m in METHODS),
        f"{predicted_gain(STEP_SIZES, rounds):.2f}",
    )


def table(data: DataSet) -> str:
    """Markdown of a data set's results: a row per budget, clip norm and length."""
    methods = ("ADP-SGD, %", "DP-SGD, %", "gap (seed by seed)", "ADP-SGD, loss", "DP-SGD, loss")
    titles = ("eps-bar", "by theorem 4.1: ADP, DP", "by PLD: ADP, DP", "clip norm", "epochs (T)", *methods)
    runs = runs_of(data)
    groups = (runs(*setting, epochs) for setting, epochs in itertools.product(SETTINGS, EPOCHS))
    return markdown((*titles, "M_dp / M_adp"), [row(own, data) for own in groups if own])


def gaps(data: DataSet) -> str:
    """Markdown of a data set's results: by setting and length DP-SGD's accuracy, and what ADP-SGD adds."""
    runs = runs_of(data)

    def cell(budget: float, clip_norm: float, epochs: int) -> str:
        found = runs(budget, clip_norm, epochs)
        base = [100 * r["DP-SGD"]["accuracy"] for r in found]
        more = [100 * r["ADP-SGD"]["accuracy"] - own for r, own in zip(found, base, strict=True)]
        if len(found) < 2:
            return ""
        fewer = f" ({len(found)})" if len(found) < len(FRESH) else ""
        return (
            f"{statistics.mean(base):.2f}, {statistics.mean(more):+.2f} ± {statistics.stdev(more):.2f}{fewer}"
        )

    rows = [(f"{b:g}", f"{c:g}", *(cell(b, c, epochs) for epochs in EPOCHS)) for b, c in SETTINGS]
    return markdown(("eps-bar", "clip norm", *(f"{epochs} epochs" for epochs in EPOCHS)), rows)


def main() -> None:
    """See the module's docstring."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--run", action="store_true")
    parser.add_argument("--data", choices=DATA, default="mnist", help="what to run")
    parser.add_argument("--budget", type=float, help="only this eps-bar")
    parser.add_argument("--clip-norm", type=float, help="only this clip norm")
    options = parser.parse_args()
    if options.run:
        some = [s for s in SETTINGS if options.budget in (None, s[0]) and options.clip_norm in (None, s[1])]
        batch(some, DATA[options.data])
    for name, data in DATA.items():
        if data.results.exists():
            print(f"{name}:\n\n{table(data)}\n")
    print(f"mnist, DP-SGD's accuracy and what ADP-SGD adds:\n\n{gaps(MNIST)}")


if __name__ == "__main__":
    main()
