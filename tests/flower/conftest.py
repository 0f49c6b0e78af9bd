"""One Ray instance for all tests of this folder."""

from collections.abc import Iterator

import pytest
import ray

from fedpriv.flower.grids.ray import start_ray


@pytest.fixture(scope="session")
def ray_instance() -> Iterator[None]:
    """A running Ray with eight logical CPUs that grids share."""
    start_ray(num_cpus=8)
    yield
    ray.shutdown()


@pytest.hookimpl(tryfirst=True)
def pytest_itemcollected(item: pytest.Item) -> None:
    """Where tests run in several processes, those that share Ray share a process."""
    if "ray_instance" in getattr(item, "fixturenames", ()):
        item.add_marker(pytest.mark.xdist_group("ray"))
