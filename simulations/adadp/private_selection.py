"""Koskela & Honkela 2020, section 5.3: ADADP against private selection of DP-SGD's step size, on MNIST.

    python simulations/adadp/private_selection.py --run                # 5 seeds of each row
    python simulations/adadp/private_selection.py --run --gamma 0.5    # this gamma alone
    python simulations/adadp/private_selection.py --price              # the noise and the price; no data
    python simulations/adadp/private_selection.py                      # the table and private_selection.png

Needs MNIST under $FEDPRIV_DATA (`fedpriv data fetch mnist`). Finished runs are appended to
``private_selection.jsonl`` beside this file and skipped the next time.

A selection draws one of ten step sizes at random, trains with it, scores the model, and stops with
probability gamma; the best model is its result (:mod:`fedpriv.contrib.private_selection`). Its runs have so
much noise that the whole selection costs what ADADP's single run costs.

Runs are seeded to be repeatable; such runs are not private. The file also has the number of runs and the
winner's step size for the table. A private selection may publish the winner, but not the number of its runs.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
import torch
from batches import FRESH, Record, collect, markdown, read, spread
from figures import save, seeded
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator
from torch import Tensor

from fedpriv import data
from fedpriv._internal import plotting
from fedpriv.accounting import Accountant, Budget, Event, Ledger, PrivacyGuarantee, calibrate, epsilon
from fedpriv.contrib import private_selection
from fedpriv.contrib.private_selection import Selection
from fedpriv.data import OneExample, Source, View
from fedpriv.federated.client_update import OneGradient
from fedpriv.federated.cohorts import CohortSampler
from fedpriv.federated.loop import Mechanism
from fedpriv.federated.loop import run as run_loop
from fedpriv.federated.worker import Worker
from fedpriv.mechanism.placement import Central
from fedpriv.mechanism.sampling import Poisson
from fedpriv.optimizers.adadp import adadp
from fedpriv.optimizers.base import PrivateOptimizer
from fedpriv.optimizers.first_order import dp_sgd
from fedpriv.rng import Key
from fedpriv.tasks.task import Task

RESULTS = Path(__file__).with_name("private_selection.jsonl")
DATA_SET, EXAMPLES, COHORT, RELEASES = "mnist", 60_000, 600, 300
EPOCH = EXAMPLES // COHORT  # releases
BUDGET = Budget(1.0, 1e-6)
CLIP_NORM, DECAY = 1.0, 0.1
STEP_SIZES = tuple(10.0 ** ((3 - i) / 2) for i in range(1, 11))  # the paper's ten, ten times as large
GAMMAS = (2.0**-1, 2.0**-2, 2.0**-4)
VALIDATION = 5000  # of the public test examples score the candidates; the others score the table
ADADP, SELECTION = "ADADP", "private selection"
LEAST = 70  # percent, where the picture's accuracy starts


@dataclass(frozen=True)
class Decayed:
    """Equation 5.1: eta for half of the releases, then eta / (1 + 0.1 k) in the k-th epoch after them."""

    step_size: float

    def __call__(self, step: int) -> float:
        """The step size of a release."""
        epochs = 0 if step < RELEASES // 2 else (step - RELEASES // 2) // EPOCH + 1
        return self.step_size / (1 + DECAY * epochs)


def untuned() -> PrivateOptimizer:
    """ADADP as in run.py: it starts at 0.1, and tau follows from the starting weights."""
    half = RELEASES // 2
    return adadp(
        0.1, CLIP_NORM, None, alpha_max=1.1, decay_after=half, epoch=EPOCH, decay=DECAY, steps=half // 2
    )


@cache
def source() -> Source:
    """MNIST."""
    return data.load(DATA_SET)


@cache
def task() -> Task:
    """Softmax regression, 7,850 parameters."""
    return Task("logistic")


def mechanism_of(optimizer: PrivateOptimizer, scale: float) -> Mechanism:
    """A run whose noise is ``scale`` clip norms on the sum of a cohort."""
    return Mechanism(optimizer, Poisson(EXAMPLES, COHORT / EXAMPLES), Central(exact=True), scale, RELEASES)


def events_of(scale: float) -> tuple[Event, ...]:
    """The releases of a run, which are the same for all step sizes and for ADADP."""
    return mechanism_of(untuned(), scale).planned_events()


@cache
def selection_of(gamma: float) -> Selection:
    """The selection whose runs have the noise that spends the budget."""
    return private_selection.calibrate(Selection(events_of(1.0), gamma), BUDGET)


@cache
def single() -> float:
    """The noise multiplier of a single run that spends the budget."""
    return calibrate(events_of(1.0), BUDGET)


def train(
    optimizer: PrivateOptimizer, scale: float, key: Key, ledger: Ledger | None = None
) -> tuple[Tensor, PrivacyGuarantee]:
    """The parameters (d,) that a run hands out, and what it has charged."""
    mechanism = mechanism_of(optimizer, scale)
    events = mechanism.planned_events()
    budget = Budget(epsilon(events, BUDGET.delta).epsilon * (1 + 1e-6), BUDGET.delta)
    view = View(source(), OneExample(EXAMPLES))
    worker = Worker(task(), OneGradient(), view, key, torch.device("cpu"), exact=True)
    start = task().initial(key.generator("initial-params"))
    cohorts = CohortSampler(mechanism.sampler, key, chunk_size=EXAMPLES)
    accountant = Accountant(budget, events, ledger)
    outcome = run_loop(mechanism, start, worker, accountant, key, cohorts)
    if outcome.releases != RELEASES:
        raise RuntimeError(f"a run ended after {outcome.releases} of {RELEASES} releases")
    return outcome.state.output, accountant.spent()


def accuracy(params: Tensor, validation: bool) -> float:
    """The accuracy on the public examples that score candidates, or on the others."""
    x, y = source().test("cpu")
    part = slice(None, VALIDATION) if validation else slice(VALIDATION, None)
    return task().evaluate(params, x[part], y[part])["accuracy"]


def run_adadp(seed: int) -> Record:
    """A run of ADADP that spends the budget; its epsilon is that of its ledger."""
    with tempfile.TemporaryDirectory() as folder, Ledger.create(Path(folder) / "ledger", {}) as ledger:
        params, spent = train(untuned(), single(), Key.from_seed(seed), ledger)
    return {
        "accuracy": accuracy(params, validation=False),
        "runs": 1,
        "noise multiplier": single(),
        "epsilon": {"pld": {"epsilon": spent.epsilon, "kind": spent.kind}},
    }


def run_selection(gamma: float, seed: int) -> Record:
    """A selection that spends the budget; it is charged on disk before its first run."""
    chosen, runs = selection_of(gamma), 0
    scale = chosen.run[0].noise_multiplier

    def run(step_size: float, key: Key) -> Tensor:
        nonlocal runs
        runs += 1  # for the paper's table: it is not protected
        return train(dp_sgd(Decayed(step_size), CLIP_NORM), scale, key)[0]

    def score(params: Tensor) -> float:
        return accuracy(params, validation=True)

    with tempfile.TemporaryDirectory() as folder:
        record = Path(folder) / "selection.json"
        key = Key.from_seed(seed)
        winner = private_selection.select(chosen, BUDGET, run, STEP_SIZES, score, key, record)
        charged = json.loads(record.read_text())
    return {
        "accuracy": accuracy(winner.result, validation=False),
        "validation accuracy": winner.score,
        "step size": winner.candidate,
        "runs": runs,
        "noise multiplier": scale,
        "epsilon": {"pld": {"epsilon": charged["epsilon"], "kind": chosen.epsilon(BUDGET.delta).kind}},
    }


def cells() -> list[Record]:
    """The rows of the table."""
    return [{"method": ADADP}, *({"method": SELECTION, "gamma": gamma} for gamma in GAMMAS)]


def run(cell: Record, seed: int) -> Record:
    """One seeded run of a row."""
    torch.set_num_threads(1)
    started = time.perf_counter()
    found = run_adadp(seed) if cell["method"] == ADADP else run_selection(cell["gamma"], seed)
    found |= {"delta": BUDGET.delta, "seconds": round(time.perf_counter() - started, 1)}
    return {"cell": cell, "seed": seed, **found, "note": "reproducible, not private"}


def rows() -> Iterator[tuple[str, ...]]:
    """The table's rows."""
    for cell in cells():
        own = [record for record in read(RESULTS) if record["cell"] == cell]
        if found := sorted(own, key=lambda record: record["seed"]):
            sizes = [f"{record['step size']:.2g}" for record in found if "step size" in record]
            yield (
                cell["method"] + (f", gamma = {cell['gamma']:g}" if "gamma" in cell else ", untuned"),
                f"{found[0]['noise multiplier']:.3f}",
                f"{max(record['epsilon']['pld']['epsilon'] for record in found):.4f}",
                spread((record["accuracy"] for record in found), 100),
                ", ".join(f"{100 * record['accuracy']:.1f}" for record in found),
                ", ".join(str(record["runs"]) for record in found),
                ", ".join(sizes),
            )


