"""Wang et al. 2023, Figure 1 and Table 2's last columns: objective, gradient norm and CPU time on a9a.

    python simulations/dp_srm/figure_1.py --run     # 5 seeds of each method, 5 s a run
    python simulations/dp_srm/figure_1.py           # figure_1.png and the table, from figure_1.jsonl

Needs a9a under $FEDPRIV_DATA (`fedpriv data fetch a9a`). Finished runs are appended to ``figure_1.jsonl`` and
skipped the next time. Runs are seeded to be repeatable; such runs are not private.

The settings are those of ``a9a.py``. The objective and the norm of its gradient are of the public test set:
those of the training examples would cost privacy. CPU time is that of the run, without that of measuring.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))
from a9a import DELTA, EPSILONS, cells, gradient_norm, objective
from batches import FRESH, Cell, Record, collect, markdown, read, spread, trace
from figures import means, save, seeded
from matplotlib.figure import Figure
from torch import Tensor

from fedpriv._internal import plotting
from fedpriv.data import Pair
from fedpriv.report.pictures import curves
from fedpriv.report.pictures.methods import Line
from fedpriv.tasks.task import Task

RESULTS = Path(__file__).with_name("figure_1.jsonl")
METHODS = ("DP-SRM", "DP-SGD", "DP-GD", "RRPSGD")
DRAWN = METHODS[:3]  # RRPSGD's runs end at a random step, and their steps are too many
MEASURES = 20  # of a run
LEAST = 5e-3  # where the gradient norm's axis starts
PARTS = {"objective": "test objective", "gradient norm": "norm of its gradient"}
PAPER = {  # Table 2: CPU time in seconds, gradient norm
    ("DP-SRM", 0.2): ("0.6007", "0.0528"),
    ("DP-GD", 0.2): ("1.245", "0.0953"),
    ("RRPSGD", 0.2): ("39.61", "0.2175"),
    ("DP-SRM", 0.5): ("0.7383", "0.0502"),
    ("DP-GD", 0.5): ("1.261", "0.0866"),
    ("RRPSGD", 0.5): ("52.32", "0.1454"),
}


def cell(epsilon: float, method: str) -> Cell:
    """The row of ``a9a.py``."""
    return next(made for made in cells(epsilon) if made.method == method)


def run(made: Cell, seed: int) -> Record:
    """One seeded run: the objective and the norm of its gradient on the way, and the CPU time."""
    started, measuring = time.process_time(), 0.0

    def measure(task: Task, params: Tensor, test: Pair) -> Record:
        nonlocal measuring
        before = time.process_time()
        loss = task.evaluate(params, *test)["loss"] + objective(params)["regulariser"]
        found = {"objective": round(loss, 5), "gradient norm": float(f"{gradient_norm(params, test):.4g}")}
        measuring += time.process_time() - before
        return found

    found = trace(made, seed, max(made.config["rounds"] // MEASURES, 1), measure)
    passes = made.config["sampling-rate"]
    return {
        "epsilon": made.config["epsilon"],
        "method": made.method,
        "seed": seed,
        "passes": [round(passes * one["step"], 3) for one in found],
        **{part: [one[part] for one in found] for part in PARTS},
        "CPU seconds": round(time.process_time() - started - measuring, 2),
        "note": "reproducible, not private",
    }


def own(runs: Sequence[Record], epsilon: float, method: str) -> list[Record]:
    """The runs of a budget and method."""
    return [one for one in runs if (one["epsilon"], one["method"]) == (epsilon, method)]


def draw(runs: Sequence[Record]) -> Figure:
    """The figure: a row of panels for each budget, a line for each method."""
    figure, all_axes = plotting.panels(9.2, 7.4, len(EPSILONS) * len(PARTS), len(PARTS), False)
    places = [(epsilon, part) for epsilon in EPSILONS for part in PARTS]
    for axes, (epsilon, part) in zip(all_axes, places, strict=True):
        for method, style in zip(DRAWN, plotting.STYLES, strict=False):
            some = own(runs, epsilon, method)
            line = Line({}, means(some, part, "passes"))
            curves.draw_line(axes, line, line.counted(method), (*style[:2], ""))
        axes.set(xlabel="passes over the data", ylabel=PARTS[part])
        if part == "gradient norm":
            axes.set(yscale="log", ylim=(LEAST, 1))
        plotting.rule(axes, whole=False)
        axes.set_title(f"epsilon {epsilon:g}", fontsize=9)
        axes.legend(fontsize=8)
    about = "Wang et al. 2023, Figure 1: nonconvex logistic regression on a9a"
    plotting.title(figure, [about, seeded(FRESH)])
    footer = [
        "Lines: the mean of n runs; bands: the 95 % confidence interval of the mean.",
        "Values are of the public test set. The gradient norm's axis is logarithmic and cut.",
        f"Epsilon: privacy unit = one example; neighbouring relation = add-remove; delta = {DELTA:g}; "
        "adversary = anyone who sees the released models.",
    ]
    plotting.footer(figure, footer)
    return figure


def table(runs: Sequence[Record]) -> str:
    """Markdown: the last objective and gradient norm, and the CPU time, mean and spread over seeds."""
    titles = (
        "epsilon",
        "method",
        "passes",
        "test objective",
        "gradient norm",
        "paper",
        "CPU time, s",
        "paper",
    )
    rows = []
    for epsilon in EPSILONS:
        for method in METHODS:
            if some := own(runs, epsilon, method):
                seconds, norm = PAPER.get((method, epsilon), ("", ""))
                row = (
                    f"{epsilon:g}",
                    method,
                    f"{max(one['passes'][-1] for one in some):.3g}",
                    spread((one["objective"][-1] for one in some), digits=4),
                    spread((one["gradient norm"][-1] for one in some), digits=4),
                    norm,
                    spread((one["CPU seconds"] for one in some), digits=1),
                    seconds,
                )
                rows.append(row)
    return markdown(titles, rows)


def main() -> None:
    """See the module's docstring."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--run", action="store_true")
    if parser.parse_args().run:
        jobs = [
            {"epsilon": epsilon, "method": method, "seed": seed}
            for seed in FRESH
            for epsilon in EPSILONS
            for method in METHODS
        ]
        collect(RESULTS, jobs, lambda job: run(cell(job["epsilon"], job["method"]), job["seed"]))
    runs = read(RESULTS)
    save(RESULTS.with_suffix(".png"), draw(runs))
    print(table(runs))


if __name__ == "__main__":
    main()
