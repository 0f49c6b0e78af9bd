"""Every optimizer with its default settings, on four tasks, and README's table of how they end.

    python simulations/defaults/run.py --run                              # all runs that are missing
    python simulations/defaults/run.py --run --task digits --optimizer dp-adam dp-yogi
    python simulations/defaults/run.py --run --task infinite-mnist --seeds 1 --set learning-rate=2
    python simulations/defaults/run.py                                    # the table, from results.jsonl
    python simulations/defaults/run.py --write                            # the same, into README.md

Runs are appended to ``results.jsonl`` beside this file as they end. A run whose result is there is not run
again, so that an interrupted batch continues where it was. MNIST and a9a must be there (`fedpriv data fetch`,
or `FEDPRIV_DATA`). Runs are seeded to be repeatable; such runs are not private.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from batches import append, markdown, read

os.environ.setdefault("OMP_NUM_THREADS", "1")  # one run a core

HERE = Path(__file__).parent
RESULTS, README = HERE / "results.jsonl", HERE / "README.md"
BEGIN, END = "<!-- from results.jsonl, by run.py --write -->", "<!-- end -->"

TASKS: dict[str, dict[str, Any]] = {
    "infinite-mnist": {"dataset": "infinite-mnist", "clients": 250_000, "rounds": 100, "epsilon": 1},
    "mnist-local-steps": {
        "dataset": "mnist",
        "clients": 100,
        "partition": "dirichlet",
        "dirichlet-alpha": 0.5,
        "work": "local-steps",
        "local-steps": 10,
        "local-batch-size": 50,
        "sampling-rate": 0.2,
        "rounds": 30,
        "epsilon": 8,
    },
    "digits": {},
    "a9a": {
        "dataset": "a9a",
        "model": "logistic-binary",
        "clients": 32_000,
        "sampling-rate": 0.02,
        "epsilon": 1,
    },
}
REPORTED: dict[str, tuple[int, ...]] = {  # no setting was chosen with these seeds
    "infinite-mnist": (11, 12, 13),
    "mnist-local-steps": (11, 12, 13),
    "digits": (11,),
    "a9a": (11,),
}
WANTED = {"infinite-mnist": 93.0, "mnist-local-steps": 80.0}  # percent
NEEDED: dict[str, dict[str, Any]] = {  # what an optimizer does not run without
    "adadps": {"public-examples": 256},
    "pda-dpmd": {"public-examples": 256},
    "dp-gd": {"sampler": "everyone", "sampling-rate": 1},
}

Key = tuple[str, str, int | None]


def settings(optimizer: str, changes: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """What a run sets besides its task and seed: the optimizer, what that needs, and ``changes``."""
    return {"optimizer": optimizer, **NEEDED.get(optimizer, {}), **(changes or {})}


def command(task: str, given: Mapping[str, Any], seed: int) -> str:
    """The command line of a run."""
    flags = " ".join(f"--set {key}={value}" for key, value in {**TASKS[task], **given, "seed": seed}.items())
    return f"fedpriv simulate {flags}"


def key(task: str, given: Mapping[str, Any], seed: int | None) -> Key:
    """What tells a run from others."""
    return task, json.dumps(given, sort_keys=True), seed


def run(task: str, given: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """The record of one run on one core of this machine."""
    import torch

    from fedpriv.simulation.run import simulate

    torch.set_num_threads(1)
    started = time.perf_counter()
    result = simulate({**TASKS[task], **given, "seed": seed, "engine": "in-process"})
    multipliers = result.report["privacy"]["noise multiplier"]
    return {
        "task": task,
        "settings": dict(given),
        "seed": seed,
        "learning rate": result.config.learning_rate,
        "noise multiplier": multipliers,
        "parameters": result.params.numel(),
        "rounds": result.metrics[-1]["round"],
        "accuracy": [[m["round"], m["accuracy"]] for m in result.metrics],
        "notes": list(result.notes),
        "seconds": round(time.perf_counter() - started, 1),
        "commit": commit(),
        "command": command(task, given, seed),
    }


def commit() -> str:
    """The commit of the code, with a + where files differ from it."""
    git = ["git", "-C", str(HERE)]
    name = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True)
    changed = subprocess.run([*git, "diff", "--quiet", "HEAD", "--", "../../fedpriv"], check=False).returncode
    return name.stdout.strip() + "+" * bool(changed)


def batch(jobs: Iterable[tuple[str, dict[str, Any], int]]) -> None:
    """Run the jobs that have no result yet, one after another."""
    for task, given, seed in jobs:
        done = [r for r in read(RESULTS) if not r.get("interrupted")]
        if key(task, given, seed) in {key(r["task"], r["settings"], r.get("seed")) for r in done}:
            continue
        append(RESULTS, [run(task, given, seed)])


def last(record: Mapping[str, Any]) -> float:
    """The test accuracy at the end of a run, in percent."""
    return 100 * float(record["accuracy"][-1][1])


def cell(task: str, optimizer: str, records: Iterable[Mapping[str, Any]]) -> str:
    """The scores of an optimizer's defaults by seed; marked where one misses what is wanted."""
    wanted, given = WANTED.get(task, 0.0), settings(optimizer)
    found = {
        r.get("seed"): r for r in records if r["task"] == task and r["settings"] == given and "command" in r
    }
    if not found.keys() & set(REPORTED[task]):
        return ""
    scores = [last(found[seed]) if seed in found else None for seed in REPORTED[task]]
    return ", ".join("-" if x is None else f"{x:.1f}" if x >= wanted else f"**{x:.1f}**" for x in scores)


def table() -> str:
    """Markdown of results.jsonl: a row an optimizer, a column a task."""
    records = read(RESULTS)
    titles = ("optimizer", *(f"{task} ({', '.join(map(str, seeds))})" for task, seeds in REPORTED.items()))
    return markdown(titles, [(name, *(cell(task, name, records) for task in TASKS)) for name in optimizers()])


def optimizers() -> Iterator[str]:
    """The names of all optimizers."""
    from fedpriv.optimizers.registry import METHODS

    yield from METHODS


def write() -> None:
    """Put the table into README.md."""
    before, rest = README.read_text().split(BEGIN)
    README.write_text(f"{before}{BEGIN}\n\n{table()}\n\n{END}{rest.split(END)[1]}")


def main() -> None:
    """See the module's docstring."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--run", action="store_true")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--task", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--optimizer", nargs="+", default=None)
    parser.add_argument("--seeds", nargs="+", type=int, default=None)
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE")
    options = parser.parse_args()
    if options.run:
        changes = {name: _value(text) for name, text in (pair.split("=", 1) for pair in options.set)}
        names = options.optimizer or list(optimizers())
        batch(
            (task, settings(name, changes), seed)
            for task in options.task
            for name in names
            for seed in options.seeds or REPORTED[task]
        )
    if options.write:
        write()
    print(table())


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


if __name__ == "__main__":
    main()
