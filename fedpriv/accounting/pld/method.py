"""Privacy loss distributions, with certified upper and lower bounds: the default method.

Every release is dominated by a pair of distributions on the line (``losses``). Their privacy losses
are rounded to a common lattice, once so that the privacy loss can only rise and once so that it can only
fall (``rounding``), and summed by transforms whose errors are bounded (``convolution``), for both
directions of the relation. Plain Gaussian releases join into one, exactly.

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

import numpy as np

from fedpriv.accounting.events import Event
from fedpriv.accounting.methods import gaussian, relations
from fedpriv.accounting.pld import privacy_loss, rounding
from fedpriv.accounting.pld.convolution import Curve, Total
from fedpriv.accounting.pld.discretisation import TAIL, Frame, Group, choose
from fedpriv.accounting.pld.privacy_loss import Array

# Multipliers within this ratio of each other may share a node; there are at most this many nodes.
_JOIN, _NODES = 2e-3, 768
# Cells of log z in which nodes lie equally dense.
_CELLS = 32
# Masses that are worked on at a time.
_CHUNK = 2**19
# A sum that leaves out more is done again in a wider window.
_OUTSIDE = 1e-7
# Cells from the least loss that still count as near it.
_NEAR = 8
# The largest losses of plain releases that others' lattice reaches to: e^-x is no number soon after.
_LARGEST = 600.0


@dataclass(frozen=True)
class PldProfile:
    """Upper and lower curves of a composition, in each direction that the relation has.

    Attributes:
        uppers, lowers: the curves, epsilon being the largest over the directions; no lowers where they
            were not asked for.
        most: what the loss of adding a unit never passes, -log(1-q) a Poisson release.
    """

    uppers: tuple[Curve, ...]
    lowers: tuple[Curve, ...]
    most: float = math.inf

    @property
    def outside(self) -> float:
        """The largest share of a tilted sum that the window leaves out."""
        return max(curve.outside for curve in self.uppers)

    def epsilon(self, delta: float) -> tuple[float, float | None]:
        """(certified upper, certified lower) epsilon at ``delta``."""
        lower = max((curve.lower(delta) for curve in self.lowers), default=None)
        removal, *addition = (curve.upper(delta) for curve in self.uppers)
        return max([removal, *(min(upper, self.most) for upper in addition)]), lower

    @property
    def advantage(self) -> float:
        """Delta at epsilon 0, or a little more. There both directions have one number, and what a removal
        loses is what the curves are the most exact for."""
        return self.uppers[0].delta(0.0)


@dataclass(frozen=True)
class PlainProfile:
    """The exact curve of plain Gaussian releases.

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
    """Plain releases whose losses leave no lattice for those of the others: both by themselves.

    Attributes:
        plain, others: what is added up, at half of delta each (basic composition).
    """

    plain: PlainProfile
    others: PldProfile | PlainProfile | JoinedProfile

    def epsilon(self, delta: float) -> tuple[float, float | None]:
        """(certified upper, certified lower) epsilon at ``delta``."""
        parts = (self.plain, self.others)
        lowers = [low for _, low in (part.epsilon(delta) for part in parts) if low is not None]
        return sum(part.epsilon(delta / 2)[0] for part in parts), max(lowers)

    @property
    def advantage(self) -> float:
        """Delta at epsilon 0, or more."""
        return min(self.plain.advantage + self.others.advantage, 1.0)


