"""One thread a process, since tests share their machine; and the same random examples in every run.

FEDPRIV_EXPLORE=1 has hypothesis look for new ones.
"""

import os
from collections.abc import Iterator

import pytest
import torch
from helpers import tally
from hypothesis import settings
from matplotlib.figure import Figure

torch.set_num_threads(1)
# Ray runs its workers at niceness 15, where a busy machine starves them.
os.environ.setdefault("RAY_worker_niceness", "0")

# No deadline for an example: on a busy machine any of them can take long.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.register_profile("explore", deadline=None)
settings.load_profile("explore" if os.environ.get("FEDPRIV_EXPLORE") else "repeatable")


_savefig = Figure.savefig


@pytest.fixture(autouse=True)
def no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test uses a Ray cluster of this machine, nor one that another test named."""
    monkeypatch.setenv("RAY_ADDRESS", "")


@pytest.fixture(scope="session", autouse=True)
def blank_pictures() -> Iterator[None]:
    """Pictures are blank: rendering that of a small run takes a quarter of the run's time."""
    blank = Figure(figsize=(0.1, 0.1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Figure, "savefig", lambda figure, *args, **kwargs: _savefig(blank, *args, **kwargs))
        yield


@pytest.fixture
def rendered_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pictures are rendered in this test."""
    monkeypatch.setattr(Figure, "savefig", _savefig)


@pytest.fixture(scope="session")
def ray_instance() -> Iterator[None]:
    """A running Ray with eight logical CPUs that grids share."""
    import ray

    from fedpriv._internal.ray_cluster import start_ray

    start_ray(num_cpus=8)
    yield
    ray.shutdown()


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Files are no part of a test's id: an archive holds the time at which it was made, and processes that
    collect tests at different seconds would not have the same ones."""
    return argname if isinstance(val, bytes) and len(val) > _LONGEST_ID else None


_LONGEST_ID = 40  # bytes of a value that is part of a test's id
_GROUPS = ("processes", "deployments")  # Ray and Flower's engine; SuperLinks and nodes of their own


@pytest.hookimpl(tryfirst=True)
def pytest_itemcollected(item: pytest.Item) -> None:
    """Tests that start Ray share one test process, those of deployments another one; both have time."""
    if " at 0x" in item.nodeid:
        raise pytest.UsageError(f"{item.nodeid}: its id holds an address, which differs between processes")
    if "ray_instance" in getattr(item, "fixturenames", ()):
        item.add_marker(pytest.mark.processes)
    if item.get_closest_marker("processes"):
        deployed = "deployment" in item.path.relative_to(item.config.rootpath).as_posix()
        item.add_marker(pytest.mark.xdist_group(_GROUPS[deployed]))
        if not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(900))


def pytest_collection_finish(session: pytest.Session) -> None:
    """The groups are kept: a pytest that pytest-xdist does not know would run two deployments at once."""
    if not hasattr(session.config, "workerinput") or session.config.getoption("dist") != "loadgroup":
        return
    for item in session.items:
        if item.get_closest_marker("xdist_group") and "@" not in item.nodeid.rsplit("::", 1)[-1]:
            raise pytest.UsageError(f"pytest-xdist does not keep groups ({item.nodeid}); see pyproject.toml")


def pytest_sessionfinish() -> None:
    """The counts that docs/trust.md shows."""
    tally.write()
