"""Koskela & Honkela 2020, section 5.5: a Gaussian mixture by private variational inference, by ADADP.

    python simulations/adadp/gaussian_mixture.py --search    # one seed of each step size of the grids
    python simulations/adadp/gaussian_mixture.py --run       # 5 other seeds of ADADP and of the three best
    python simulations/adadp/gaussian_mixture.py --starts    # ADADP from four first step sizes (Figure 6)
    python simulations/adadp/gaussian_mixture.py --reference # where runs start, and Adam without privacy
    python simulations/adadp/gaussian_mixture.py --picture   # gaussian_mixture.png, from the results
    python simulations/adadp/gaussian_mixture.py --short     # one small run of ADADP, some seconds
    python simulations/adadp/gaussian_mixture.py             # the tables, from gaussian_mixture.jsonl

It needs no data: the paper's is drawn. Finished runs are appended to ``gaussian_mixture.jsonl`` beside this
file and skipped the next time. Runs are seeded to be repeatable; such runs are not private.

The model, for examples x in R^2 and K = 5 components:

    pi ~ Dirichlet(1, ..., 1)    mu_k ~ N(0, I)    sigma_k ~ Inv-Gamma(1, 1)
    p(x | theta) = sum_k pi_k N(x; mu_k, sigma_k I)

theta (P,) are the unconstrained parameters: mu, log sigma, and the logits of a stick-breaking of pi, which
are 0 for equal weights. The posterior q is a Gaussian with mean ``location`` and standard deviation
softplus(``raw_scale``) in each of them. An example's loss is

    -L_i(q) = -<ln p(x_i | theta)>_q + KL(q || p) / N.

The KL term has no example in it, and N = 1,000 is a public constant, also for neighbouring data. KL has a
closed form but for the sticks, which a quadrature gives to the last digits. The expectation is a mean over
draws theta = location + softplus(raw_scale) * draw (Kingma & Welling 2014), and its gradient is clipped as a
whole. The draws of a release are standard normals that depend on no data. They are parameters of the model
without a gradient: :class:`FreshDraws` sets them anew in each query, the same for all examples, and drops
the noise on them.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
import numpy as np
import torch
import torch.nn.functional as F
from batches import FRESH, Record, append, markdown, read, spread
from torch import Tensor, nn

from fedpriv._internal.files import atomic
from fedpriv._internal.plotting import png
from fedpriv.accounting import Accountant, Budget, Ledger, epsilon
from fedpriv.clipping.explicit import sum_rows
from fedpriv.data import Arrays, OneExample, View
from fedpriv.federated.client_update import OneGradient
from fedpriv.federated.cohorts import CohortSampler
from fedpriv.federated.engine import Engine, PartialSum, SumRequest
from fedpriv.federated.loop import Mechanism, Progress
from fedpriv.federated.loop import run as run_loop
from fedpriv.federated.worker import Worker
from fedpriv.mechanism.grid import on_grid
from fedpriv.mechanism.placement import Central
from fedpriv.mechanism.query import NoisyAnswer, Query
from fedpriv.mechanism.sampling import Poisson
from fedpriv.optimizers.adadp import adadp
from fedpriv.optimizers.base import OptimizerWrapper, PrivateOptimizer, State
from fedpriv.optimizers.first_order import dp_sgd
from fedpriv.parameters import Layout, vector_of
from fedpriv.rng import Key
from fedpriv.tasks.task import Task

FOLDER = Path(__file__).parent
RESULTS, PICTURE = FOLDER / "gaussian_mixture.jsonl", FOLDER / "gaussian_mixture.png"
CENTRES = ((0.0, 0.0), (1.0, 1.0), (1.0, -1.0), (-1.0, 1.0), (-1.0, -1.0))
EXAMPLES, TEST, MANY, COHORT, DELTA = 1000, 100, 10_000, 20, 1e-6
CLIP_NORM, TOLERANCE, ALPHA_MIN, ALPHA_MAX, DECAY = 1.0, 0.1, 0.9, 1.1, 0.1
RELEASES = {1.2: 3000, 6.0: 8000}  # by sigma
EPOCH = EXAMPLES // COHORT  # releases: "50 iterations equals one epoch"
DRAWS, TEST_DRAWS = 8, 100
CURVE = 20  # points of a curve
CHOICE = 0  # the seed of the search; the table has other seeds
GRID = tuple(10.0 ** (k / 2) for k in range(-6, 2))  # DP-SGD's step sizes
BEST = 3  # of the grid are in the table
PAPERS, HALVES = "ADADP", "ADADP, half steps kept"
START, STARTS = 0.1, (1e-3, 1e-2, 1e-1, 1.0)


def draw_data(count: int, generator: np.random.Generator) -> np.ndarray:
    """Examples (count, 2) of the five Gaussians, whose covariances are I; each centre is as likely."""
    centres = np.array(CENTRES)[generator.integers(len(CENTRES), size=count)]
    return (centres + generator.standard_normal((count, 2))).astype(np.float32)


@cache
def source() -> Arrays:
    """The paper's data: 1,000 examples and 100 test examples, the same for all runs. Targets are unused."""
    generator = np.random.default_rng(2020)
    x, test_x = draw_data(EXAMPLES, generator), draw_data(TEST, generator)
    return Arrays(
        "gaussian-mixture", x, np.zeros(EXAMPLES), test_x, np.zeros(TEST), classes=1, target="value"
    )


