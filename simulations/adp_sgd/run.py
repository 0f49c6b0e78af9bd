"""Wu et al. 2021, section 6.1: ADP-SGD against DP-SGD with step sizes 1/sqrt(20 + t), on MNIST.

    python simulations/adp_sgd/run.py --run           # every setting, 5 seeds each
    python simulations/adp_sgd/run.py --run --budget 0.8 --clip-norm 2.5
    python simulations/adp_sgd/run.py                 # the table from results.jsonl

Needs MNIST under $FEDPRIV_DATA (`fedpriv data fetch mnist`). Finished runs are appended to
``results.jsonl`` beside this file and skipped the next time, so an interrupted batch goes on where it was.
Runs are seeded to be repeatable; such runs are not private.

A run is `fedpriv train` with the configuration of :func:`config`. The two methods of a seed draw the same
cohorts and the same normals there, so :func:`run_both` makes their steps side by side and reads each
cohort once: tens of thousands of steps take a third of the time, and end at the same parameters up to
rounding (tests/simulations/test_adp_sgd.py).
"""

from __future__ import annotations

import argparse
import itertools
import math
import statistics
import sys
import time
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
import numpy as np
import torch
from batches import FRESH, collect, markdown, read, spread
from torch import Tensor

from fedpriv.accounting import Event, epsilon
from fedpriv.config.builders import initial_params, make_source, make_task
from fedpriv.config.centralised import resolve
from fedpriv.config.plan import Plan, make_plan
from fedpriv.mechanism.gaussian import Normals
from fedpriv.mechanism.release import SERVER
from fedpriv.optimizers.adp_sgd import Polynomial, predicted_gain
from fedpriv.rng import Key

RESULTS = Path(__file__).with_name("results.jsonl")
EXAMPLES, COHORT, DELTA = 60_000, 256, 1e-5
EPOCHS = (60, 120, 200)
STEP_SIZES = Polynomial(a=20.0, c=1.0)  # b_{t+1}
METHODS = {"ADP-SGD": "fitted", "DP-SGD": "constant"}
BUDGETS, CLIP_NORMS = (0.8, 1.2, 1.6, 3.2, 6.4), (2.5, 1.0, 0.5)
SETTINGS = tuple(itertools.product(BUDGETS, CLIP_NORMS))  # (eps-bar, clip norm)


def rounds_of(epochs: float) -> int:
    """The number of releases in ``epochs`` passes over the data."""
    return round(epochs * EXAMPLES / COHORT)


def theorem_multiplier(budget: float, alphas: list[float]) -> float:
    """z at alpha = 1 by theorem 4.1 at eps = 16 ``budget``, with their sigma on the MEAN of a cohort.

    Only so do the multipliers give the epsilons of their footnote 3. ``accounting.advanced`` has the theorem
    as it is proved, and refuses these: its proof needs an eps below them.
    """
    logs = math.log(16 * len(alphas) / (EXAMPLES * DELTA)) * math.log(1.25 / DELTA)
    return COHORT / (EXAMPLES * budget) * math.sqrt(logs * math.fsum(1 / a**2 for a in alphas))


def theorem_budget(multiplier: float, alphas: list[float]) -> float:
    """The eps-bar of a multiplier at alpha = 1: :func:`theorem_multiplier` solved for it."""
    return theorem_multiplier(1.0, alphas) / multiplier


@cache
def certified(budget: float, rounds: int) -> float:
    """The epsilon by PLD of DP-SGD with the theorem's noise: the budget of BOTH methods."""
    z = theorem_multiplier(budget, [1.0] * rounds)
    event = Event(z, "poisson", "add-remove", rate=COHORT / EXAMPLES, count=rounds)
    return round(epsilon([event], DELTA).epsilon, 4)


def config(budget: float, clip_norm: float, rounds: int, method: str) -> dict[str, Any]:
    """The settings of `fedpriv train`, except for the seed."""
    return {
        "dataset": "mnist",
        "model": "logistic",
        "sampling-rate": COHORT / EXAMPLES,
        "rounds": rounds,
        "optimizer": "adp-sgd",
        "averaging": 0.0,  # the paper hands out the newest model
        "adp-noise": METHODS[method],
        "adp-a": STEP_SIZES.a,
        "adp-c": STEP_SIZES.c,
        "learning-rate": 1.0,
        "clip-norm": clip_norm,
        "epsilon": certified(budget, rounds),
        "delta": DELTA,
        "evaluate-every": rounds,
    }


@cache
def plan_of(budget: float, clip_norm: float, rounds: int, method: str) -> Plan:
    """The calibrated run of a method."""
    return make_plan(resolve(config(budget, clip_norm, rounds, method)))


