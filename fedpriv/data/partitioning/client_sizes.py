"""The number of examples of each client.

>>> Sizes("equal", mean=3).of(0, np.array([5, 10**12])).tolist()
[3, 3]
>>> Sizes("equal").shares(10, 4, seed=0).tolist()
[3, 3, 2, 2]
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from fedpriv._internal import validation
from fedpriv._internal.lazy import numpy as np
from fedpriv._internal.lazy import scipy
from fedpriv.data.keyed import uniform
from fedpriv.data.source import Indices

if TYPE_CHECKING:
    import numpy.typing as npt

_SIZE = -1  # a hash column that no label or position uses, so that sizes are independent of other draws
SizeKind = Literal["equal", "lognormal", "uniform"]
KINDS: tuple[SizeKind, ...] = get_args(SizeKind)
_SPREAD = 0.5  # the standard deviation of the logarithm of lognormal sizes
_CAP = 10  # means: no client has more examples, a public bound


@dataclass(frozen=True)
class Sizes:
    """A distribution of client sizes.

    Attributes:
        kind: "equal"; "lognormal": mean * exp(Z / 2 - 1/8), Z standard normal, at most 10 times the mean; or
            "uniform" over 1..2 mean - 1.
        mean: the mean number of examples of a client, before the limit; ignored if a finite data set is
            divided.

    Raises ArgumentError for an unknown kind or mean < 1.
    """

    kind: str = "equal"
    mean: int = 1

    def __post_init__(self) -> None:
        validation.choice("client-sizes", self.kind, KINDS)
        validation.integer("examples-per-client", self.mean, 1)

    @property
    def most(self) -> int:
        """A public bound on the size of any client."""
        return {"equal": 1, "lognormal": _CAP, "uniform": 2}[self.kind] * self.mean

    def _relative(self, seed: int, client: Indices) -> npt.NDArray[np.float64]:
        if self.kind == "equal":
            return np.ones(len(client))
        u = uniform(seed, client, np.full(len(client), _SIZE))
        if self.kind == "uniform":
            return 2 * u
        drawn: npt.NDArray[np.float64] = np.exp(_SPREAD * scipy.special.ndtri(u) - _SPREAD**2 / 2)
        return np.minimum(drawn, _CAP)

    def of(self, seed: int, client: Indices) -> Indices:
        """Sizes (k,), between 1 and ``most``, of the clients ``client`` (k,) of an infinite source."""
        if self.kind == "uniform":
            u = uniform(seed, client, np.full(len(client), _SIZE))
            return np.floor(1 + u * (2 * self.mean - 1)).astype(np.int64)
        wanted = np.rint(self.mean * self._relative(seed, client))
        return np.clip(wanted, 1, self.most).astype(np.int64)

    def shares(self, total: int, clients: int, seed: int) -> Indices:
        """Sizes (clients,), each at least 1, with the sum ``total``, for dividing a finite data set.

        Raises ArgumentError if there are more clients than examples.
        """
        if validation.integer("clients", clients, 1) > total:
            hint = "each client needs an example; an infinite data set allows more clients"
            raise validation.fail("clients", clients, f"be at most {total}", hint)
        weights = self._relative(seed, np.arange(clients))
        ideal = (total - clients) * weights / weights.sum()
        sizes = np.floor(ideal).astype(np.int64)
        left = total - clients - int(sizes.sum())
        # Largest remainders first. The sort is stable, so ties go to the lowest client number.
        sizes[np.argsort(sizes - ideal, kind="stable")[:left]] += 1
        shares: Indices = sizes + 1
        return shares
