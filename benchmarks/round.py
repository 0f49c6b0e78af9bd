"""Seconds per round with 250 sampled one-example clients: fedpriv's Ray grid and Flower's simulation engine.

    python benchmarks/round.py                       # all of it, about ten minutes on 2 cores
    python benchmarks/round.py --nodes 1000          # a smaller peer
    python benchmarks/round.py --device cuda --actors 4 --nodes   # four that share the GPUs; no Flower

fedpriv: the whole round (sampling, ledger on disk, accounting, broadcast, clipped sum, noise, update), two
actors, N = 10^4, 10^6 and 10^9, and the time of each part. Flower: the same ClientApp on Flower's engine with
one client per node; 250 messages request one clipped gradient each, and only the messages are timed. Also
pfl-research's simulation (benchmarks/peer_pfl.py), if it is installed. All use synthetic populations and run
one after another on one machine; the output is medians and their ratios.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

COHORT = 250
POPULATIONS = (10**4, 10**6, 10**9)


def ours(
    population: int,
    rounds: int,
    actors: int,
    cohort: int = COHORT,
    device: str = "auto",
    gpus_per_actor: float = 0.0,
) -> dict[str, float]:
    """Median seconds of a round on fedpriv's Ray grid, and the peak memory in MiB of its processes."""
    from fedpriv.accounting import Ledger
    from fedpriv.config.builders import initial_params, make_source, make_task
    from fedpriv.config.plan import gpu_share, make_plan
    from fedpriv.config.schema import Config
    from fedpriv.federated.loop import run
    from fedpriv.flower.grid_engine import GridEngine
    from fedpriv.flower.grids.ray import RayGrid
    from fedpriv.runs.budget import RunAccountant

    config = Config.parse(
        {
            "clients": population,
            "sampling-rate": cohort / population,
            "rounds": rounds,
            **settings_of(actors, device, gpus_per_actor),
        }
    )
    plan = make_plan(config)
    grid = RayGrid(
        actors, plan.config.table(), num_cpus=config.cpus_per_actor, num_gpus=gpu_share(plan.config)
    )
    engine = GridEngine(grid)
    key = plan.key()
    params = initial_params(make_task(config, make_source(config)), key)
    marks: list[float] = []
    with (
        tempfile.TemporaryDirectory() as folder,
        Ledger.create(path := Path(folder) / "ledger.jsonl", {}) as ledger,
    ):
        budget_gate = RunAccountant(plan, ledger, path)
        run(
            plan.mechanism,
            params,
            engine,
            budget_gate,
            key,
            plan.cohorts(key),
            lambda progress: marks.append(time.perf_counter()),
        )
        memory = sum(peak_memory(pid) for pid in [os.getpid(), *worker_processes()])
        engine.close()
    steady = [after - before for before, after in itertools.pairwise(marks[10:])]
    return {"seconds": statistics.median(steady), "memory": memory}


def settings_of(actors: int, device: str, gpus_per_actor: float) -> dict[str, Any]:
    """The settings for ``actors`` actors, which share the machine's cores if these are fewer."""
    cpus = min(1.0, (os.cpu_count() or 1) / actors)
    return {"actors": actors, "cpus-per-actor": cpus, "device": device, "gpus-per-actor": gpus_per_actor}


def worker_processes() -> list[int]:
    """Process ids of the Ray actors that this process's grids started."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if b"ray::_Node" in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def peak_memory(pid: int) -> float:
    """Peak resident memory of a process in MiB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) / 1024
    return 0.0


def flower(nodes: int, rounds: int) -> list[float]:
    """Seconds of each round on Flower's engine, measured in a separate process."""
    command = [sys.executable, __file__, "--flower-child", str(nodes), "--rounds", str(rounds)]
    output = subprocess.run(command, capture_output=True, text=True, timeout=1800, check=False)
    for line in output.stdout.splitlines():
        if line.startswith("FIGURES "):
            seconds: list[float] = json.loads(line.removeprefix("FIGURES "))
            return seconds
    raise RuntimeError(f"Flower's engine gave no figures:\n{output.stderr[-2000:]}")


def pfl(placement: str, rounds: int) -> list[float]:
    """Seconds of each round in pfl-research's simulation, in a separate process; [] without pfl."""
    child = str(Path(__file__).with_name("peer_pfl.py"))
    command = [sys.executable, child, placement, str(rounds)]
    output = subprocess.run(command, capture_output=True, text=True, timeout=1800, check=False)
    for line in output.stdout.splitlines():
        if line.startswith("FIGURES "):
            seconds: list[float] = json.loads(line.removeprefix("FIGURES "))
            return seconds
    return []


