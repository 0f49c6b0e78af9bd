"""Rounds on CIFAR-10 in pfl-research's setting: fedpriv's simulation and pfl-research's, in turn.

    pip install --no-deps pfl==0.6.0 multiprocess dill
    FEDPRIV_DATA=FOLDER python benchmarks/cifar_rounds.py              # some minutes on 2 cores

The setting is that of simulations/users/cifar.toml: 1,000 users of 50 images, of which a round asks 50. A
user makes five steps of 10 images, and its change is clipped to 0.4; central Gaussian noise. Both sides train
the same model, whose changes by one user are checked to agree. A round of fedpriv's is the whole one:
sampling, accounting, ledger on disk, exact noise, two Ray actors. pfl-research runs one process with torch's
threads, and its images are in memory as floats, ready to train on. Neither evaluates. While one side
measures, the other waits.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from in_turn import alternate, figures, serve_rounds

USERS = Path(__file__).parents[1] / "simulations" / "users"
sys.path.insert(0, str(USERS))  # user_data, which Ray's actors find there, too


def settings(model: str) -> dict[str, Any]:
    """The settings of the table of users, without the number of rounds."""
    table = tomllib.loads((USERS / "cifar.toml").read_text())["settings"]
    left_out = ("rounds", "evaluate-every")
    return {key: value for key, value in table.items() if key not in left_out} | {
        "model": model,
        "partition": "iid",
    }


def serve_pfl(model: str, rounds: int, turns: int) -> None:
    """pfl-research's side: after so many rounds, print their seconds and wait for a line of input."""
    from peer_pfl import central, simulate

    x, y = images()
    each, taken, started = len(x) // 1000, list[float](), time.perf_counter()

    def after_round() -> None:
        nonlocal started
        taken.append(time.perf_counter() - started)
        if len(taken) == rounds:
            print(json.dumps(taken), flush=True)
            taken.clear()
            sys.stdin.readline()
        started = time.perf_counter()

    simulate(
        network(model),
        lambda user: [x[user * each : (user + 1) * each], y[user * each : (user + 1) * each]],
        1000,
        50,
        central(0.4),
        rounds * (turns + 1),
        after_round,
        batch=10,
    )


def images(count: int | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """The first training images (n, 3, 32, 32) and their labels, as fedpriv's models see them."""
    import user_data

    source = user_data.cifar()
    return source.batch(np.arange(count or source.size), "cpu")


def network(model: str) -> torch.nn.Module:
    """The model for these images."""
    import user_data

    from fedpriv import models

    return models.build(model, user_data.cifar().shape)


def difference(model: str) -> float:
    """How far the change by one user differs between the two, over its length."""
    from peer_pfl import local_training, model_of
    from pfl.data.dataset import Dataset
    from pfl.internal.bridge import FrameworkBridgeFactory

    from fedpriv.federated.client_update import LocalSteps, clipped_sum
    from fedpriv.mechanism.query import Query, SumBlock, Term
    from fedpriv.tasks.task import Task

    x, y = images(50)
    task = Task(network(model))
    params = task.initial(np.random.default_rng(0))
    query = Query((params,), (SumBlock((Term(0.4),)),))
    ours = clipped_sum(LocalSteps(5, 0.1, 10), task, query, x, y, torch.zeros(50, dtype=torch.long), 1)[0]
    same = network(model)
    with torch.no_grad():
        for key, value in task.layout.split(params).items():
            same.get_parameter(key).copy_(value)
    peer = model_of(same)
    before = peer.get_parameters()
    FrameworkBridgeFactory.sgd_bridge().do_sgd(peer, Dataset(raw_data=[x, y]), local_training(10))
    parts = peer.get_model_difference(before)
    theirs = -torch.cat([parts[f"net.{key}"].flatten() for key in task.layout.split(params)])
    theirs *= min(1.0, 0.4 / float(theirs.norm()))
    return float((ours.flatten() - theirs).norm() / theirs.norm())


def main() -> None:
    """See the module's docstring."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--model", default="cnn")
    parser.add_argument("--rounds", type=int, default=5, help="rounds a turn")
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--side", choices=("fedpriv", "pfl"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.side == "fedpriv":
        serve_rounds(settings(given.model), given.rounds, given.turns, time.perf_counter)
        return
    if given.side == "pfl":
        serve_pfl(given.model, given.rounds, given.turns)
        return
    print(f"a user's change differs by {difference(given.model):.1e} of its length", flush=True)
    sides: dict[str, subprocess.Popen[str]] = {}
    for name in ("fedpriv", "pfl"):
        command = [sys.executable, __file__, "--side", name, *sys.argv[1:]]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        sides[name] = subprocess.Popen(command, text=True, **pipes)
        figures(sides[name])
    alternate(sides, given.turns)


if __name__ == "__main__":
    main()
