"""Rounds of a deployment on loopback: with `fedpriv node`, plain SuperNodes, or many cheap nodes.

    python benchmarks/deployment.py                                    # 2 nodes of each kind, without TLS
    python benchmarks/deployment.py --tls --nodes 10 --rounds 40       # what `fedpriv deploy` makes
    python benchmarks/deployment.py --tls --cheap --nodes 200          # nodes without data, in few processes
    python benchmarks/deployment.py --tls --cheap --nodes 1000 --idle 60   # no run: what the SuperLink costs

Without ``--tls``: a SuperLink, the nodes, and one ``flwr run``. With it: the folders of `fedpriv deploy
init`, its certificates, node keys, proxy and start scripts, and `fedpriv deploy run`. Each node has a file of
500 examples; the noise is central, the model `logistic`. A round is the time between two charges of the run's
ledger, which is watched every 10 ms; the first is left out. Cheap nodes (benchmarks/cheap_nodes.py) compute
nothing. What the SuperLink, the proxy, the ServerApp and the nodes use is printed, too: share of a core,
seconds of the processor a round, memory. On a machine that others use, these say more than the clock.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from helpers.deployments import Deployment, await_true  # noqa: E402
from helpers.hosted_grid import Federation, python  # noqa: E402
from helpers.owner_policy import write_policy  # noqa: E402

from fedpriv.deployment import control_api, enrol, flower_cli  # noqa: E402

EXAMPLES = 500
A_PROCESS = 100  # cheap nodes in one process
PROGRAMS = {
    "flwr-serverapp": "ServerApp",
    "flower-superexec": "SuperExec",
    "deploy superlink": "SuperLink",
    "deploy proxy": "proxy",
    "node run": "nodes",
    "cheap_nodes.py": "nodes",
}


@contextlib.contextmanager
def watched(ledger: Path, charged: Callable[[], None]) -> Iterator[None]:
    """Within the block ``charged`` is called at every charge of a ledger, which is looked at every 10 ms."""
    ended = threading.Event()

    def watch() -> None:
        size = 0
        while not ended.wait(0.01):
            now = ledger.stat().st_size if ledger.exists() else 0
            if now > size:
                if size:  # the first that is written is the header
                    charged()
                size = now

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()


@contextlib.contextmanager
def timed(ledger: Path) -> Iterator[list[float]]:
    """A list that has the times of the ledger's charges after the block."""
    times = list[float]()
    with watched(ledger, lambda: times.append(time.perf_counter())):
        yield times


def between(times: list[float]) -> list[float]:
    """Seconds of each round but the first."""
    return [end - begin for begin, end in itertools.pairwise(times)][1:]


def settings_of(nodes: int, number: int) -> dict[str, Any]:
    """The settings of a run."""
    return {
        "nodes-own-data": True,
        "unit": "example",
        "clients": nodes,
        "examples-per-client": EXAMPLES,
        "model": "logistic",
        "optimizer": "dp-sgd",
        "sampling-rate": 0.2,
        "rounds": number,
        "epsilon": 3.0,
        "delta": 1e-6,
        "evaluate-every": number,
    }


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


def without_tls(kind: str, nodes: int, number: int) -> list[float]:
    """Seconds of each round but the first."""
    with tempfile.TemporaryDirectory() as name, Federation(Path(name) / "flower") as federation:
        start(federation, kind, Path(name), nodes)
        out = Path(name) / "run"
        with timed(out / "ledger.jsonl") as times:
            log = federation.run(settings_of(nodes, number) | {"out": str(out)})
        assert "stopped: rounds" in log, log
    return between(times)


class Fleet(Deployment):
    """A deployment whose nodes may be cheap ones."""

    def __init__(self, folder: Path, nodes: int, cheap: bool) -> None:
        self.cheap, self.nodes = cheap, nodes
        super().__init__(folder, nodes, examples=2 if cheap else EXAMPLES)
        del self.env["FLWR_SUPEREXEC_TASK_POLL_INTERVAL"]  # the tests' own; here as in a deployment
        self._processes = list[subprocess.Popen[bytes]]()

    def begin(self) -> None:
        """Starts the server and all nodes, and waits until they are online."""
        self.start_server()
        if not self.cheap:
            self.start_nodes(range(self.nodes))
            return
        enrol.enrol(self.server)
        for first in range(0, self.nodes, A_PROCESS):
            last = min(first + A_PROCESS, self.nodes)
            command = [sys.executable, str(ROOT / "benchmarks" / "cheap_nodes.py"), str(self.folder)]
            with (self.folder / f"cheap-{first}.log").open("wb") as log:
                self._processes.append(
                    subprocess.Popen([*command, str(first), str(last)], env=self.env, stdout=log, stderr=log)
                )

        def online() -> bool:
            with contextlib.suppress(flower_cli.FlowerError):
                return list(control_api.nodes(self.server).values()).count("online") == self.nodes
            return False

        await_true(online, lambda: self.log("cheap-0")[-2000:] + self.log("server")[-2000:], timeout=600.0)

    @property
    def ledger(self) -> Path:
        """The server's ledger of the run."""
        return self.folder / "run" / "ledger.jsonl"

    def run(self, number: int, changes: Mapping[str, Any] = MappingProxyType({})) -> None:
        """Makes a run of so many rounds, and waits until it has ended."""
        settings = {**settings_of(self.nodes, number), **changes}
        options = [f"--set={key}={str(value).lower()}" for key, value in settings.items()]
        command = [str(self.folder), str(self.server.folder / "central.toml"), *options]
        out = f"--set=out={self.ledger.parent}"
        done = self.command("deploy", "run", *command, out, timeout=900.0 + 5.0 * number)
        assert "stopped: rounds" in done.stdout, done.stdout + self.log("server")[-3000:]

    def __exit__(self, *error: object) -> None:
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait()
        super().__exit__(*error)