@cache
def many() -> Tensor:
    """10,000 further examples, for a score with little error of its own."""
    return torch.from_numpy(draw_data(MANY, np.random.default_rng(2021)))


def true_log_likelihood(x: Tensor) -> float:
    """The mean log-density of x (n, 2) under the mixture that the data are drawn from."""
    distances = (x[:, None, :] - torch.tensor(CENTRES)).square().sum(2)
    logs = -distances / 2 - math.log(2 * math.pi) - math.log(len(CENTRES))
    return float(torch.logsumexp(logs, 1).double().mean())


def log_likelihoods(theta: Tensor, x: Tensor, components: int) -> Tensor:
    """ln p(x | theta), shape (n, S), of x (n, D) under unconstrained parameters theta (S, P)."""
    features = x.shape[1]
    mu, log_sigma, sticks = theta.split([components * features, components, components - 1], dim=1)
    distances = (x[:, None, None, :] - mu.view(-1, components, features)).square().sum(3)
    logs = -distances / (2 * log_sigma.exp()) - features / 2 * (log_sigma + math.log(2 * math.pi))
    return torch.logsumexp(logs + log_weights(sticks), dim=2)


def log_weights(sticks: Tensor) -> Tensor:
    """ln pi (S, K) by stick-breaking from logits (S, K - 1), which are 0 for equal weights."""
    left = torch.arange(sticks.shape[1], 0, -1, device=sticks.device)  # K - k components after the k-th
    logits = sticks - left.log()
    broken = F.pad(F.logsigmoid(-logits).cumsum(1), (1, 0))
    return F.pad(F.logsigmoid(logits), (0, 1)) + broken


def kl_from_prior(location: Tensor, scale: Tensor, components: int, features: int) -> Tensor:
    """KL(q || p), a scalar, of the Gaussian q with these means and standard deviations (P,)."""
    sizes = [components * features, components, components - 1]
    (mu, log_sigma, sticks), (mu_std, log_std, stick_std) = location.split(sizes), scale.split(sizes)
    entropy = scale.log().sum() + len(location) / 2 * (1 + math.log(2 * math.pi))
    normal = -0.5 * (mu.square() + mu_std.square() + math.log(2 * math.pi)).sum()
    inverse_gamma = -(log_sigma + torch.exp(-log_sigma + log_std.square() / 2)).sum()
    # With Dirichlet(1, ..., 1), the k-th stick is Beta(1, K - k); dlogit adds stick (1 - stick).
    left = torch.arange(components - 1, 0, -1, device=location.device, dtype=location.dtype)
    nodes, weights = (torch.from_numpy(part).to(location) for part in _hermite())
    logits = sticks[:, None] + stick_std[:, None] * nodes - left.log()[:, None]
    stick = left.log()[:, None] + F.logsigmoid(logits) + left[:, None] * F.logsigmoid(-logits)
    return -entropy - normal - inverse_gamma - (stick * weights).sum()


@cache
def _hermite(count: int = 32) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights for the mean of a function of a standard normal."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(count)
    return nodes, weights / weights.sum()


