"""The Ray that actors run on: one of this machine's own, or a cluster that ``RAY_ADDRESS`` names.

A local Ray listens on loopback only. The machines of a cluster need the same version of fedpriv, and the
user's code and data at the same places: :func:`require_ready` names a machine that lacks something before a
run begins. The environment variables in :data:`FORWARDED` reach the actors; others do not.
"""

from __future__ import annotations

import os
import socket
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any

from fedpriv._internal import validation

# Ray sends arguments and results up to this size in bytes inside the call, larger ones through its object
# store: Ray's default, and ours, which makes a round of a 26,000-parameter model about four times as fast.
RAY_INLINE, _OUR_INLINE = 100 * 1024, 4 * 1024 * 1024

FORWARDED = ("FEDPRIV_DATA", "FLWR_TELEMETRY_ENABLED")  # variables of this process that actors get

_ANSWER_TIMEOUT = 10.0  # seconds


class ClusterError(validation.FedprivError, RuntimeError):
    """A Ray cluster cannot run a simulation; the message gives the reason and a remedy."""


def address() -> str:
    """The address of the cluster to use; empty for a Ray of this machine's own."""
    named = os.environ.get("RAY_ADDRESS", "")
    return "" if named == "local" else named


def start_ray(num_cpus: int | None = None) -> int:
    """Start a local Ray without dashboard and usage statistics, or connect to ``RAY_ADDRESS``.

    Args:
        num_cpus: logical CPUs of a local Ray; default: the machine's.

    Returns:
        the size in bytes up to which this Ray inlines arguments and results.

    Raises ClusterError if there is no cluster at the address.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray

    cluster = address()
    shared: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        if not cluster:
            with _on_loopback():
                ray.init(
                    address="local",
                    num_cpus=num_cpus,
                    include_dashboard=False,
                    _system_config={"max_direct_call_object_size": _OUR_INLINE},
                    **shared,
                )
            return _OUR_INLINE
        if cluster.startswith("ray://"):
            raise ClusterError(
                f"RAY_ADDRESS is {cluster!r}: Ray's client protocol does not carry actors' messages; start "
                "this command on a machine of the cluster, with the address HOST:PORT or auto"
            )
        _require_answer(cluster)
        try:
            ray.init(address=cluster, **shared)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise _no_cluster(cluster, str(error).strip().split("\n")[0]) from None
    return RAY_INLINE


def _require_answer(cluster: str) -> None:
    """Raises ClusterError unless something listens at HOST:PORT; Ray itself tries for minutes."""
    host, colon, port = cluster.rpartition(":")
    if not colon:  # auto
        return
    if not port.isdecimal() or not 0 < int(port) < 2**16:
        raise validation.fail("RAY_ADDRESS", cluster, "be HOST:PORT, or auto")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_ANSWER_TIMEOUT).close()
    except OSError as error:
        raise _no_cluster(cluster, error.strerror or type(error).__name__) from None


def _no_cluster(cluster: str, why: str) -> ClusterError:
    hint = "`ray status` on that machine says whether one runs"
    return ClusterError(f"no Ray cluster answers at {cluster} ({why}); {hint}")


@contextmanager
def _on_loopback() -> Iterator[None]:
    """Ray's processes listen on 127.0.0.1 only, as they do on macOS and Windows; on Linux Ray has no setting
    for it, and takes the machine's outward address even if it is given 127.0.0.1."""
    from ray._private import ray_constants

    before = ray_constants.ENABLE_RAY_CLUSTER
    ray_constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before


def resources() -> Mapping[str, float] | None:
    """The CPUs and GPUs of the cluster that ``RAY_ADDRESS`` names; None without one.

    Connects to the cluster. Raises ClusterError if there is none at the address.
    """
    if not address():
        return None
    import ray

    if not ray.is_initialized():
        start_ray()
    return total()


def total() -> Mapping[str, float]:
    """The CPUs and GPUs of the machines of this process's Ray that are alive."""
    alive = [each["Resources"] for each in machines().values()]
    return {kind: sum(each.get(kind, 0.0) for each in alive) for kind in ("CPU", "GPU")}


def machines() -> dict[str, Mapping[str, Any]]:
    """{Ray's id: what Ray knows} of the machines that are alive."""
    import ray

    return {each["NodeID"]: each for each in ray.nodes() if each["Alive"]}


def search_path() -> list[str]:
    """Where this process looks for modules: the user's own are looked for there on other processes, too."""
    return [path for path in sys.path if path]


def look_in(paths: Iterable[str]) -> None:
    """Has this process, an actor, also look for modules in these places."""
    sys.path.extend(path for path in paths if path not in sys.path)


def environment() -> dict[str, Any]:
    """The ``runtime_env`` of actors."""
    found = {name: os.environ[name] for name in FORWARDED if name in os.environ}
    return {"env_vars": found} if found and address() else {}


def require_ready(check: Callable[[], object] | None = None, timeout: float = 120.0) -> None:
    """Raises ClusterError if another machine of the cluster cannot run actors, and says which and why.

    Args:
        check: called on each of them; its error is what the machine lacks.
        timeout: the seconds to wait for all of them.
    """
    import ray
    from ray.exceptions import GetTimeoutError, RayError
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = ray.get_runtime_context().get_node_id()
    others = {
        name: each for name, each in machines().items() if name != here and each["Resources"].get("CPU")
    }
    if not others:
        return
    wanted, paths = version("fedpriv"), search_path()

    # Ray sends a function inside a function whole; another one it would import from fedpriv.
    def look() -> str:
        import importlib.metadata
        import sys

        sys.path.extend(path for path in paths if path not in sys.path)
        try:
            found = importlib.metadata.version("fedpriv")
        except importlib.metadata.PackageNotFoundError:
            return "fedpriv is not installed there"
        if found != wanted:
            return f"it has fedpriv {found}, and this machine {wanted}"
        try:
            if check is not None:
                check()
        except Exception as error:
            return f"{error}" or type(error).__name__
        return ""

    def start(name: str) -> Any:
        place = NodeAffinitySchedulingStrategy(name, soft=False)
        options = {"num_cpus": 0, "max_retries": 0, "scheduling_strategy": place}
        return ray.remote(look).options(**options, runtime_env=environment()).remote()

    futures = {name: start(name) for name in others}
    done, _ = ray.wait(list(futures.values()), num_returns=len(futures), timeout=timeout)
    lacking = []
    for name, future in futures.items():
        try:
            why = ray.get(future, timeout=0) if future in done else f"no answer within {timeout:g} s"
        except (GetTimeoutError, RayError) as error:
            why = str(error).strip().split("\n")[-1]
        if why:
            lacking.append(f"machine {others[name]['NodeManagerAddress']}: {why}")
    if lacking:
        raise ClusterError(f"not all machines of the Ray cluster can take part: {'; '.join(lacking)}")
