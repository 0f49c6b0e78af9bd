"""Rounds of a deployment on loopback, with ``fedpriv node`` and with plain SuperNodes.

    python benchmarks/deployment.py                            # 2 nodes of each kind
    python benchmarks/deployment.py --kinds owner --nodes 10 --rounds 20

Starts a SuperLink, the nodes, each with a file of 500 examples, and one ``flwr run``: central noise, the
model ``logistic``, without TLS. A round is the time between two charges of the run's ledger, which is watched
every 10 ms; the first is left out. The clients' computation is some ms of it.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from helpers.hosted_grid import Federation, python  # noqa: E402
from helpers.owner_policy import write_policy  # noqa: E402

EXAMPLES = 500


def charged_at(ledger: Path, ended: threading.Event) -> list[float]:
    """The times at which the ledger grew, until ``ended``."""
    times, size = list[float](), 0
    while not ended.wait(0.01):
        now = ledger.stat().st_size if ledger.exists() else 0
        if now > size:
            times.append(time.perf_counter())
            size = now
    return times[1:]  # without the header


def start(federation: Federation, kind: str, folder: Path, nodes: int) -> None:
    """The nodes of one kind."""
    made = ["deploy/make_client_files.py", str(folder / "data"), "--examples", str(EXAMPLES)]
    files = python(*made, "--clients", str(nodes)).split()
    for partition, file in enumerate(files):
        if kind == "plain":
            federation.supernode(partition, nodes, Path(file))
            continue
        own = folder / f"owner-{partition}"
        own.mkdir()
        policy = write_policy(
            own,
            ("127.0.0.1:8000", f"127.0.0.1:{federation.port}"),
            ("partition-id = 1\nnum-partitions = 5", f"partition-id = {partition}\nnum-partitions = {nodes}"),
            ("data/silo.npz", file),
        )
        federation.owner_node(f"node-{partition}", policy)


def rounds(kind: str, nodes: int, number: int) -> list[float]:
    """Seconds of each round but the first."""
    settings: dict[str, Any] = {
        "nodes-own-data": True,
        "unit": "example",
        "clients": nodes,
        "examples-per-client": EXAMPLES,
        "model": "logistic",
        "optimizer": "dp-sgd",
        "sampling-rate": 0.2,
        "rounds": number,
        "epsilon": 3.0,
        "delta": 1e-5,
        "evaluate-every": number,
    }
    with tempfile.TemporaryDirectory() as name, Federation(Path(name) / "flower") as federation:
        start(federation, kind, Path(name), nodes)
        out, ended, times = Path(name) / "run", threading.Event(), list[float]()
        watcher = threading.Thread(target=lambda: times.extend(charged_at(out / "ledger.jsonl", ended)))
        watcher.start()
        try:
            log = federation.run(settings | {"out": str(out)})
        finally:
            ended.set()
            watcher.join()
        assert "stopped: rounds" in log, log
    return [end - begin for begin, end in itertools.pairwise(times)][1:]


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kinds", default="owner,plain", help="owner: fedpriv node; plain: flower-supernode")
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=6)
    options = parser.parse_args()
    for kind in options.kinds.split(","):
        found = sorted(rounds(kind, options.nodes, options.rounds))
        low, _, high = statistics.quantiles(found, n=4)
        print(
            f"{kind}: {options.nodes} nodes, {len(found)} rounds: median {statistics.median(found):.2f} s "
            f"(quartiles {low:.2f} and {high:.2f})",
            flush=True,
        )


if __name__ == "__main__":
    main()