def table() -> str:
    """Markdown: accuracy on the 5,000 examples that scored no candidate."""
    titles = ("method", "noise multiplier of a run", "epsilon of all", "accuracy", "by seed", "runs")
    return markdown((*titles, "chosen step sizes"), rows())


def draw() -> Figure:
    """The paper's Figure 2: each run's accuracy over the number of its trainings."""
    figure, [axes] = plotting.panels(7.2, 4.6)
    for cell, (colour, _, marker) in zip(cells(), plotting.STYLES, strict=False):
        own = [record for record in read(RESULTS) if record["cell"] == cell]
        label = f"{cell['method']}, gamma = {cell['gamma']:g}" if "gamma" in cell else "ADADP, untuned"
        x, y = [record["runs"] for record in own], [100 * record["accuracy"] for record in own]
        axes.scatter(x, y, color=colour, marker=marker, label=f"{label} (n = {len(own)})", alpha=0.8)
    axes.set(xlabel="trainings of a run, logarithmic", ylabel="test accuracy (%)", xscale="log")
    axes.xaxis.set_major_locator(FixedLocator([2**k for k in range(7)]))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_ylim(LEAST, 100)
    plotting.rule(axes, whole=False)
    plotting.cut(axes)
    axes.legend(fontsize=8, loc="lower right")
    about = "Koskela & Honkela 2020, Figure 2: mnist, softmax regression, epsilon 1 in all"
    plotting.title(figure, [about, seeded(FRESH)])
    footer = [
        f"A point is a run of ADADP or a whole selection. The vertical axis is cut: it starts at {LEAST} %.",
        f"Epsilon: privacy unit = one example; neighbouring relation = add-remove; delta = {BUDGET.delta:g}; "
        "adversary = anyone who sees ADADP's models, or the winner of a selection alone.",
    ]
    plotting.footer(figure, footer)
    return figure


