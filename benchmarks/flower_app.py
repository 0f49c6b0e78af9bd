"""Rounds of an ordinary Flower app with FedAvg, with PrivateStrategy, and with virtual clients.

    python benchmarks/flower_app.py                     # some minutes on 2 cores
    python benchmarks/flower_app.py --clients 20 --turns 5

``torch_app`` of simulations/flower_apps runs on Flower's own simulation engine, every client in each round.
On one grid FedAvg and PrivateStrategy take turns; a round is the time between two evaluations
at the server. Then the same clients are virtual ones behind two nodes. Also the server's peak memory while it
sums replies of 10^6 numbers, which are made when they are fetched.
"""

from __future__ import annotations

import argparse
import itertools
import json
import logging
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

APP = Path(__file__).parents[1] / "simulations/flower_apps/torch_app"
os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ["PYTHONPATH"] = f"{APP}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"  # Ray's workers, too
sys.path.insert(0, str(APP))

ROUNDS = 3  # of a turn; the first is not counted
PRIVATE: dict[str, Any] = {"sampler": "everyone", "sampling_rate": 1.0, "rounds": ROUNDS, "epsilon": 8.0}


def timed(strategy: Any, grid: Any) -> list[float]:
    """Seconds of each round of a strategy but the first."""
    from flwr.app import ArrayRecord
    from torch_app import model

    at: list[float] = []

    def evaluate(number: int, arrays: ArrayRecord) -> None:
        at.append(time.perf_counter())

    strategy.start(grid, ArrayRecord(model.build().state_dict()), ROUNDS, evaluate_fn=evaluate)
    return [end - begin for begin, end in itertools.pairwise(at[1:])]


def child(kind: str, clients: int, turns: int) -> None:
    """Measure one app on Flower's engine, and print the seconds of rounds by strategy and turn."""
    from flwr.app import Context
    from flwr.serverapp import Grid, ServerApp
    from flwr.serverapp.strategy import FedAvg
    from flwr.simulation import run_simulation

    from fedpriv.flower import PrivateStrategy

    logging.getLogger("flwr").setLevel(logging.ERROR)
    virtual = kind == "virtual"
    if virtual:
        from torch_app.virtual_app import app as client_app
    else:
        from torch_app.client_app import app as client_app
    nodes, server_app = (2 if virtual else clients), ServerApp()

    @server_app.main()  # type: ignore[untyped-decorator]
    def main(grid: Grid, context: Context) -> None:
        while len(list(grid.get_node_ids())) < nodes:
            time.sleep(0.2)
        found: dict[str, list[list[float]]] = {"FedAvg": [], "private": []}
        for number in range(turns + 1):
            with tempfile.TemporaryDirectory() as folder:
                own = {
                    **PRIVATE,
                    "population": clients,
                    "folder": f"{folder}/run",
                    "virtual_clients": virtual,
                }
                strategies = {"FedAvg": lambda: FedAvg(fraction_evaluate=0.0, min_available_nodes=nodes)}
                strategies = {} if virtual else strategies
                strategies["private"] = lambda own=own: PrivateStrategy(**own)
                order = list(strategies) if number % 2 else list(strategies)[::-1]
                for name in order:
                    found[name].append(timed(strategies[name](), grid))
        print("FIGURES " + json.dumps({name: rounds[1:] for name, rounds in found.items()}), flush=True)

    resources: Any = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    run_simulation(server_app, client_app, num_supernodes=nodes, backend_config=resources)


def measured(kind: str, clients: int, turns: int) -> dict[str, list[list[float]]]:
    """The seconds of each strategy's rounds by turn, from a process of their own."""
    command = [sys.executable, __file__, "--child", kind, "--clients", str(clients), "--turns", str(turns)]
    output = subprocess.run(command, capture_output=True, text=True, timeout=1800, check=False)
    for line in output.stdout.splitlines():
        if line.startswith("FIGURES "):
            figures: dict[str, list[list[float]]] = json.loads(line.removeprefix("FIGURES "))
            return figures
    raise RuntimeError(f"Flower's engine gave no figures:\n{output.stderr[-3000:]}")


