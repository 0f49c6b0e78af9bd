"""One thread a process, since tests share their machine; and the same random examples in every run.

FEDPRIV_EXPLORE=1 has hypothesis look for new ones.
"""

import os
from collections.abc import Iterator

import pytest
import torch
from hypothesis import settings

torch.set_num_threads(1)

settings.register_profile("repeatable", derandomize=True)
settings.load_profile("default" if os.environ.get("FEDPRIV_EXPLORE") else "repeatable")


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