def prices() -> str:
    """Markdown: by gamma the noise of a run, and what a run and the selection cost."""
    found = [("ADADP, a single run", single(), epsilon(events_of(single()), BUDGET.delta).epsilon, "")]
    for gamma in GAMMAS:
        chosen = selection_of(gamma)
        costs = epsilon(chosen.run, BUDGET.delta).epsilon, f"{chosen.epsilon(BUDGET.delta).epsilon:.4f}"
        found.append((f"selection, gamma = {gamma:g}", chosen.run[0].noise_multiplier, *costs))
    titles = ("", "noise multiplier", "epsilon of one run", "epsilon of the selection")
    return markdown(titles, ((name, f"{z:.3f}", f"{one:.4f}", total) for name, z, one, total in found))


def main() -> None:
    """See the module's docstring."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--run", action="store_true")
    parser.add_argument("--price", action="store_true")
    parser.add_argument("--gamma", type=float, action="append", choices=GAMMAS)
    options = parser.parse_args()
    if options.price:
        print(prices())
        return
    if options.run:
        todo = [c for c in cells() if not options.gamma or c.get("gamma") in options.gamma]
        jobs = [{"cell": one, "seed": seed} for one in todo for seed in FRESH]
        collect(RESULTS, jobs, lambda job: run(job["cell"], job["seed"]))
    save(RESULTS.with_suffix(".png"), draw())
    print(table())


if __name__ == "__main__":
    main()
