"""Privacy loss distributions (PLD) with certified upper and lower bounds: the default method.

Every release is dominated by a pair of distributions on the real line (``privacy_loss``). Their privacy
losses are rounded to a common lattice twice: once so that the privacy loss can only rise, and once so that it
can only fall (``rounding``). They are summed by transforms with bounded errors (``convolution``), for both
directions of the relation. Gaussian releases without sampling are combined into one exactly.

>>> from fedpriv.accounting.events import Event
>>> counts = {Event(1.0, "poisson", "add-remove", rate=0.1): 100}
>>> upper, lower = Pld().stages([counts], 1e-5)[0].epsilon(1e-5)
>>> round(upper, 2), 0.995 * upper < lower < upper
(7.05, True)
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from fedpriv._internal.lazy import numpy as np
from fedpriv.accounting.events import Event, Relation
from fedpriv.accounting.methods import gaussian, relations
from fedpriv.accounting.methods.base import Method, register
from fedpriv.accounting.pld import privacy_loss, rounding
from fedpriv.accounting.pld.convolution import Curve, Total, longer
from fedpriv.accounting.pld.discretisation import TAIL_MASS, Group, Lattice, choose
from fedpriv.accounting.pld.privacy_loss import Array

# Nodes are the multipliers that are transformed. Multipliers within this relative distance may share a node,
# and there are at most this many nodes.
_NODE_RATIO, _MAX_NODES = 2e-3, 768
# The number of cells of log z, within each of which nodes are equally dense.
_DENSITY_CELLS = 32
# The number of masses processed at a time.
_CHUNK_MASSES = 2**19
# If more mass of a sum is outside the window, the sum is repeated with a wider window.
_MAX_OUTSIDE = 1e-7
# A start within this many cells of the smallest loss is aligned to it.
_MARGIN_CELLS = 8
# Gaussian releases with larger losses get no place on the lattice of the others: e^-x would underflow.
_MAX_PLAIN_LOSS = 600.0


@dataclass(frozen=True)
class PldProfile:
    """Upper and lower curves of a composition, one per direction of the relation.

    Attributes:
        uppers, lowers: the curves; epsilon is the maximum over the directions. ``lowers`` is empty if no
            lower bound was requested.
        most: the largest possible loss of adding a unit; -log(1-q) per Poisson release.
    """

    uppers: tuple[Curve, ...]
    lowers: tuple[Curve, ...]
    most: float = math.inf

    @property
    def outside(self) -> float:
        """The largest share of a tilted sum's mass that is outside the window."""
        return max(curve.outside for curve in self.uppers)

    def epsilon(self, delta: float) -> tuple[float, float | None]:
        """(certified upper bound, certified lower bound or None) of epsilon at ``delta``."""
        lower = max((curve.lower(delta) for curve in self.lowers), default=None)
        removal, *addition = (curve.upper(delta) for curve in self.uppers)
        return max([removal, *(min(upper, self.most) for upper in addition)]), lower

    @property
    def advantage(self) -> float:
        """An upper bound of delta at epsilon 0.

        At epsilon 0 delta is equal in both directions; the curve of a removal is the more accurate one.
        """
        return self.uppers[0].delta(0.0)


@dataclass(frozen=True)
class PlainProfile:
    """The exact curve of Gaussian releases without sampling.

    Attributes:
        mu: the distance of the two Gaussians.
    """

    mu: float

    def epsilon(self, delta: float) -> tuple[float, float | None]:
        """(epsilon, epsilon) at ``delta``, up to round-off."""
        upper = gaussian.epsilon(self.mu, delta)
        # delta(mu^2 / 2) = 1/2 - e^(mu^2 / 2) Phi(-mu), which tends to 1/2.
        low = upper if math.isfinite(upper) or math.isinf(self.mu) or delta > 0.4 else self.mu**2 / 2
        return upper, max(0.0, low * (1 - 1e-8) - 1e-12)

    @property
    def advantage(self) -> float:
        """Delta at epsilon 0, up to round-off."""
        return math.exp(gaussian.log_delta(self.mu, 0.0)) if self.mu else 0.0


@dataclass(frozen=True)
class JoinedProfile:
    """Gaussian releases with losses too large for the lattice of the others: both are computed separately.

    Attributes:
        plain, others: the two parts. Their epsilons at half of delta each add up (basic composition).
    """

    plain: PlainProfile
    others: PldProfile | PlainProfile | JoinedProfile

    def epsilon(self, delta: float) -> tuple[float, float | None]:
        """(certified upper bound, certified lower bound) of epsilon at ``delta``."""
        parts = (self.plain, self.others)
        lowers = [low for _, low in (part.epsilon(delta) for part in parts) if low is not None]
        return sum(part.epsilon(delta / 2)[0] for part in parts), max(lowers)

    @property
    def advantage(self) -> float:
        """An upper bound of delta at epsilon 0."""
        return min(self.plain.advantage + self.others.advantage, 1.0)