def split(rounds: int, actors: int, device: str, gpus_per_actor: float) -> None:
    """Print the time of each part of fedpriv's round, as ``fedpriv bench`` does."""
    from fedpriv.bench import measure
    from fedpriv.config.schema import Config

    where = settings_of(actors, device, gpus_per_actor)
    figures = measure(Config.parse({"clients": 10**6, "sampling-rate": COHORT / 10**6, **where}), rounds)
    parts = ", ".join(f"{part} {1000 * seconds:.2f}" for part, seconds in figures.parts.items())
    print(f"ours, in ms: {parts}; whole {1000 * figures.round:.2f}")
    print(f"outside the clipped sum: {figures.overhead:.0%}", flush=True)


def flower_child(nodes: int, rounds: int) -> None:
    """Run Flower's engine with one client per node and time its rounds."""
    import numpy as np
    from flwr.app import Context, Message, MessageType
    from flwr.serverapp import Grid, ServerApp
    from flwr.simulation import run_simulation

    from fedpriv.config.builders import initial_params, make_source, make_task
    from fedpriv.config.schema import Config
    from fedpriv.federated.engine import Shard, SumRequest
    from fedpriv.flower.client_app import app as client_app
    from fedpriv.flower.serialization import request_content, shared_records
    from fedpriv.optimizers import dp_sgd
    from fedpriv.rng import Key

    config = Config()
    key = Key.fresh()
    optimizer = dp_sgd(0.5, 1.0)
    state = optimizer.init(initial_params(make_task(config, make_source(config)), key))
    server_app = ServerApp()

    @server_app.main()  # type: ignore[untyped-decorator]
    def main(grid: Grid, context: Context) -> None:
        while len(ids := sorted(grid.get_node_ids())) < nodes:
            time.sleep(1)
        seconds = []
        for number in range(rounds):
            chosen = key.generator("cohort", number).choice(nodes, COHORT, replace=False)
            started = time.perf_counter()
            request = SumRequest(optimizer.query(state), number, ())
            shared = shared_records(request)
            messages = [
                Message(
                    request_content(shared, [Shard(int(c), np.array([c], np.int64), parties=1)]),
                    ids[c],
                    MessageType.TRAIN,
                    group_id=str(number),
                )
                for c in chosen
            ]
            replies = list(grid.send_and_receive(messages))
            assert len(replies) == COHORT
            assert not any(reply.has_error() for reply in replies)
            seconds.append(time.perf_counter() - started)
        print("FIGURES " + json.dumps(seconds), flush=True)

    resources: Any = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    run_simulation(server_app, client_app, num_supernodes=nodes, backend_config=resources)


def main() -> None:
    """See the module's docstring."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--nodes", type=int, nargs="*", default=[1000, 10_000])
    parser.add_argument("--rounds", type=int, default=0)
    parser.add_argument("--actors", type=int, default=2)
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    parser.add_argument("--gpus-per-actor", type=float, default=0.0, help="0: an equal share")
    parser.add_argument("--flower-child", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.flower_child:
        flower_child(options.flower_child, options.rounds or 4)
        return
    machine = f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores"
    print(f"{machine}, {options.actors} actors on {options.device}")
    where = (options.device, options.gpus_per_actor)
    best = None
    for _ in range(2):  # twice, alternating: these figures drift
        for population in POPULATIONS:
            figures = ours(population, options.rounds or 110, options.actors, COHORT, *where)
            best = figures["seconds"] if population == 10**4 else best
            print(
                f"ours, N = {population:.0e}: {1000 * figures['seconds']:.1f} ms a round, "
                f"peak {figures['memory']:.0f} MiB",
                flush=True,
            )
    split(options.rounds or 110, options.actors, *where)
    for placement in ("central", "local"):
        seconds = pfl(placement, options.rounds or 20)
        if seconds:
            median = statistics.median(seconds)
            print(
                f"pfl-research, {placement}: {1000 * median:.0f} ms a round, {median / best:.1f} times ours"
            )
    for nodes in options.nodes:
        seconds = flower(nodes, options.rounds or 4)
        median = statistics.median(seconds[1:])
        print(f"Flower's engine, {nodes} nodes: {median:.2f} s a round, {median / best:.0f} times ours")


if __name__ == "__main__":
    main()