class Softmax:
    """Clipped sums of logistic regression's gradients (p - e_y) (x, 1)^T for several models at once.

    Args:
        x, y: all training examples (N, ...) and labels (N,).
        classes: the number of labels.
    """

    def __init__(self, x: Tensor, y: Tensor, classes: int) -> None:
        self._x = torch.cat([x.flatten(1), torch.ones(len(x), 1)], dim=1)
        self._y, self._classes, self._norms = y, classes, self._x.norm(dim=1)

    def sums(self, params: list[Tensor], ids: Tensor, clip_norm: float) -> list[Tensor]:
        """For each parameter vector (d,) the sum (d,) over the examples ``ids``."""
        x, features = self._x[ids], self._x.shape[1] - 1
        split = features * self._classes
        weights = [torch.cat([p[:split].view(-1, features), p[split:, None]], dim=1) for p in params]
        residuals = torch.softmax((x @ torch.cat(weights).T).view(len(ids), len(params), -1), dim=2)
        residuals[torch.arange(len(ids)), :, self._y[ids]] -= 1
        norms = residuals.norm(dim=2) * self._norms[ids, None]
        residuals *= (clip_norm / norms.clamp(min=clip_norm))[:, :, None]
        totals = (residuals.flatten(1).T @ x).view(len(params), -1, features + 1)
        return [torch.cat([t[:, :-1].reshape(-1), t[:, -1]]) for t in totals]


def run_both(plans: list[Plan], seed: int) -> list[dict[str, float]]:
    """The test scores of the plans' last parameters, all run with this seed."""
    config, sampler = plans[0].config, plans[0].mechanism.sampler
    source = make_source(config)
    task, key = make_task(config, source), Key.from_seed(seed)
    model = Softmax(*source.batch(np.arange(config.units)), source.classes)
    stds = [[config.clip_norm * e.noise_multiplier for e in p.mechanism.planned_events()] for p in plans]
    params = [initial_params(task, key)] * len(plans)
    b = Polynomial(config.own.adp_a, config.own.adp_c)
    for t in range(config.rounds):
        ids = torch.from_numpy(sampler.draw(key.generator("cohort", t)))
        ahead = Normals(key, (SERVER, t), params[:1])
        sums = model.sums(params, ids, config.clip_norm)
        (normals,) = ahead.take()
        for i, total in enumerate(sums):
            answer = total.add(normals, alpha=stds[i][t]) / sampler.expected_size
            params[i] = params[i] - config.learning_rate / b(t) * answer
    return [task.evaluate(p, *source.test()) for p in params]


@cache
def cost(plan: Plan) -> dict[str, float]:
    """The plan's noise multipliers, and its epsilon by theorem 4.1 (as eps-bar), by PLD and by RDP."""
    events = plan.mechanism.planned_events()
    alphas = [event.noise_multiplier / plan.mechanism.scale for event in events]
    return {
        "first multiplier": events[0].noise_multiplier,
        "last multiplier": events[-1].noise_multiplier,
        "eps-bar": theorem_budget(plan.mechanism.scale, alphas),
        **{name: epsilon(events, DELTA, name).epsilon for name in ("pld", "rdp")},
    }


def run(budget: float, clip_norm: float, epochs: float, seed: int) -> dict[str, Any]:
    """One seeded run of each method, its test scores and its cost."""
    started = time.perf_counter()
    plans = {m: plan_of(budget, clip_norm, rounds_of(epochs), m) for m in METHODS}
    scores = run_both(list(plans.values()), seed)
    return {
        **_key(budget, clip_norm, epochs, seed),
        **{m: {**s, **cost(p)} for (m, p), s in zip(plans.items(), scores, strict=True)},
        "seconds": round(time.perf_counter() - started, 1),
        "note": "reproducible, not private",
    }


def _key(budget: float, clip_norm: float, epochs: float, seed: int) -> dict[str, float]:
    return {"budget": budget, "clip norm": clip_norm, "epochs": epochs, "seed": seed}


def batch(settings: Iterable[tuple[float, float]]) -> None:
    """Run the settings that have no result yet, seed by seed."""
    jobs = [_key(*setting, epochs, seed) for seed in FRESH for epochs in EPOCHS for setting in settings]
    collect(RESULTS, jobs, lambda job: run(*job.values()))


def row(records: list[dict[str, Any]]) -> tuple[str, ...]:
    """One line of the table, from the runs of a setting."""
    one = records[0]
    gaps = [100 * (r["ADP-SGD"]["accuracy"] - r["DP-SGD"]["accuracy"]) for r in records]
    rounds = rounds_of(one["epochs"])
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


def table() -> str:
    """Markdown of results.jsonl: a row per budget, clip norm and length."""
    methods = ("ADP-SGD, %", "DP-SGD, %", "gap (seed by seed)", "ADP-SGD, loss", "DP-SGD, loss")
    titles = ("eps-bar", "by theorem 4.1: ADP, DP", "by PLD: ADP, DP", "clip norm", "epochs (T)", *methods)
    records = [r for r in read(RESULTS) if r["seed"] in FRESH]
    groups = (
        [r for r in records if _key(budget, clip_norm, epochs, r["seed"]).items() <= r.items()]
        for (budget, clip_norm), epochs in itertools.product(SETTINGS, EPOCHS)
    )
    return markdown((*titles, "M_dp / M_adp"), [row(own) for own in groups if own])


def main() -> None:
    """See the module's docstring."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--run", action="store_true")
    parser.add_argument("--budget", type=float, help="only this eps-bar")
    parser.add_argument("--clip-norm", type=float, help="only this clip norm")
    options = parser.parse_args()
    if options.run:
        batch([s for s in SETTINGS if options.budget in (None, s[0]) and options.clip_norm in (None, s[1])])
    print(table())


if __name__ == "__main__":
    main()