class Posterior(nn.Module):
    """q, as a model: inputs x (n, D) -> -L_i (n, 1).

    Means of components start at draws of their prior by ``seed``, all other means at 0, standard deviations
    at softplus(-2) = 0.13.
    """

    def __init__(self, seed: int = 0, components: int = 5, features: int = 2, draws: int = DRAWS) -> None:
        super().__init__()
        self.components, self.features = components, features
        count = components * (features + 2) - 1
        means = np.random.default_rng(seed).standard_normal(components * features)
        start = torch.zeros(count)
        start[: components * features] = torch.from_numpy(means)
        self.location = nn.Parameter(start)
        self.raw_scale = nn.Parameter(torch.full((count,), -2.0))
        self.draws = nn.Parameter(torch.zeros(draws, count))

    def forward(self, x: Tensor) -> Tensor:
        """-L_i of the examples x (n, D), shape (n, 1), by the model's draws."""
        scale = F.softplus(self.raw_scale)
        theta = self.location + scale * self.draws.detach()
        expected = log_likelihoods(theta, x, self.components).mean(1, keepdim=True)
        return kl_from_prior(self.location, scale, self.components, self.features) / EXAMPLES - expected


def negative_elbo(outputs: Tensor, y: Tensor) -> Tensor:
    """The loss: the model's output is the loss of the example already."""
    return outputs[:, 0]


@dataclass(frozen=True)
class FreshDraws(OptimizerWrapper):
    """An optimizer around another: each query has new draws, and no answer changes any.

    The draws depend on ``seed`` and the number of the step. The inner optimizer's own draws stay 0, so that
    they add nothing to ADADP's error.

    Attributes:
        layout: the position of the parameter ``draws`` in the vector (d,).
        seed: of the draws; public.
    """

    layout: Layout
    seed: int

    def query(self, state: State) -> Query:
        """The inner query at the same point with the draws of this step."""
        query, draws = super().query(state), self.drawn(state.step)
        return replace(query, points=tuple(self._with(point, draws) for point in query.points))

    def update(self, state: State, answer: NoisyAnswer) -> State:
        """The inner update, without the noise on the draws."""
        return super().update(state, tuple(self._with(one, torch.zeros(())) for one in answer))

    def drawn(self, step: int) -> Tensor:
        """The draws (S, P) of a step."""
        generator = np.random.default_rng((self.seed, step))
        [slot] = [slot for slot in self.layout.slots if slot.name == "draws"]
        return torch.from_numpy(generator.standard_normal(slot.shape, np.float32))

    def _with(self, vector: Tensor, draws: Tensor) -> Tensor:
        [slot] = [slot for slot in self.layout.slots if slot.name == "draws"]
        changed = vector.clone()
        changed[slot.offset : slot.offset + slot.size] = draws.to(vector).flatten()
        return changed


@dataclass(frozen=True)
class Decayed:
    """Equation 5.1: eta until ``after`` releases, then eta / (1 + 0.1 k) in the k-th epoch after them."""

    step_size: float
    after: int

    def __call__(self, step: int) -> float:
        """The step size of a release."""
        epochs = 0 if step < self.after else (step - self.after) // EPOCH + 1
        return self.step_size / (1 + DECAY * epochs)


def optimizer_of(method: str, step_size: float, releases: int) -> PrivateOptimizer:
    """The optimizer of a method, which decays after half of the epochs."""
    after = releases // (2 * EPOCH) * EPOCH
    if method == "DP-SGD":
        return dp_sgd(Decayed(step_size, after), CLIP_NORM)
    return adadp(
        step_size,
        CLIP_NORM,
        TOLERANCE,
        alpha_min=ALPHA_MIN,
        alpha_max=ALPHA_MAX,
        discard=True,
        decay_after=after,
        epoch=EPOCH,
        decay=DECAY,
        variant="paper" if method == PAPERS else "half-steps",
    )


def expected_log_likelihood(task: Task, params: Tensor, x: Tensor) -> float:
    """The mean of <ln p(x | theta)>_q over x (n, 2), by 100 draws that are the same for all q."""
    parts = task.layout.split(params)
    draws = np.random.default_rng(7).standard_normal((TEST_DRAWS, len(parts["location"])))
    theta = parts["location"] + F.softplus(parts["raw_scale"]) * torch.from_numpy(draws).float()
    return float(torch.cat([log_likelihoods(theta, part, 5).mean(1) for part in x.split(1000)]).mean())


def mechanism_of(cell: Mapping[str, Any], task: Task, seed: int) -> Mechanism:
    """A cell's run: releases of Poisson cohorts of 20 expected, whose noise is sigma clip norms."""
    inner = optimizer_of(cell["method"], cell["step size"], cell["releases"])
    optimizer = FreshDraws(inner, task.layout, seed)
    sampler = Poisson(EXAMPLES, COHORT / EXAMPLES)
    return Mechanism(optimizer, sampler, Central(), cell["sigma"], cell["releases"])


