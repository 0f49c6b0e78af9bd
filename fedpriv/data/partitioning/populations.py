"""Populations: they map client numbers to the examples that each client owns, with little memory.

A population is fixed by the partition seed and does not depend on a run's key. It counts as public
information, and so do the labels from which it is made: ``iid``, ``dirichlet`` and ``shards`` assign examples
by the labels of all examples, so another label would change the assignment of other examples. Such partitions
are for simulations. Data that deployed clients own is not partitioned.

>>> billion = OneExample(10**9, first=360)
>>> billion.examples(np.array([0, 999_999_999]))
(array([       360, 1000000359]), array([0, 1]))
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from fedpriv._internal import validation
from fedpriv._internal.lazy import numpy as np
from fedpriv.data.datasets.infinite_mnist import InfiniteMNIST
from fedpriv.data.partitioning.client_sizes import Sizes
from fedpriv.data.partitioning.label_skew import Dirichlet, Iid, Shards, Skew
from fedpriv.data.partitioning.partition import Implicit, Partition
from fedpriv.data.source import Indices, Source, whole

KINDS = ("one-example", "iid", "dirichlet", "shards", "silos", "natural")


class Population(Protocol):
    """Clients 0..clients-1 and the examples that each owns; no example has two owners."""

    @property
    def clients(self) -> int:
        """The number of clients, N."""

    def examples(self, client_ids: Indices) -> tuple[Indices, Indices]:
        """The examples of ``client_ids`` (k,): (indices (total,), owners (total,)).

        An owner is the POSITION in ``client_ids`` of the client that owns the example, ascending.
        Raises ArgumentError for a client number outside 0..clients-1.
        """


@dataclass(frozen=True)
class OneExample:
    """Client c owns exactly the example ``first + c`` (Du et al. 2021). Nothing is stored.

    Raises ArgumentError unless clients >= 1 and first >= 0.
    """

    clients: int
    first: int = 0

    def __post_init__(self) -> None:
        validation.integer("clients", self.clients, 1)
        validation.integer("first", self.first)

    def examples(self, client_ids: Indices) -> tuple[Indices, Indices]:
        """One example per client: the indices ``first + client_ids`` and the owners 0, 1, ..., k - 1."""
        ids = whole("client_ids", client_ids, below=self.clients)
        return ids + self.first, np.arange(len(ids), dtype=np.int64)


@dataclass(frozen=True)
class Silos:
    """``silos`` clients that own ``examples_per_silo`` consecutive examples each.

    The ranges are public. If examples are the privacy unit, unit u is example ``first + u`` and belongs to
    silo ``u // examples_per_silo``; :meth:`units` is the population to sample from.

    Raises ArgumentError unless silos >= 1, examples_per_silo >= 1 and first >= 0.
    """

    silos: int
    examples_per_silo: int
    first: int = 0

    def __post_init__(self) -> None:
        validation.integer("silos", self.silos, 1)
        validation.integer("examples_per_silo", self.examples_per_silo, 1)
        validation.integer("first", self.first)

    @property
    def clients(self) -> int:
        """The number of silos."""
        return self.silos

    def units(self) -> OneExample:
        """The population in which each example of each silo is one unit."""
        return OneExample(self.silos * self.examples_per_silo, self.first)

    def bounds(self, silo: int) -> tuple[int, int]:
        """(low, high): the units of ``silo`` are low..high-1."""
        whole("silo", [silo], below=self.silos)
        return silo * self.examples_per_silo, (silo + 1) * self.examples_per_silo

    def examples(self, client_ids: Indices) -> tuple[Indices, Indices]:
        """All examples of the silos ``client_ids``, and their owners."""
        ids = whole("client_ids", client_ids, below=self.silos)
        per = self.examples_per_silo
        starts = np.repeat(self.first + ids * per, per)
        owner = np.repeat(np.arange(len(ids), dtype=np.int64), per)
        return starts + np.tile(np.arange(per, dtype=np.int64), len(ids)), owner


def population(
    kind: str,
    source: Source,
    *,
    clients: int,
    examples_per_client: int = 1,
    sizes: str = "equal",
    alpha: float = 0.5,
    labels_per_client: int = 2,
    seed: int = 0,
) -> Population:
    """Divides ``source`` among ``clients`` clients.

    Args:
        kind: "one-example", "silos" (equal contiguous ranges), "natural" (the clients of the source, such as
            users), or a partition: "iid", "dirichlet", "shards". A partition divides a finite source
            completely and gives each client a part of an infinite one.
        source: the data set.
        clients: N, or the number of silos.
        examples_per_client: the examples of a silo, or a client's mean number of examples of an infinite
            source.
        sizes: "equal", "lognormal" or "uniform" client sizes, for partitions.
        alpha: the label skew of "dirichlet".
        labels_per_client: the labels per client of "shards".
        seed: the (public) partition seed.

    Raises:
        ArgumentError: if an argument is outside its range, a finite source has too few examples or labels, or
            the source has no labels or natural clients although the kind needs them.
    """
    validation.choice("partition", kind, KINDS)
    validation.integer("clients", clients, 1)
    validation.integer("partition-seed", seed)
    if kind in ("one-example", "silos"):
        each = (
            1 if kind == "one-example" else validation.integer("examples-per-client", examples_per_client, 1)
        )
        _require_enough(source, clients, each)
        equal = Silos(clients, each, source.first)
        return equal.units() if kind == "one-example" else equal
    if kind == "natural":
        return _natural(source, clients)
    skews: dict[str, Callable[[], Skew]] = {
        "iid": Iid,
        "dirichlet": lambda: Dirichlet(alpha),
        "shards": lambda: Shards(labels_per_client),
    }
    skew, spread = skews[kind](), Sizes(sizes, examples_per_client)
    if kind == "shards" and source.target == "label" and labels_per_client > source.classes:
        allowed = f"be at most {source.classes}, the labels of {source.name}"
        raise validation.fail("labels-per-client", labels_per_client, allowed)
    if isinstance(source, InfiniteMNIST):
        labels = source.labels(np.arange(source.first, source.first + source.base_size))
        return Implicit(labels, clients, skew, spread, seed, source.first)
    if source.size is None:
        raise validation.fail(
            "partition", kind, f"be one-example or silos for the infinite data set {source.name}"
        )
    if source.target == "label":
        labels = source.labels(np.arange(source.first, source.first + source.size))
    elif kind == "iid":
        labels = np.zeros(source.size, np.int64)  # iid does not depend on labels
    else:
        raise validation.ArgumentError(
            f"partition={kind} assigns examples by label, but the target of {source.name} is "
            f"{source.target}; use partition=iid"
        )
    return Partition.assign(labels, clients=clients, skew=skew, sizes=spread, seed=seed, first=source.first)


def _natural(source: Source, clients: int) -> Partition:
    if source.owners is None:
        raise validation.ArgumentError(
            f"partition=natural needs examples that belong to clients, such as users; {source.name} has "
            "none. Use another partition, such as iid."
        )
    people = Partition.natural(source.owners, source.first)
    if clients != people.clients:
        allowed = f"be {people.clients} with partition=natural, the number of clients in {source.name}"
        raise validation.fail("clients", clients, allowed)
    return people


def _require_enough(source: Source, clients: int, each: int) -> None:
    if source.size is None or clients * each <= source.size:
        return
    name, value, hint = "clients", clients, "an infinite data set allows more"
    size = f"{source.name} has {source.size} examples"
    allowed = f"be at most {source.size // each} with {each} examples each: {size}"
    if clients > source.size:
        allowed = f"be at most {source.size}: {size}"
    elif each > source.size:  # no number of clients would be small enough
        name, value = "examples-per-client", each
        allowed = f"be at most {source.size // clients} for {clients} clients: {size}"
    raise validation.fail(name, value, allowed, hint)
