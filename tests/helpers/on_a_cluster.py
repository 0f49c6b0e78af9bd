"""Runs and a sweep on a Ray cluster of two nodes on this machine, one of which is removed in mid-run.

    python tests/helpers/on_a_cluster.py FOLDER

Prints a JSON object with what was found. It is a process of its own, since it ends its Ray.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import torch
from ray.cluster_utils import Cluster

from fedpriv.config.schema import Config
from fedpriv.runs.result import Result
from fedpriv.simulation.run import simulate

RUN = {"model": "logistic", "clients": 2000, "sampling-rate": 0.05, "rounds": 20, "seed": 3}
SWEEP: dict[str, Any] = {
    "settings": {"model": "logistic", "clients": 2000, "sampling-rate": 0.05, "rounds": 150},
    "grid": {"epsilon": [1.0, 8.0], "seed": [1, 2]},
}


def plain_run() -> Result:
    """The run in this process."""
    return simulate(Config.parse({**RUN, "engine": "in-process"}))


def run_on(cluster: Cluster, lost: Any = None) -> Result:
    """The run on the cluster, from which the node ``lost`` is removed after a few rounds."""

    def show(status: Any) -> None:
        if lost is not None and status.round == 5:
            cluster.remove_node(lost)

    return simulate(Config.parse({**RUN, "engine": "ray", "actors": 2}), show)


def sweep_on(cluster: Cluster, lost: Any, folder: Path) -> dict[str, Any]:
    """The sweep on the cluster, from which the node ``lost`` is removed once its cells run."""
    from fedpriv.report.run_folders import TABLE
    from fedpriv.simulation.sweeps import driver, plans

    sweep, hosts = plans.prepare(SWEEP), set[int]()

    class Watch(driver.Watch):
        removed = False

        def show(self, board: driver.Board) -> None:
            hosts.add(len(board.running))
            if not self.removed and len([cell for cell in board.running.values() if cell.round]) == 2:
                self.removed = True
                threading.Thread(target=cluster.remove_node, args=(lost,)).start()

    watch = Watch()
    board, _ = driver.run(sweep, folder, watch=watch)
    rows = (folder / TABLE).read_text().splitlines()
    return {"side by side": max(hosts), "removed": watch.removed, "done": len(board.done), "rows": len(rows)}


def sweep_here(folder: Path) -> bytes:
    """The table of the sweep on this machine."""
    from fedpriv.report.run_folders import TABLE
    from fedpriv.simulation.sweeps import driver, plans

    del os.environ["RAY_ADDRESS"]
    driver.run(plans.prepare(SWEEP), folder)
    return (folder / TABLE).read_bytes()


def main(folder: Path) -> dict[str, Any]:
    """All of it; what was found."""
    plain = plain_run()
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    second = cluster.add_node(num_cpus=1)
    cluster.wait_for_nodes()
    os.environ["RAY_ADDRESS"] = cluster.address
    found: dict[str, Any] = {}
    for name, lost in (("whole", None), ("lost", second)):
        result = run_on(cluster, lost)
        found[name] = torch.equal(plain.params, result.params) and plain.metrics[-1] == result.metrics[-1]
    second = cluster.add_node(num_cpus=1)
    cluster.wait_for_nodes()
    time.sleep(1)
    found["sweep"] = sweep_on(cluster, second, folder / "cluster")
    table = (folder / "cluster" / "results.csv").read_bytes()
    found["same table"] = sweep_here(folder / "here") == table
    import ray

    ray.shutdown()
    cluster.shutdown()
    return found


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]))))