class Together:
    """The sums of several runs that go in lock step, whose gradients are computed at once.

    Each run has a loop, an accountant and noise of its own, in a thread; only the gradients have one call, so
    that a run takes a fifth of the time. Their clip is that of :func:`fedpriv.clipping.explicit.sum_rows`.
    """

    def __init__(self, task: Task, x: Tensor, runs: int) -> None:
        self.task, self.x = task, x
        self.barrier = threading.Barrier(runs, self._answer)
        self.requests: list[SumRequest | None] = [None] * runs
        self.replies: list[PartialSum] = []

    def _answer(self) -> None:
        """The clipped sums of all runs' cohorts, when the last run has asked."""
        requests = [request for request in self.requests if request is not None]
        cohorts = [np.concatenate([[], *(s.ids for s in one.shards)]).astype(np.int64) for one in requests]
        padded = np.zeros((len(cohorts), max(1, *map(len, cohorts))), np.int64)
        for row, cohort in zip(padded, cohorts, strict=True):
            row[: len(cohort)] = cohort
        points = torch.stack([one.query.points[0] for one in requests])
        x = self.x[torch.from_numpy(padded)]
        rows = torch.func.vmap(self.task.gradients, (0, 0, None))(points, x, torch.zeros(x.shape[1]))
        self.replies = []
        for request, cohort, own in zip(requests, cohorts, rows, strict=True):
            [block] = request.query.blocks
            [total] = sum_rows([own[: len(cohort)]], [block])
            parties = sum(shard.parties for shard in request.shards)
            self.replies.append(PartialSum((on_grid(total, block, 0.0),), parties))


@dataclass(frozen=True)
class Member:
    """The engine of one of the runs in lock step."""

    together: Together
    number: int

    def gather(self, request: SumRequest) -> PartialSum:
        """Wait for the other runs, and answer."""
        self.together.requests[self.number] = request
        self.together.barrier.wait()
        return self.together.replies[self.number]

    def close(self) -> None:
        """Nothing to release."""


def task_of(seed: int = 0) -> tuple[Posterior, Task]:
    """q where a seed starts it, and its task."""
    model = Posterior(seed)
    return model, Task(model, loss=negative_elbo)


def worker(task: Task, key: Key) -> Worker:
    """The engine of a single run, as a command of fedpriv has it."""
    return Worker(task, OneGradient(), View(source(), OneExample(EXAMPLES)), key, torch.device("cpu"))


