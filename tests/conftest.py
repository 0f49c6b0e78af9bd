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

settings.register_profile("repeatable", derandomize=True)
settings.load_profile("default" if os.environ.get("FEDPRIV_EXPLORE") else "repeatable")


_savefig = Figure.savefig


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

    from fedpriv.flower.grids.ray import start_ray

    start_ray(num_cpus=8)
    yield
    ray.shutdown()


@pytest.hookimpl(tryfirst=True)
def pytest_itemcollected(item: pytest.Item) -> None:
    """Where tests run in several processes, those that share Ray share a process."""
    if "ray_instance" in getattr(item, "fixturenames", ()):
        item.add_marker(pytest.mark.xdist_group("ray"))


def pytest_sessionfinish() -> None:
    """The counts that docs/trust.md shows."""
    tally.write()
