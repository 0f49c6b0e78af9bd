"""Who owns which example: a population maps client numbers to example indices, and stores as little
as it can.

All of it is fixed, and decided by a partition seed, never by a run's key. It counts as public, as does what
it is made from: ``iid``, ``dirichlet`` and ``shards`` deal by the labels of all examples, so that another
label would deal others' examples otherwise. That is for simulations; data that clients own is not dealt.

>>> billion = OneExample(10**9, first=360)
>>> billion.examples(np.array([0, 999_999_999]))
(array([       360, 1000000359]), array([0, 1]))
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from fedpriv._internal import validation
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
        """The examples of ``client_ids`` (k,): their indices (total,) and owners (total,).

        An owner is the POSITION in ``client_ids`` of the client that the example belongs to,
        ascending. Raises ArgumentError for a client number outside 0..clients-1.
        """


@dataclass(frozen=True)
class OneExample:
    """Client c owns example ``first + c`` and no other (Du et al. 2021); nothing is stored.

    Raises ArgumentError unless clients >= 1 and first >= 0.
    """

    clients: int
    first: int = 0

    def __post_init__(self) -> None:
        validation.integer("clients", self.clients, 1)
        validation.integer("first", self.first)

    def examples(self, client_ids: Indices) -> tuple[Indices, Indices]:
        """One example a client: ``first + client_ids`` and the owners 0, 1, ..., k - 1."""
        ids = whole("client_ids", client_ids, below=self.clients)
        return ids + self.first, np.arange(len(ids), dtype=np.int64)


@dataclass(frozen=True)
class Silos:
    """``silos`` clients that own ``examples_per_silo`` examples each, silo s a contiguous range.

    The ranges are public. For examples as the privacy unit, unit u is example ``first + u``, and
    belongs to silo ``u // examples_per_silo``; :meth:`units` is the population to sample from.

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
        """All examples of all silos, each as a unit of its own."""
        return OneExample(self.silos * self.examples_per_silo, self.first)

    def silo_of(self, unit_ids: Indices) -> Indices:
        """The silo (n,) that each unit of ``unit_ids`` (n,) lies in."""
        ids = whole("unit_ids", unit_ids, below=self.silos * self.examples_per_silo)
        return ids // self.examples_per_silo

    def bounds(self, silo: int) -> tuple[int, int]:
        """The units of ``silo``: from the first up to, not including, the second."""
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
    """Share ``source`` out to ``clients`` clients.

    Args:
        kind: "one-example", "silos" (equal contiguous ranges), "natural" (a client is who the source
            says, such as a user), or a partition: "iid", "dirichlet", "shards". A finite source is
            divided whole; of an endless one each client has a part.
        source: what is shared out.
        clients: N, or the number of silos.
        examples_per_client: examples of a silo, or the mean of a client of an endless source.
        sizes: "equal", "lognormal" or "uniform" client sizes, for partitions.
        alpha: label skew of "dirichlet".
        labels_per_client: of "shards".
        seed: the (public) partition seed.

    Raises:
        ArgumentError: an argument is outside its range, a finite source has too few examples or labels, or
            the source has no labels or natural clients where the kind needs them.
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
        raise validation.fail("partition", kind, f"be one-example or silos for {source.name}")
    if source.target == "label":
        labels = source.labels(np.arange(source.first, source.first + source.size))
    elif kind == "iid":
        labels = np.zeros(source.size, np.int64)  # which it is blind to
    else:
        allowed = f"be another than {kind}, which deals by label, for {source.name}"
        raise validation.fail(
            "partition", kind, allowed, f"its target is {source.target}; iid needs no label"
        )
    return Partition.deal(labels, clients=clients, skew=skew, sizes=spread, seed=seed, first=source.first)


def _natural(source: Source, clients: int) -> Partition:
    if source.owners is None:
        allowed = f"be another than natural for {source.name}, whose examples have no clients of their own"
        raise validation.fail("partition", "natural", allowed)
    people = Partition.natural(source.owners, source.first)
    if clients != people.clients:
        allowed = f"be {people.clients} with partition natural, the clients that {source.name} has"
        raise validation.fail("clients", clients, allowed)
    return people


def _require_enough(source: Source, clients: int, each: int) -> None:
    if source.size is None or clients * each <= source.size:
        return
    name, value, hint = "clients", clients, "or take an infinite data set"
    allowed = f"be at most {source.size // each} for {each} each of {source.name}"
    if clients > source.size:
        allowed = f"be at most {source.size} for the examples of {source.name}"
    elif each > source.size:  # for which no number of clients would do
        name, value = "examples-per-client", each
        allowed = f"be at most {source.size // clients} for {clients} clients of {source.name}"
    raise validation.fail(name, value, allowed, hint)