@register
class Pld(Method):
    """Accounting by privacy loss distributions."""

    name = "pld"
    label = "PLD"
    kind = "bound"
    summary = "privacy loss distributions, composed numerically, with certified bounds on both sides; tight"
    also_called = ("fft", "prv")
    place = 0
    in_reports = True
    bounds_below = True

    def refusal(self, event: Event) -> str | None:
        """Why ``event`` is not supported, or None. All Gaussian releases are supported."""
        return relations.not_gaussian(event)

    def stages(
        self, added: Sequence[Mapping[Event, int]], delta: float, lower: bool = True
    ) -> Sequence[PldProfile | PlainProfile | JoinedProfile]:
        """The privacy curve after each stage of a run; stage i adds the events ``added[i]``."""
        plain = [{event: n for event, n in part.items() if not event.sampled} for part in added]
        squares = np.cumsum(list(map(_square, plain))).tolist()
        plain_profiles = [PlainProfile(math.sqrt(square)) for square in squares]
        if plain == list(map(dict, added)):
            return plain_profiles
        mu = plain_profiles[-1].mu
        if mu**2 / 2 + mu * math.sqrt(-2 * math.log(TAIL_MASS * delta)) > _MAX_PLAIN_LOSS:
            pairs = zip(added, plain, strict=True)
            others = [{event: n for event, n in all_.items() if event not in part} for all_, part in pairs]
            other_profiles = self.stages(others, delta / 2, lower)
            return [JoinedProfile(*parts) for parts in zip(plain_profiles, other_profiles, strict=True)]
        groups = _groups(added)
        for window_factor in (1, 2, 4, 8):
            lattice = choose(groups, delta, window_factor)
            profiles = _sums(groups, len(added), lattice, delta, lower)
            if window_factor == 8 or all(profile.outside < _MAX_OUTSIDE for profile in profiles):
                break
        precise = all(curve.precise(delta) for profile in profiles for curve in profile.uppers)
        if not precise and (real := longer()) is not None:
            profiles = _sums(groups, len(added), lattice, delta, lower, real)
        return [replace(profile, most=most) for profile, most in zip(profiles, _most(groups), strict=True)]


def _most(groups: Sequence[Group]) -> list[float]:
    """The largest loss of adding a unit after each stage; infinite unless all releases are
    Poisson-sampled.
    """
    if any(group.family != "poisson" or group.rate == 1 for group in groups):
        return [math.inf] * len(groups[0].counts)
    each = sum(-math.log1p(-group.rate) * group.counts.sum(axis=1) for group in groups)
    return [float(value) * (1 + 1e-12) for value in np.cumsum(each)]


def _sums(
    groups: Sequence[Group], stages: int, lattice: Lattice, delta: float, lower: bool, real: type = float
) -> list[PldProfile]:
    """The profiles of all stages on one lattice, by transforms of the floating-point type ``real``."""
    # Under replace-one the relation is symmetric, so one direction suffices.
    directions = [lattice.removal, lattice.addition] if groups[0].directed else [lattice.removal]
    uppers = [Total(lattice, direction, stages, real) for direction in directions]
    if not lower or not any(group.family == "fixed" for group in groups):
        lowers = [Total(lattice, direction, stages, real) for direction in directions] if lower else []
        for group in groups:
            _add(group, lattice, uppers, lowers)
        return _profiles(uppers, lowers)
    # For fixed-size sampling the worst pair of data sets over all releases is not known. The lower bound uses
    # one valid pair: at each release the unit's removal moves the sum by the replace-one distance.
    attained = [replace(g, family="poisson") if g.family == "fixed" else g for g in groups]
    other = choose(attained, delta)
    lowers = [Total(other, other.removal, stages, real)]
    for group, witness in zip(groups, attained, strict=True):
        _add(group, lattice, uppers, [])
        _add(witness, other, [], lowers)
    return _profiles(uppers, lowers)


def _profiles(uppers: list[Total], lowers: list[Total]) -> list[PldProfile]:
    above = list(zip(*(total.curves() for total in uppers), strict=True))
    below = list(zip(*(total.curves() for total in lowers), strict=True)) or [()] * len(above)
    return [PldProfile(up, low) for up, low in zip(above, below, strict=True)]


def _square(counts: Mapping[Event, int]) -> float:
    return math.fsum(n / relations.plain_multiplier(event) ** 2 for event, n in counts.items())


def _groups(added: Sequence[Mapping[Event, int]]) -> list[Group]:
    """The releases of all stages by family and rate. The unsampled Gaussians of a stage form one release."""
    found: dict[tuple[str, float], dict[float, list[int]]] = {}
    for stage, counts in enumerate(added):
        plain = {event: n for event, n in counts.items() if not event.sampled}
        if plain:
            z = _square(plain) ** -0.5
            found.setdefault(("poisson", 1.0), {}).setdefault(z, [0] * len(added))[stage] += 1
        for event, n in counts.items():
            if event not in plain:
                family = _family(event)
                z = relations.plain_multiplier(event) if family == "fixed" else event.noise_multiplier
                row = found.setdefault((family, event.rate), {}).setdefault(z, [0] * len(added))
                row[stage] += n
    directed = all(event.relation is Relation.ADD_REMOVE for counts in added for event in counts)
    return [
        Group(family, rate, np.array(sorted(rows)), np.array([rows[z] for z in sorted(rows)]).T, directed)
        for (family, rate), rows in found.items()
    ]