def processes(deployment: Path) -> dict[int, str]:
    """{process id: its program} of a deployment's parties."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            text = (path / "cmdline").read_text().replace("\0", " ")
            where = f"{text} {os.readlink(path / 'cwd')}"
            for part, program in PROGRAMS.items():
                if part in text and str(deployment) in where:
                    found[int(path.name)] = program
    return found


def cost(process: int) -> tuple[float, float]:
    """(seconds of the processor that a process has used, resident MiB); zeros if it has ended."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return 0.0, 0.0
    ticks = int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK"), int(fields[21]) * os.sysconf("SC_PAGE_SIZE") / 2**20


@dataclass(frozen=True)
class Use:
    """What a deployment's programs have used by a moment."""

    at: float
    charges: int
    costs: dict[str, tuple[float, float]]

    @classmethod
    def now(cls, deployment: Path, ledger: Path | None) -> Use:
        """At this moment."""
        costs = dict[str, tuple[float, float]]()
        for process, program in processes(deployment).items():
            before, now = costs.get(program, (0.0, 0.0)), cost(process)
            costs[program] = (before[0] + now[0], before[1] + now[1])
        charges = ledger.read_bytes().count(b"\n") if ledger is not None and ledger.exists() else 0
        return cls(time.perf_counter(), charges, costs)


@contextlib.contextmanager
def busy(deployment: Path, ledger: Path | None = None) -> Iterator[None]:
    """Prints what the programs use within the block; with a ledger, from its third line to its last."""
    ended, taken = threading.Event(), list[Use]()

    def watch() -> None:
        while not ended.wait(0.5):
            now = Use.now(deployment, ledger)
            if ledger is None or (now.charges > 2 and (not taken or now.charges > taken[-1].charges)):
                taken.append(now)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()
    if len(taken) < 2:  # the block has failed, and says why
        return
    first, last = taken[0], taken[-1]
    for program, (cpu, memory) in sorted(last.costs.items()):
        used = cpu - first.costs.get(program, (0.0, 0.0))[0]
        rounds = f"{used / (last.charges - first.charges):.3f} s a round, " if ledger else ""
        print(
            f"  {program}: {used / (last.at - first.at):.1%} of a core, {rounds}{memory:.0f} MiB", flush=True
        )


def main() -> None:
    """Measures and prints."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--kinds", default="owner,plain", help="owner: fedpriv node; plain: flower-supernode")
    parser.add_argument("--tls", action="store_true", help="a deployment of `fedpriv deploy`; owner nodes")
    parser.add_argument("--cheap", action="store_true", help="nodes without data; with --tls")
    parser.add_argument("--idle", type=float, default=0.0, help="seconds to watch instead of a run")
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=6)
    options = parser.parse_args()
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores at the start", flush=True)
    if not options.tls:
        for kind in options.kinds.split(","):
            told(kind, options.nodes, without_tls(kind, options.nodes, options.rounds))
        return
    folder = tempfile.TemporaryDirectory()
    with folder as name, Fleet(Path(name) / "d", options.nodes, options.cheap) as fleet:
        fleet.begin()
        if options.idle:
            time.sleep(10.0)  # until the nodes' intervals have grown
            with busy(fleet.folder):
                time.sleep(options.idle)
            return
        with timed(fleet.ledger) as times, busy(fleet.folder, fleet.ledger):
            fleet.run(options.rounds)
    told("cheap, TLS" if options.cheap else "owner, TLS", options.nodes, between(times))


def told(kind: str, nodes: int, seconds: list[float]) -> None:
    """Prints the rounds of a kind of nodes."""
    low, median, high = statistics.quantiles(seconds, n=4)
    print(
        f"{kind}: {nodes} nodes, {len(seconds)} rounds: median {median:.2f} s "
        f"(quartiles {low:.2f} and {high:.2f}); load {os.getloadavg()[0]:.1f} at the end",
        flush=True,
    )


if __name__ == "__main__":
    main()