def run(cell: Mapping[str, Any], seed: int, engine: Engine | None = None) -> Record:
    """One seeded run: its scores, its curve, and the epsilon of what its ledger has."""
    torch.set_num_threads(1)
    started, key = time.perf_counter(), Key.from_seed(seed)
    model, task = task_of(seed)
    mechanism, (test_x, _) = mechanism_of(cell, task, seed), source().test("cpu")
    events = mechanism.planned_events()
    budget = Budget(epsilon(events, DELTA, "pld").epsilon * (1 + 1e-6), DELTA, "pld")
    cohorts = CohortSampler(mechanism.sampler, key, chunk_size=EXAMPLES)
    curve: list[list[float]] = []

    def observe(progress: Progress) -> None:
        if progress.round % (cell["releases"] // CURVE) == 0:
            score = expected_log_likelihood(task, progress.state.params, test_x)
            curve.append([progress.round, round(score, 4), round(step_size(mechanism, progress.state), 6)])

    with tempfile.TemporaryDirectory() as folder, Ledger.create(Path(folder) / "ledger", {}) as ledger:
        accountant, start = Accountant(budget, events, ledger), vector_of(model, task.layout)
        outcome = run_loop(mechanism, start, engine or worker(task, key), accountant, key, cohorts, observe)
        spent = accountant.spent()
    params = outcome.state.params
    return {
        "cell": dict(cell),
        "seed": seed,
        "log-likelihood": expected_log_likelihood(task, params, test_x),
        "log-likelihood of 10,000": expected_log_likelihood(task, params, many()),
        "releases": accountant.releases,
        "delta": DELTA,
        "epsilon": {
            "pld": {"epsilon": spent.epsilon, "kind": spent.kind},
            "rdp": {"epsilon": epsilon(events, DELTA, "rdp").epsilon, "kind": "bound"},
        },
        "curve": curve,
        "seconds": round(time.perf_counter() - started, 1),
        "note": "reproducible, not private",
    }


def run_together(jobs: Sequence[tuple[Mapping[str, Any], int]]) -> list[Record]:
    """:func:`run` of several cells with the same number of releases, in lock step."""
    _, task = task_of()
    x, y, _ = View(source(), OneExample(EXAMPLES)).batch(np.arange(EXAMPLES))
    task.losses(torch.zeros(task.dimension), x[:1], y[:1])  # tries the loss, before any vmap
    together = Together(task, x, len(jobs))

    def one(number: int) -> Record:
        try:
            return run(*jobs[number], Member(together, number))
        except BaseException:
            together.barrier.abort()  # the others would wait for ever
            raise

    with ThreadPoolExecutor(len(jobs)) as pool:
        return list(pool.map(one, range(len(jobs))))


def step_size(mechanism: Mechanism, state: State) -> float:
    """The step size that ADADP has adapted so far, or the schedule's."""
    inner = mechanism.optimizer.inner
    return inner.step_size_of(state) if hasattr(inner, "step_size_of") else inner.learning_rate(state.step)


def reference(seed: int) -> Record:
    """The scores of q where a seed starts it, and after 800 steps of Adam on all examples, not private."""
    model, task = task_of(seed)
    x, y, _ = View(source(), OneExample(EXAMPLES)).batch(np.arange(EXAMPLES))
    params = vector_of(model, task.layout)
    draws, test_x = FreshDraws(dp_sgd(1.0, CLIP_NORM), task.layout, seed), source().test("cpu")[0]
    start = expected_log_likelihood(task, params, test_x), expected_log_likelihood(task, params, many())
    leaf = params.clone().requires_grad_()
    adam = torch.optim.Adam([leaf], 0.02)
    for step in range(800):
        adam.zero_grad()
        point = draws.query(State(leaf, step)).points[0]
        task.losses(point, x, y).mean().backward()
        adam.step()
    end = leaf.detach()
    return {
        "cell": {"part": "reference", "method": "Adam, no privacy"},
        "seed": seed,
        "start": start[0],
        "start of 10,000": start[1],
        "log-likelihood": expected_log_likelihood(task, end, test_x),
        "log-likelihood of 10,000": expected_log_likelihood(task, end, many()),
        "note": "not private",
    }


def cell(part: str, method: str, sigma: float, step_size: float, releases: int | None = None) -> Record:
    """A number of the table before its seeds; the releases are the paper's where none are given."""
    count = RELEASES[sigma] if releases is None else releases
    return {"part": part, "method": method, "sigma": sigma, "step size": step_size, "releases": count}


def found(cell: Mapping[str, Any], seeds: Iterable[int] = FRESH) -> list[Record]:
    """The finished runs of a cell with these seeds."""
    return [r for r in read(RESULTS) if r["cell"] == cell and r["seed"] in seeds]


def searched(sigmas: Iterable[float]) -> list[Record]:
    """The grid of DP-SGD."""
    return [cell("search", "DP-SGD", sigma, rate) for sigma in sigmas for rate in GRID]


def best(sigma: float) -> list[float]:
    """The step sizes that were best on the 100 test examples with the seed of the search, best first."""
    scored = [
        (r["log-likelihood"], r["cell"]["step size"]) for c in searched([sigma]) for r in found(c, [CHOICE])
    ]
    return [rate for _, rate in sorted(scored, reverse=True)[:BEST]]


def compared(sigma: float) -> list[Record]:
    """The rows of the table at a sigma: ADADP, and DP-SGD's best step sizes."""
    ours = [cell("table", method, sigma, START) for method in (PAPERS, HALVES)]
    return [*ours, *(cell("table", "DP-SGD", sigma, rate) for rate in best(sigma))]


def starts(sigmas: Iterable[float]) -> list[Record]:
    """ADADP from other first step sizes."""
    return [cell("starts", PAPERS, sigma, start) for sigma in sigmas for start in STARTS]


def batch(jobs: Iterable[tuple[Record, int]]) -> None:
    """Run the jobs that have no result yet, those with equal numbers of releases in lock step."""
    todo = [(made, seed) for made, seed in jobs if not found(made, [seed])]
    for _, group in itertools.groupby(todo, lambda job: job[0]["releases"]):
        append(RESULTS, run_together(list(group)))


def rows() -> Iterator[tuple[str, ...]]:
    """The table's rows."""
    for sigma in RELEASES:
        for made in compared(sigma):
            if runs := found(made):
                costs = [max(r["epsilon"][name]["epsilon"] for r in runs) for name in ("pld", "rdp")]
                scores = ("log-likelihood", "log-likelihood of 10,000")
                yield (
                    f"{sigma:g} ({made['releases']:,})",
                    *(f"{cost:.2f}" for cost in costs),
                    made["method"] + (f", {made['step size']:.2g}" if made["method"] == "DP-SGD" else ""),
                    *(spread((r[score] for r in runs), digits=3) for score in scores),
                )


def table() -> str:
    """Markdown: mean log-likelihoods per example."""
    titles = (
        "sigma (releases)",
        "epsilon, PLD",
        "epsilon, RDP",
        "method",
        "100 test examples",
        "10,000 examples",
    )
    return markdown(titles, rows())


def search_table() -> str:
    """Markdown of the search: the log-likelihood of the 100 test examples by step size, one seed."""
    titles = ("sigma", *(f"{rate:.2g}" for rate in GRID))
    lines = []
    for sigma in RELEASES:
        scored = {c["step size"]: found(c, [CHOICE]) for c in searched([sigma])}
        lines.append([f"{sigma:g}", *(f"{r[0]['log-likelihood']:.3f}" if r else "" for r in scored.values())])
    return markdown(titles, lines)


def picture() -> bytes:
    """Figures 5 and 6: above test log-likelihoods by epoch, means over seeds; below ADADP's step sizes."""
    from matplotlib.figure import Figure

    drawn = Figure(figsize=(10, 7), layout="constrained")
    for axes, sigma in zip(drawn.subplots(2, 2).T, RELEASES, strict=True):
        for made in compared(sigma):
            if runs := found(made):
                curves = np.array([r["curve"] for r in runs])
                own = made["method"] != "DP-SGD"
                name = made["method"] if own else f"DP-SGD, step size {made['step size']:.2g}"
                style = "-" if own else "--"
                axes[0].plot(
                    curves[0, :, 0] / EPOCH, curves[:, :, 1].mean(0), style, label=f"{name} ({len(runs)})"
                )
        truth = true_log_likelihood(source().test("cpu")[0])
        axes[0].axhline(truth, color="black", linewidth=0.8, label="the true density")
        axes[0].set(title=f"sigma = {sigma:g}", ylabel="log-likelihood of a test example")
        decayed = Decayed(1.0, RELEASES[sigma] // (2 * EPOCH) * EPOCH)
        for made in starts([sigma]):
            for one in found(made):
                at, _, sizes = zip([1, 0, made["step size"]], *one["curve"], strict=True)
                used = [size * decayed(int(release) - 1) for release, size in zip(at, sizes, strict=True)]
                name = f"first step size {made['step size']:g}"
                axes[1].plot(np.array(at) / EPOCH, used, label=name)
        axes[1].set(ylabel="ADADP's step size", yscale="log")
        for one in axes:
            one.set(xlabel="epoch")
            one.grid(alpha=0.3)
            if one.lines:
                one.legend(fontsize=8)
    return png(drawn, dpi=100)


def short() -> Record:
    """A small run of ADADP."""
    return run(cell("short", PAPERS, 1.2, START, 300), CHOICE)


def main() -> None:
    """See the module's docstring."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    for flag in ("--search", "--run", "--starts", "--reference", "--picture", "--short"):
        parser.add_argument(flag, action="store_true")
    parser.add_argument("--sigma", type=float, action="append", choices=tuple(RELEASES))
    options = parser.parse_args()
    sigmas = options.sigma or tuple(RELEASES)
    if options.short:
        print(json.dumps(short()))
        return
    if options.search:
        batch((made, CHOICE) for made in searched(sigmas))
    if options.run:
        batch((made, seed) for sigma in sigmas for seed in FRESH for made in compared(sigma))
    if options.starts:
        batch((made, FRESH[0]) for made in starts(sigmas))
    if options.reference:
        done = {record["seed"] for record in read(RESULTS) if record["cell"]["part"] == "reference"}
        append(RESULTS, (reference(seed) for seed in FRESH if seed not in done))
    if options.picture:
        with atomic(PICTURE) as file:
            file.write(picture())
    print(table(), search_table(), sep="\n\n")


if __name__ == "__main__":
    main()