def _family(event: Event) -> str:
    if event.sampling.fixed_size:
        return "fixed"
    return "replace" if event.relation is Relation.REPLACE_ONE else "poisson"


def _add(group: Group, lattice: Lattice, uppers: Sequence[Total], lowers: Sequence[Total]) -> None:
    """Adds a group's releases to the totals of each direction (removal, addition)."""
    nodes, down, up = _nodes(group, lattice)
    for begin, end, count in _chunks(group, nodes, lattice):
        z, part = nodes[begin:end], slice(begin, end)
        family = "poisson" if group.family == "fixed" else group.family
        _, top = privacy_loss.support(family, group.rate, z, lattice.log_tail)
        if group.family == "fixed":
            points, infinite = rounding.fixed_size(group.rate, z, lattice.width, top)
            first = -(points.shape[1] // 2) * lattice.width
            uppers[0].add(points, np.full(z.shape, first), down[:, part], infinite)
            continue
        cells = privacy_loss.cut(
            family, group.rate, z, _start(group, z, lattice), lattice.width, count
        ).below(top)
        last = -cells.edges[:, -1]
        if uppers:
            spread = rounding.spread(cells)
            uppers[0].add(spread.removal, cells.start, down[:, part], spread.removal_infinite)
            if len(uppers) > 1:
                uppers[1].add(spread.addition[:, ::-1], last, down[:, part], spread.addition_infinite)
        if lowers:
            removal, addition = rounding.merged(cells)
            lowers[0].add(removal, cells.start, up[:, part], np.zeros(len(z)))
            if len(lowers) > 1:
                lowers[1].add(addition[:, ::-1], last, up[:, part], np.zeros(len(z)))


def _start(group: Group, z: Array, lattice: Lattice) -> Array:
    low, _ = privacy_loss.support(group.family, group.rate, z, lattice.log_tail)
    start = np.floor(low / lattice.width) * lattice.width
    if group.family == "poisson" and group.rate < 1:
        # If the lattice reaches the smallest loss, most of the mass may lie just above it.
        near = low < math.log1p(-group.rate) + _MARGIN_CELLS * lattice.width
        start[near] = rounding.start_of(group.rate, z[near], lattice.width)
    return start


def _chunks(group: Group, nodes: Array, lattice: Lattice) -> Iterator[tuple[int, int, int]]:
    """(begin, end, number of cells) of consecutive parts of the nodes.

    Nodes ascend, so the first node of a part needs the most cells.
    """
    family = "poisson" if group.family == "fixed" else group.family
    begin = 0
    while begin < len(nodes):
        low, high = privacy_loss.support(family, group.rate, nodes[begin : begin + 1], lattice.log_tail)
        length = float(high[0]) if group.family == "fixed" else float(high[0] - low[0])
        count = math.ceil(length / lattice.width) + _MARGIN_CELLS + 3
        end = min(len(nodes), begin + max(1, _CHUNK_MASSES // count))
        yield begin, end, count
        begin = end


def _nodes(group: Group, lattice: Lattice) -> tuple[Array, Array, Array]:
    """(nodes, counts with multipliers rounded down, counts with multipliers rounded up).

    Both counts have the shape (stages, nodes).
    """
    span = math.log(group.z[-1] / group.z[0])
    number = min(math.ceil(span / _NODE_RATIO), _MAX_NODES) + 1
    if len(group.z) <= number + 1:
        return group.z, group.counts, group.counts
    edges, density = _density(group, lattice)
    share = np.append(0.0, np.cumsum(density) / density.sum())
    nodes = np.exp(np.interp(np.linspace(0.0, 1.0, number), share, edges))
    nodes[0], nodes[-1] = group.z[0], group.z[-1]
    below = np.searchsorted(nodes, group.z, side="right") - 1
    above = below + (nodes[below] < group.z)
    down, up = (np.zeros((len(group.counts), number), dtype=int) for _ in range(2))
    np.add.at(down.T, below, group.counts.T)
    np.add.at(up.T, above, group.counts.T)
    return nodes, down, up


def _density(group: Group, lattice: Lattice) -> tuple[Array, Array]:
    """(edges (k+1,) of cells in log z, the relative density of nodes in each cell (k,)).

    Moving a multiplier by d log z moves the log moment at the tilt by w d log z. With nodes of density n the
    total error is the integral of w / n, which is minimal for n proportional to sqrt(w).
    """
    edges = np.linspace(math.log(group.z[0]), math.log(group.z[-1]), _DENSITY_CELLS + 1)
    tilt = np.array([lattice.removal.tilt])
    moments = privacy_loss.log_moments(group.family, group.rate, np.exp(edges), tilt, lattice.log_tail)[:, 0]
    releases, _ = np.histogram(np.log(group.z), bins=edges, weights=group.counts.sum(axis=0))
    density = np.sqrt(np.maximum(moments[:-1] - moments[1:], 0.0) * releases)
    # The quadrature is rough, so every cell gets some nodes.
    return edges, density + 0.1 * density.mean() + 1e-300