class Replies:
    """A grid whose clients' replies are made when they are fetched."""

    def __init__(self, clients: int, size: int) -> None:
        self._clients, self._size, self._sent = clients, size, dict[str, Any]()

    def get_node_ids(self) -> list[int]:
        """All clients."""
        return list(range(1, self._clients + 1))

    def push_messages(self, messages: Iterable[Any]) -> list[str]:
        """Numbers the messages."""
        for message in messages:
            message.metadata.__dict__["_message_id"] = str(len(self._sent))
            self._sent[message.metadata.message_id] = message
        return list(self._sent)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterator[Any]:
        """The replies: every number of the model is one larger."""
        import numpy as np
        from flwr.app import Array, ArrayRecord, Message, RecordDict

        for name in message_ids:
            own = ArrayRecord({"w": Array(np.ones(self._size, np.float32))})
            yield Message(RecordDict({"arrays": own}), reply_to=self._sent[name])


def memory(clients: int, size: int) -> None:
    """Sum the replies of so many clients, and print by how many MiB the peak memory rose."""
    import numpy as np
    import torch
    from flwr.app import Array, ArrayRecord, Message, RecordDict
    from flwr.common.constant import SUPERLINK_NODE_ID
    from flwr.supercore.task_identity import TaskIdentity

    from fedpriv.federated.engine import Shard, SumRequest
    from fedpriv.flower.app_arrays import AppArrays
    from fedpriv.flower.app_engine import AppEngine
    from fedpriv.mechanism.query import Query, SumBlock, Term

    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 0, SUPERLINK_NODE_ID

    def messages(number: int, record: ArrayRecord, nodes: Iterable[int]) -> list[Message]:
        one = RecordDict({"arrays": record})
        return [Message(one, node, "train") for node in nodes]

    grid = Replies(clients, size)
    arrays = AppArrays(ArrayRecord({"w": Array(np.zeros(size, np.float32))}))
    engine = AppEngine(grid, arrays, messages, grid.get_node_ids, timeout=600)  # type: ignore[arg-type]
    query = Query((torch.zeros(size),), (SumBlock((Term(clip_norm=1.0),)),))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.perf_counter()
    engine.gather(SumRequest(query, 0, (Shard(0, np.arange(clients), parties=clients),)))
    seconds = time.perf_counter() - began
    rose = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    print(
        f"{clients} replies of {size:,} numbers ({clients * size * 4 / 2**20:,.0f} MiB): peak memory rose by "
        f"{rose:.0f} MiB, {1000 * seconds / clients:.1f} ms a reply"
    )


def main() -> None:
    """See the module's docstring."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--child", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child == "memory":
        return memory(options.clients, 10**6)
    if options.child:
        return child(options.child, options.clients, options.turns)
    print(f"{platform.machine()}, {os.cpu_count()} cores, {options.clients} clients, {options.turns} turns")
    ordinary = measured("ordinary", options.clients, options.turns)
    virtual = measured("virtual", options.clients, options.turns)["private"]
    medians = {name: statistics.median(itertools.chain(*turns)) for name, turns in ordinary.items()}
    medians["virtual"] = statistics.median(itertools.chain(*virtual))
    for name, seconds in medians.items():
        print(f"{name}: {1000 * seconds:.0f} ms a round, {1000 * seconds / options.clients:.1f} ms a client")
    pairs = zip(ordinary["private"], ordinary["FedAvg"], strict=True)
    ratios = [statistics.median(own) / statistics.median(other) for own, other in pairs]
    low, middle, high = statistics.quantiles(ratios, n=4)
    print(f"private / FedAvg: {middle:.3f}, quartiles {low:.3f} to {high:.3f}")
    print(f"private / virtual: {medians['private'] / medians['virtual']:.1f}")
    for clients in (100, 1000):
        command = [sys.executable, __file__, "--child", "memory", "--clients", str(clients)]
        subprocess.run(command, check=True, timeout=900)


if __name__ == "__main__":
    main()