class Pld:
    """Privacy loss distributions."""

    name = "pld"
    label = "PLD"
    kind = "bound"

    def refusal(self, event: Event) -> str | None:
        """All Gaussian releases are supported."""
        return relations.not_gaussian(event)

    def stages(
        self, added: Sequence[Mapping[Event, int]], delta: float, lower: bool = True
    ) -> Sequence[PldProfile | PlainProfile | JoinedProfile]:
        """The privacy curve after each stage of a run that adds ``added``, one after the other."""
        plain = [{event: n for event, n in part.items() if relations.unsampled(event)} for part in added]
        apart = [PlainProfile(math.sqrt(square)) for square in np.cumsum(list(map(_square, plain))).tolist()]
        if plain == list(map(dict, added)):
            return apart
        mu = apart[-1].mu
        if mu**2 / 2 + mu * math.sqrt(-2 * math.log(TAIL * delta)) > _LARGEST:
            pairs = zip(added, plain, strict=True)
            others = [{event: n for event, n in part.items() if event not in alone} for part, alone in pairs]
            found = self.stages(others, delta / 2, lower)
            return [JoinedProfile(*parts) for parts in zip(apart, found, strict=True)]
        groups = _groups(added)
        for room in (1, 2, 4, 8):
            profiles = _sums(groups, len(added), choose(groups, delta, room), delta, lower)
            if room == 8 or all(profile.outside < _OUTSIDE for profile in profiles):
                break
        return [replace(profile, most=most) for profile, most in zip(profiles, _most(groups), strict=True)]


def _most(groups: Sequence[Group]) -> list[float]:
    """The largest loss of adding a unit after each stage; infinite with anything but Poisson sampling."""
    if any(group.family != "poisson" or group.rate == 1 for group in groups):
        return [math.inf] * len(groups[0].counts)
    each = sum(-math.log1p(-group.rate) * group.counts.sum(axis=1) for group in groups)
    return [float(value) * (1 + 1e-12) for value in np.cumsum(each)]


def _sums(groups: Sequence[Group], stages: int, frame: Frame, delta: float, lower: bool) -> list[PldProfile]:
    """The profiles of all stages on one lattice."""
    # Under replace-one the two neighbours are alike, and one direction is both.
    sides = [frame.removal, frame.addition] if groups[0].directed else [frame.removal]
    uppers = [Total(frame, side, stages) for side in sides]
    if not lower or not any(group.family == "fixed" for group in groups):
        lowers = [Total(frame, side, stages) for side in sides] if lower else []
        for group in groups:
            _add(group, frame, uppers, lowers)
        return _profiles(uppers, lowers)
    # The worst data for all releases at once is not known: the lower bound is one pair of data
    # sets, which shows a removal at the replace-one distance every time.
    attained = [replace(g, family="poisson") if g.family == "fixed" else g for g in groups]
    other = choose(attained, delta)
    lowers = [Total(other, other.removal, stages)]
    for group, witness in zip(groups, attained, strict=True):
        _add(group, frame, uppers, [])
        _add(witness, other, [], lowers)
    return _profiles(uppers, lowers)


def _profiles(uppers: list[Total], lowers: list[Total]) -> list[PldProfile]:
    above = list(zip(*(total.curves() for total in uppers), strict=True))
    below = list(zip(*(total.curves() for total in lowers), strict=True)) or [()] * len(above)
    return [PldProfile(up, low) for up, low in zip(above, below, strict=True)]


def _square(counts: Mapping[Event, int]) -> float:
    return math.fsum(n / relations.plain_multiplier(event) ** 2 for event, n in counts.items())


def _groups(added: Sequence[Mapping[Event, int]]) -> list[Group]:
    """The releases of all stages by family and rate; plain Gaussians of a stage joined into one."""
    found: dict[tuple[str, float], dict[float, list[int]]] = {}
    for stage, counts in enumerate(added):
        plain = {event: n for event, n in counts.items() if relations.unsampled(event)}
        if plain:
            z = _square(plain) ** -0.5
            found.setdefault(("poisson", 1.0), {}).setdefault(z, [0] * len(added))[stage] += 1
        for event, n in counts.items():
            if event not in plain:
                family = _family(event)
                z = relations.plain_multiplier(event) if family == "fixed" else event.noise_multiplier
                row = found.setdefault((family, event.rate), {}).setdefault(z, [0] * len(added))
                row[stage] += n
    directed = all(event.relation == "add-remove" for counts in added for event in counts)
    return [
        Group(family, rate, np.array(sorted(rows)), np.array([rows[z] for z in sorted(rows)]).T, directed)
        for (family, rate), rows in found.items()
    ]


def _family(event: Event) -> str:
    if event.sampling == "without-replacement":
        return "fixed"
    return "replace" if event.relation == "replace-one" else "poisson"


