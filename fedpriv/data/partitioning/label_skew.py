"""The distribution of labels over clients: iid, Dirichlet(alpha), or a few labels per client (shards).

Each skew has two methods. ``counts`` divides a finite data set completely: it gives the number of examples of
each label for each client. ``draw`` gives the labels of the examples of any of up to 10^12 clients of an
infinite source; they depend only on (seed, client).

>>> stock = np.array([6, 6])
>>> Shards(1).counts(np.array([6, 6]), stock, np.random.default_rng(0)).tolist()
[[6, 0], [0, 6]]
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from fedpriv._internal import validation
from fedpriv._internal.lazy import numpy as np
from fedpriv._internal.lazy import scipy
from fedpriv.data.keyed import permuted, uniform
from fedpriv.data.source import Indices

if TYPE_CHECKING:
    import numpy.typing as npt

_LABEL, _GAMMA, _BOOST, _CHOICE = 1, 2, 3, 4  # hash columns for separate purposes, so that no draw repeats


class Skew(Protocol):
    """A distribution of G labels over clients."""

    def counts(self, sizes: Indices, stock: Indices, generator: np.random.Generator) -> Indices:
        """The number of examples of each label for each client, (clients, G).

        Rows add up to ``sizes`` (clients,), and columns to ``stock`` (G,), the number of examples of each
        label. Both have the same total.
        """

    def draw(self, seed: int, client: Indices, place: Indices, stock: Indices) -> Indices:
        """The labels (n,) of the examples ``place`` (n,) = 0, 1, ... of the clients ``client`` (n,)."""


@dataclass(frozen=True)
class Iid:
    """Labels are independent of clients."""

    def counts(self, sizes: Indices, stock: Indices, generator: np.random.Generator) -> Indices:
        """A random assignment of all examples."""
        labels = generator.permutation(np.repeat(np.arange(len(stock)), stock))
        return _tally(np.repeat(np.arange(len(sizes)), sizes), labels, len(sizes), len(stock))

    def draw(self, seed: int, client: Indices, place: Indices, stock: Indices) -> Indices:
        """Labels in the proportions of ``stock``."""
        u = uniform(seed, client, place, np.full(len(client), _LABEL))
        label: Indices = np.searchsorted(np.cumsum(stock), u * stock.sum(), side="right")
        return label


@dataclass(frozen=True)
class Dirichlet:
    """Each client's label proportions are a draw from a Dirichlet distribution (Hsu et al. 2019).

    The concentrations are ``alpha * G * (share of the label in the data)``, so ``alpha`` each if all labels
    are equally frequent. A small alpha gives about one label per client, a large alpha is close to iid.
    Raises ArgumentError unless 0 < alpha < infinity.
    """

    alpha: float

    def __post_init__(self) -> None:
        validation.finite_positive("dirichlet-alpha", self.alpha)

    def _proportions(self, seed: int, client: Indices, stock: Indices) -> npt.NDArray[np.float64]:
        """Dirichlet draws (k, G) of the clients ``client`` (k,).

        Gamma(a) = Gamma(a + 1) U^(1/a) is computed in logarithms, since draws underflow for small a.
        """
        k, labels = len(client), len(stock)
        shape = np.tile(self.alpha * labels * stock / stock.sum(), k)
        who, label = np.repeat(client, labels), np.tile(np.arange(labels), k)
        u = uniform(seed, who, label, np.full(k * labels, _GAMMA))
        boost = uniform(seed, who, label, np.full(k * labels, _BOOST))
        logs = (np.log(scipy.special.gammaincinv(shape + 1, u)) + np.log(boost) / shape).reshape(k, labels)
        weights = np.exp(logs - logs.max(axis=1, keepdims=True))
        proportions: npt.NDArray[np.float64] = weights / weights.sum(axis=1, keepdims=True)
        return proportions

    def counts(self, sizes: Indices, stock: Indices, generator: np.random.Generator) -> Indices:
        """Clients draw labels in random order from the remaining examples.

        If a client's labels are used up, it draws from all remaining examples, so the last clients are less
        skewed.
        """
        seed = int(generator.integers(2**62))
        wishes = self._proportions(seed, np.arange(len(sizes)), stock)
        left, counts = stock.copy(), np.zeros((len(sizes), len(stock)), np.int64)
        for client in generator.permutation(len(sizes)):
            need = int(sizes[client])
            while need:
                odds = np.where(left > 0, wishes[client], 0.0)
                if not odds.sum() > 1e-12:
                    odds = left.astype(np.float64)
                got = np.minimum(generator.multinomial(need, odds / odds.sum()), left)
                counts[client] += got
                left -= got
                need -= int(got.sum())
        return counts

    def draw(self, seed: int, client: Indices, place: Indices, stock: Indices) -> Indices:
        """Labels drawn with the client's proportions."""
        distinct, row = np.unique(client, return_inverse=True)
        cumulative = np.cumsum(self._proportions(seed, distinct, stock), axis=1)[:, :-1]
        u = uniform(seed, client, place, np.full(len(client), _LABEL))
        label: Indices = (u[:, None] >= cumulative[row]).sum(axis=1)
        return label


@dataclass(frozen=True)
class Shards:
    """Each client has ``labels`` pieces of the data sorted by label (McMahan et al. 2017).

    In a finite data set a piece may contain two labels. In an infinite one each client has exactly ``labels``
    labels, or all labels if there are fewer. Raises ArgumentError unless labels >= 1.
    """

    labels: int = 2

    def __post_init__(self) -> None:
        validation.integer("labels-per-client", self.labels, 1)

    def counts(self, sizes: Indices, stock: Indices, generator: np.random.Generator) -> Indices:
        """The sorted data is cut into clients x labels pieces, which are assigned at random."""
        pieces = sizes[:, None] // self.labels + (np.arange(self.labels) < sizes[:, None] % self.labels)
        order = generator.permutation(pieces.size)
        owners = np.repeat(order // self.labels, pieces.ravel()[order])
        labels = np.repeat(np.arange(len(stock)), stock)
        return _tally(owners, labels, len(sizes), len(stock))

    def draw(self, seed: int, client: Indices, place: Indices, stock: Indices) -> Indices:
        """The client's labels in turn, so that its examples alternate between them."""
        labels = np.full(len(client), len(stock))
        turn = place % np.minimum(self.labels, labels)
        return permuted(seed, turn, labels, client, np.full(len(client), _CHOICE))


def _tally(owners: Indices, labels: Indices, clients: int, classes: int) -> Indices:
    """The number of occurrences of each (owner, label), (clients, classes)."""
    return np.bincount(owners * classes + labels, minlength=clients * classes).reshape(clients, classes)
