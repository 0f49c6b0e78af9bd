"""The papers' optimizers on MNIST, over an ordinary Flower app, and README's tables of how they end.

    python simulations/flower_apps/mnist.py --run                       # all runs that are missing
    python simulations/flower_apps/mnist.py --run --level silos --optimizer dp-srm
    python simulations/flower_apps/mnist.py                             # the tables, from results.jsonl
    python simulations/flower_apps/mnist.py --write                     # the same, into README.md

A run copies ``mnist_app``, applies its patch and calls the patched app with nodes in this process. ``server``
is ``private.patch``: 100 clients, whose model changes the server clips and noises. ``silos`` is
``silo.patch``: 10 silos, which train privately on their own examples, under Flower's FedAvg. ``none`` is the
app without a patch. Every optimizer has its default settings, and noise is fresh in each run.

Runs are appended to ``results.jsonl`` as they end, so that an interrupted batch continues where it was. MNIST
must be there (`fedpriv data fetch mnist`, or `FEDPRIV_DATA`).
"""

from __future__ import annotations

import argparse
import importlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parents[1]))
from batches import append, markdown, read, spread

HERE = Path(__file__).parent
RESULTS, README = HERE / "results.jsonl", HERE / "README.md"
BEGIN, END = "<!-- from results.jsonl, by mnist.py --write -->", "<!-- end -->"
NODES = {"none": 100, "server": 100, "silos": 10}
PATCHES = {"server": "private.patch", "silos": "silo.patch"}
PAPERS = {
    "dp-sgd": "Abadi et al. 2016 (the baseline)",
    "adp-sgd": "Wu et al. 2021",
    "adaptive-adp-sgd": "Wu et al. 2021",
    "dynamic-dp-sgd": "Du et al. 2021",
    "dynamic-dp-adam": "Du et al. 2021",
    "dp2-rmsprop": "Li et al. 2023",
    "adadp": "Koskela & Honkela 2020",
    "dp-srm": "Wang et al. 2023",
}


def run(level: str, optimizer: str) -> dict[str, Any]:
    """The record of one run of the app."""
    import torch
    from flwr.app import Context, RecordDict
    from flwr.common.constant import SUPERLINK_NODE_ID
    from flwr.supercore.task_identity import TaskIdentity

    from fedpriv.flower.grids.in_process import InProcessGrid

    torch.set_num_threads(1)
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 0, SUPERLINK_NODE_ID
    share = 1.0 if level == "silos" else 0.2
    config = {"num-server-rounds": 30, "fraction-train": share, "optimizer": optimizer}
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        app = Path(shutil.copytree(HERE / "mnist_app", Path(folder) / "mnist_app"))
        if level in PATCHES:
            subprocess.run(["git", "apply", PATCHES[level]], cwd=app, check=True)
        sys.path.insert(0, str(app))
        importlib.invalidate_caches()
        try:
            server = importlib.import_module("mnist_app.server_app")
            scores: dict[int, float] = {}
            server.evaluate = _recorded(server.evaluate, scores)
            grid = InProcessGrid(NODES[level], config, "mnist_app.client_app:app")
            server.app(grid, Context(0, 0, {}, RecordDict(), config))
        finally:
            sys.path.remove(str(app))
            for module in [name for name in sys.modules if name.partition(".")[0] == "mnist_app"]:
                del sys.modules[module]
        return {
            "level": level,
            "optimizer": optimizer,
            "accuracy": scores[max(scores)],
            "rounds": max(scores),
            **_spent(level, Path(folder)),
            "seconds": round(time.perf_counter() - began, 1),
        }


def _recorded(evaluate: Any, scores: dict[int, float]) -> Any:
    def recorded(number: int, arrays: Any) -> Any:
        found = evaluate(number, arrays)
        if number:
            scores[number] = float(found["accuracy"])
        return found

    return recorded


def _spent(level: str, folder: Path) -> dict[str, Any]:
    """Epsilon, delta and releases by the run's own ledgers: the largest of all silos."""
    from fedpriv.accounting import epsilon
    from fedpriv.accounting.ledger import read as read_ledger

    if level == "none":
        return {}
    ledgers = folder.glob("*.jsonl") if level == "silos" else folder.glob("runs/*/ledger.jsonl")
    events = [read_ledger(path).events for path in ledgers]
    delta = 1 / (10 * (6000 if level == "silos" else 100))
    spent = [epsilon(each, delta) for each in events]
    return {
        "epsilon": max(one.epsilon for one in spent),
        "delta": delta,
        "releases": max(sum(event.count for event in each) for each in events),
        "noise multiplier": [events[0][0].noise_multiplier, events[0][-1].noise_multiplier],
    }


def jobs() -> Iterator[tuple[str, str]]:
    """(level, optimizer) of every cell."""
    yield "none", "FedAvg"
    for level in PATCHES:
        for optimizer in PAPERS:
            yield level, optimizer


def batch(levels: list[str], optimizers: list[str], runs: int) -> None:
    """Make the runs that are missing: first one of every cell, then the next."""
    for number in range(runs):
        for level, optimizer in jobs():
            made = [r for r in read(RESULTS) if (r["level"], r["optimizer"]) == (level, optimizer)]
            if level not in levels or (optimizers and optimizer not in optimizers) or len(made) > number:
                continue
            append(RESULTS, [run(level, optimizer)])


def tables() -> str:
    """Markdown of results.jsonl."""
    records = read(RESULTS)
    rows = []
    for optimizer, paper in {"FedAvg": "not private", **PAPERS}.items():
        mine = [r for r in records if r["optimizer"] == optimizer]
        found = {level: [r for r in mine if r["level"] == level] for level in NODES}
        scores = {level: spread([r["accuracy"] for r in own], 100, 1) for level, own in found.items()}
        spent = {level: _range([r["epsilon"] for r in found[level]]) for level in PATCHES}
        row = (optimizer, paper, scores["none"] or scores["server"], spent["server"])
        rows.append((*row, scores["silos"], spent["silos"]))
    titles = ("optimizer", "source", "100 clients, %", "epsilon spent", "10 silos, %", "epsilon spent")
    return markdown(titles, rows)


def _range(values: list[float]) -> str:
    return f"{max(values):.2f}" if values else ""


def write() -> None:
    """Put the tables into README.md."""
    before, rest = README.read_text().split(BEGIN)
    README.write_text(f"{before}{BEGIN}\n\n{tables()}\n\n{END}{rest.split(END)[1]}")


def main() -> None:
    """See the module's docstring."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--run", action="store_true")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--level", nargs="+", choices=NODES, default=list(NODES))
    parser.add_argument("--optimizer", nargs="+", choices=PAPERS, default=[])
    parser.add_argument("--runs", type=int, default=3, help="of each cell")
    options = parser.parse_args()
    if options.run:
        batch(options.level, options.optimizer, options.runs)
    if options.write:
        write()
    print(tables())


if __name__ == "__main__":
    main()