def _add(group: Group, frame: Frame, uppers: Sequence[Total], lowers: Sequence[Total]) -> None:
    """Adds a group's releases to the totals of each direction."""
    nodes, down, up = _nodes(group, frame)
    for begin, end, count in _chunks(group, nodes, frame):
        z, part = nodes[begin:end], slice(begin, end)
        family = "poisson" if group.family == "fixed" else group.family
        _, top = privacy_loss.support(family, group.rate, z, frame.log_tail)
        if group.family == "fixed":
            points, infinite = rounding.fixed_size(group.rate, z, frame.width, top)
            first = -(points.shape[1] // 2) * frame.width
            uppers[0].add(points, np.full(z.shape, first), down[:, part], infinite)
            continue
        cells = privacy_loss.cut(family, group.rate, z, _start(group, z, frame), frame.width, count).below(
            top
        )
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


def _start(group: Group, z: Array, frame: Frame) -> Array:
    low, _ = privacy_loss.support(group.family, group.rate, z, frame.log_tail)
    start = np.floor(low / frame.width) * frame.width
    if group.family == "poisson" and group.rate < 1:
        # Where the least loss is within reach, most of the loss may lie just above it.
        near = low < math.log1p(-group.rate) + _NEAR * frame.width
        start[near] = rounding.start_of(group.rate, z[near], frame.width)
    return start


def _chunks(group: Group, nodes: Array, frame: Frame) -> Iterator[tuple[int, int, int]]:
    """(begin, end, cells) of parts of the nodes, which are ascending: the first needs most cells."""
    family = "poisson" if group.family == "fixed" else group.family
    begin = 0
    while begin < len(nodes):
        low, high = privacy_loss.support(family, group.rate, nodes[begin : begin + 1], frame.log_tail)
        length = float(high[0]) if group.family == "fixed" else float(high[0] - low[0])
        count = math.ceil(length / frame.width) + _NEAR + 3
        end = min(len(nodes), begin + max(1, _CHUNK // count))
        yield begin, end, count
        begin = end


def _nodes(group: Group, frame: Frame) -> tuple[Array, Array, Array]:
    """Multipliers to transform, and the counts (stages, nodes) with the group's rounded down and up."""
    span = math.log(group.z[-1] / group.z[0])
    number = min(math.ceil(span / _JOIN), _NODES) + 1
    if len(group.z) <= number + 1:
        return group.z, group.counts, group.counts
    edges, density = _density(group, frame)
    share = np.append(0.0, np.cumsum(density) / density.sum())
    nodes = np.exp(np.interp(np.linspace(0.0, 1.0, number), share, edges))
    nodes[0], nodes[-1] = group.z[0], group.z[-1]
    below = np.searchsorted(nodes, group.z, side="right") - 1
    above = below + (nodes[below] < group.z)
    down, up = (np.zeros((len(group.counts), number), dtype=int) for _ in range(2))
    np.add.at(down.T, below, group.counts.T)
    np.add.at(up.T, above, group.counts.T)
    return nodes, down, up


def _density(group: Group, frame: Frame) -> tuple[Array, Array]:
    """(edges (k+1,) of cells in log z, how dense nodes should lie in each (k,)).

    Moving a multiplier by d log z moves the log moment at the tilt by w d log z, so with nodes of density n
    the whole error is the integral of w / n, which is least for n in proportion to sqrt(w).
    """
    edges = np.linspace(math.log(group.z[0]), math.log(group.z[-1]), _CELLS + 1)
    tilt = np.array([frame.removal.tilt])
    moments = privacy_loss.log_moments(group.family, group.rate, np.exp(edges), tilt, frame.log_tail)[:, 0]
    releases, _ = np.histogram(np.log(group.z), bins=edges, weights=group.counts.sum(axis=0))
    density = np.sqrt(np.maximum(moments[:-1] - moments[1:], 0.0) * releases)
    # The quadrature is rough, so no part goes without nodes.
    return edges, density + 0.1 * density.mean() + 1e-300
