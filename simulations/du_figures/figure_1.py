"""Du et al. 2021, Figure 1: the gradients' norm and the accuracy by step, on MNIST at epsilon 0.4.

    python simulations/du_figures/figure_1.py --run        # 5 seeds of each of the three methods
    python simulations/du_figures/figure_1.py              # figure_1.png and the table, from figure_1.jsonl

Needs MNIST under $FEDPRIV_DATA (`fedpriv data fetch mnist`). Finished runs are appended to ``figure_1.jsonl``
and skipped the next time. Runs are seeded to be repeatable; such runs are not private.

The settings are those of the official repository, as in `simulations/dynamic_dp_sgd/table_1.py --official`.
SGD has their cohorts, a third of their step size, no noise and no clipping. The norm is the mean of the
Euclidean norms of 200 examples' gradients, before clipping. They are of the public test set: the norms of the
training examples would cost privacy. The paper draws its average over the training examples.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "dynamic_dp_sgd"))
from batches import FRESH, Cell, Record, collect, markdown, read, trace
from figures import means, save, seeded
from matplotlib.figure import Figure
from table_1 import official
from torch import Tensor

from fedpriv._internal import plotting
from fedpriv.data import Pair
from fedpriv.report.pictures import curves
from fedpriv.report.pictures.methods import Line
from fedpriv.report.pictures.points import Point
from fedpriv.tasks.task import Task

RESULTS = Path(__file__).with_name("figure_1.jsonl")
EVERY = 180  # steps between two measurements: 26 in a run of 4,680
EXAMPLES = 200  # public, whose gradients are measured; the accuracy is of all 10,000
SGD_RATE = 0.05  # with 0.15 a run of ours diverged at step 2,000: nothing clips its gradients
METHODS = {"dynamic": "dynamic DP-SGD", "vanilla": "DP-SGD", "SGD": "SGD: no noise, no clipping"}
PARTS = {"accuracy": "test accuracy (%)", "gradient norm": "mean norm of an example's gradient"}
LEAST = 75  # percent, where the accuracy's axis starts
PLACES = (0.0, 0.1, 0.25, 0.5, 1.0)  # of a run, in the table


def cell(method: str) -> Cell:
    """The official repository's settings; of SGD only those that are not of privacy."""
    made = official("vanilla" if method == "SGD" else method)
    config = dict(made.config)
    if method == "SGD":
        private = ("epsilon", "accounting", "rho-c", "rho-mu", "noise-epoch")
        config = {key: value for key, value in config.items() if key not in private}
        config |= {"optimizer": "dp-sgd", "placement": "none", "clip-norm": float("inf")}
        config["learning-rate"] = SGD_RATE
    return Cell("figure 1", method, config)


def run(made: Cell, seed: int) -> Record:
    """One seeded run: its accuracy and the norm of gradients every ``EVERY`` steps."""
    started = time.perf_counter()

    def measure(task: Task, params: Tensor, test: Pair) -> Record:
        norms = task.gradients(params, test.x[:EXAMPLES], test.y[:EXAMPLES]).norm(dim=1)
        accuracy = task.evaluate(params, *test)["accuracy"]
        return {"accuracy": round(accuracy, 4), "gradient norm": float(f"{norms.mean():.4g}")}

    found = trace(made, seed, EVERY, measure)
    return {
        "method": made.method,
        "seed": seed,
        "steps": [one["step"] for one in found],
        **{part: [one[part] for one in found] for part in PARTS},
        "seconds": round(time.perf_counter() - started, 1),
        "note": "reproducible, not private",
    }


def points(runs: Sequence[Record], part: str) -> tuple[Point, ...]:
    """The means over seeds of a part of the records, by step."""
    return means(runs, part, "steps", 100.0 if part == "accuracy" else 1.0)


def draw(runs: Sequence[Record]) -> Figure:
    """The figure: a panel for the accuracy and one for the norm, a line for each method."""
    figure, all_axes = plotting.panels(9.2, 4.4, 2, 2, False)
    for axes, (part, label) in zip(all_axes, PARTS.items(), strict=True):
        for (method, name), style in zip(METHODS.items(), plotting.STYLES, strict=False):
            own = [one for one in runs if one["method"] == method]
            line = Line({}, points(own, part))
            curves.draw_line(axes, line, line.counted(name), (*style[:2], ""))
        axes.set(xlabel="step", ylabel=label)
        plotting.rule(axes, whole=True)
        axes.legend(fontsize=8)
    all_axes[0].set_ylim(LEAST, 100)
    plotting.cut(all_axes[0])
    all_axes[1].set_yscale("log")
    plotting.title(figure, ["Du et al. 2021, Figure 1: mnist, cnn, epsilon 0.4 by GDP-CLT", seeded(FRESH)])
    footer = [
        "Lines: the mean of n runs; bands: the 95 % confidence interval of the mean.",
        f"The accuracy's axis is cut: it starts at {LEAST} %. At step 0 the networks guess.",
        f"Gradients: of {EXAMPLES} public test examples, before clipping.",
        "SGD is a reference; it is not private.",
        "Epsilon: privacy unit = one example; neighbouring relation = add-remove; delta = 1.66e-05; "
        "adversary = anyone who sees the released models.",
    ]
    plotting.footer(figure, footer)
    return figure


def table(runs: Sequence[Record]) -> str:
    """Both parts at some steps, in Markdown: the mean ± half the width of its 95 % interval."""
    last = len(runs[0]["steps"]) - 1
    places = [round(place * last) for place in PLACES]
    rows = []
    for part in PARTS:
        for method, name in METHODS.items():
            own = points([one for one in runs if one["method"] == method], part)
            values = (f"{own[at].mean:.3g} ± {own[at].half:.2g}" for at in places)
            rows.append((part, name, *values))
    return markdown(("", "method", *(f"step {runs[0]['steps'][at]:,}" for at in places)), rows)


def main() -> None:
    """See the module's docstring."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--run", action="store_true")
    if parser.parse_args().run:
        jobs = [{"method": method, "seed": seed} for seed in FRESH for method in METHODS]
        collect(RESULTS, jobs, lambda job: run(cell(job["method"]), job["seed"]))
    runs = read(RESULTS)
    save(RESULTS.with_suffix(".png"), draw(runs))
    print(table(runs))


if __name__ == "__main__":
    main()
