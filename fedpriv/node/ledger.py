"""What a node that owns its data holds a server to: its own plan, and its own ledger beside its data.

A node makes the plan from the run's public configuration. Where it adds noise itself (placements local and
distributed, and the client level) it takes the noise from that plan, refuses asks that are not in it, answers
nothing twice, and charges its ledger, in one locked read and append, before it computes.

The configuration is what whoever started the run says: an owner who wants a bound of their own, over all runs
together, starts the node with ``epsilon-limit`` and ``delta-limit``. What would pass the limit is refused
then, as is every ask that leaves without this node's noise. A run that would pass it before its end is
refused before it begins, where that gives no draw away (:meth:`NodeLedger.look_ahead`). Who starts a run has
seen what earlier runs released, so adding their events up would not do: a privacy filter holds the limit, and
holds it for examples (or clients) added or removed, whichever neighbours the runs name
(:mod:`fedpriv.accounting.owner_limit`).

A node charges what its own message tells, to whoever sees it, by the noise that the node itself put into it
(:func:`answered`). What it cannot see it gives no credit for: the noise of other parties under distributed
noise, of whom there may be fewer than the run says, and sampling, since the server draws the cohorts. Only at
the client level a silo draws its own.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedpriv._internal import validation
from fedpriv.accounting import Budget, Ledger, epsilon
from fedpriv.accounting.events import Event, Sampling, tally
from fedpriv.accounting.ledger import Record, read
from fedpriv.accounting.methods.base import UnsupportedEvent
from fedpriv.accounting.owner_limit import share
from fedpriv.config.plan import Plan
from fedpriv.federated.engine import SumRequest
from fedpriv.mechanism.sampling import Everyone
from fedpriv.node.policy import RefusedError
from fedpriv.optimizers import PlannedRelease

_CLOSE = 1e-6  # how far two machines' calibrations of one plan may lie apart, relatively


def same_events(events: Sequence[Event], planned: Sequence[Event]) -> bool:
    """Whether these are the planned events, up to how exactly their noise was calibrated."""
    if len(events) != len(planned):
        return False
    pairs = list(zip(events, planned, strict=True))
    return all(
        math.isclose(event.noise_multiplier, own.noise_multiplier, rel_tol=_CLOSE)
        and replace(event, noise_multiplier=own.noise_multiplier) == own
        for event, own in pairs
    )


def held(plan: Plan, request: SumRequest) -> tuple[SumRequest, Event]:
    """The ask with the noise that the plan has this party add to it, and what answering costs.

    Raises RefusedError where the plan has no such release, or another noise for it.
    """
    query, mechanism = request.query, plan.mechanism
    if plan.by_silo or not mechanism.placement.at_parties:
        raise RefusedError("this run has no releases whose noise its parties add to what the server asks")
    wanted = (query.relative_noise, query.rate_factor)
    for planned in mechanism.planned:
        own = (planned.relative_noise, planned.rate_factor)
        if all(math.isclose(a, b, rel_tol=_CLOSE) for a, b in zip(wanted, own, strict=True)):
            break
    else:
        raise RefusedError("the plan has no release of this relative noise and cohort")
    multiplier = mechanism.scale * planned.relative_noise
    stds = mechanism.placement.resized(planned.rate_factor).party_stds(query.noise_stds(multiplier))
    assert stds is not None
    asked = request.party_stds or ()
    if len(asked) != len(stds) or not all(
        math.isclose(a, b, rel_tol=_CLOSE) for a, b in zip(asked, stds, strict=True)
    ):
        raise RefusedError("the ask names another noise than the plan has this party add")
    return replace(request, party_stds=stds), answered(plan, planned)


def answered(plan: Plan, planned: PlannedRelease) -> Event:
    """A planned release as the books of a node that answers it have it: on the node's own noise, unsampled.

    Sampling amplifies all releases together, those without the unit among them, of which a node that is a
    sampled unit knows nothing; and which examples of a silo a release is over, the server says.
    """
    mechanism, factor = plan.mechanism, planned.rate_factor
    own = mechanism.placement.resized(factor).party_stds((mechanism.scale * planned.relative_noise,))
    assert own is not None
    event = mechanism.event(own[0], factor)
    return replace(event, sampling=Sampling.NONE, rate=1.0, cohort=None, truncation=0.0)


def own_events(plan: Plan) -> tuple[Event, ...]:
    """What the whole run costs a node that answers in every release."""
    if plan.by_silo:
        return plan.events
    return tuple(answered(plan, planned) for planned in plan.mechanism.planned)


@dataclass(frozen=True)
class NodeLedger:
    """The ledger of one node's answers.

    Attributes:
        plan: of this run.
        path: of the ledger, which all runs on the node's data share.
        run: this run's id.
        limit: what all runs together may spend, or None.
    """

    plan: Plan
    path: Path
    run: int
    limit: Budget | None = None

    def charge(self, number: int, events: Sequence[Event]) -> None:
        """Record the events of round (or release) ``number``; returns once they are on disk.

        Raises RefusedError, and records nothing, where the number was charged before, or the events pass
        what the plan releases and the budget with it, or the owner's limit.
        """
        with _locked(self.path):
            ledger, record = _opened(self.path, {"unit": self.plan.config.unit})
            with ledger:
                self._check(number, events, record)
                ledger.record(events, run=str(self.run), round=number)

    def look_ahead(self) -> str:
        """What the owner's limit will refuse of a run that has yet to begin, for the node's own log, or "".

        Only where the node is asked in every release: else how often it will be is its draws'.

        Raises:
            RefusedError: instead, where that is public: the server then knows before the run that this node
                would drop out. A client's ledger has the draws of earlier runs, so that only what the
                run's own releases pass is public. Also where the ledger is of another unit.
            LedgerError: the ledger was edited.
        """
        if not self.path.exists():
            past: tuple[Event, ...] = ()
        else:
            with _locked(self.path):
                record = read(self.path)
            self._check_unit(record)
            if any(labels.get("run") == str(self.run) for labels in record.labels):
                return ""  # under way
            past = record.events
        silo = self.plan.config.unit == "example"
        if not silo and not isinstance(self.plan.mechanism.sampler, Everyone):
            return ""
        public = past if silo else ()
        said = self._too_little(public)
        if said:
            raise RefusedError(said)
        return self._too_little(past)

    def _too_little(self, past: Sequence[Event]) -> str:
        """How much of the run the limit has no room for after these events, or "" where it has."""
        if self.limit is None:
            return ""
        planned = own_events(self.plan)
        if self._within([*past, *planned]):
            return ""
        step, what = (self.plan.config.silo_steps, "round") if self.plan.by_silo else (1, "release")
        ends = range(step, len(planned) + 1, step)
        fit = bisect.bisect(ends, False, key=lambda end: not self._within([*past, *planned[:end]]))
        passing = planned[fit * step : (fit + 1) * step]
        return (
            f"{self._limit_said} has room for {fit} of the run's {len(ends)} {what}s: "
            f"{self._spent(past)} is spent, and the first that passes it costs {self._spent(passing)}; "
            "start a run of a smaller epsilon or fewer rounds, or raise the limit"
        )

    def _within(self, events: Sequence[Event]) -> bool:
        return self._share(events) <= 1

    def _spent(self, events: Sequence[Event]) -> str:
        taken = self._share(events)
        return "more than all of it" if math.isinf(taken) else f"{taken:.2%} of it"

    def _share(self, events: Sequence[Event]) -> float:
        """The part of the owner's limit that these events take."""
        assert self.limit is not None
        try:
            return share(self.limit, events)
        except UnsupportedEvent as error:
            raise RefusedError(f"this node's epsilon-limit cannot be held: {error}") from None

    @property
    def _limit_said(self) -> str:
        assert self.limit is not None
        return f"this node's epsilon-limit of {self.limit.epsilon:g} (delta-limit {self.limit.delta:g})"

    def _check_unit(self, record: Record) -> None:
        # Also without a limit: a later run may have one, and then adds up all that is here.
        if record.header.get("unit") != self.plan.config.unit:
            raise RefusedError(
                "the ledger is of another privacy unit than the run; give it a ledger-file of its own"
            )

    def _check(self, number: int, events: Sequence[Event], record: Record) -> None:
        own = [
            (labels.get("round"), event)
            for event, labels in zip(record.events, record.labels, strict=True)
            if labels.get("run") == str(self.run)  # a charge of no run is of an earlier one
        ]
        if any(charged == number for charged, _ in own):
            raise RefusedError(f"round {number} was answered before")
        self._check_unit(record)
        if not self._fits([*(event for _, event in own), *events]):
            raise RefusedError(f"round {number} would pass the run's budget")
        if self.limit is None:
            return
        if not self._within([*record.events, *events]):
            raise RefusedError(
                f"round {number} would pass {self._limit_said}: {self._spent(record.events)} "
                f"is spent, and the round costs {self._spent(events)}"
            )

    def _fits(self, events: Sequence[Event]) -> bool:
        """Whether a run of these events spends the plan's budget at most."""
        budget = self.plan.budget
        planned = tally(own_events(self.plan))
        if all(n <= planned.get(event, 0) for event, n in tally(events).items()):
            return True  # a part of what was calibrated to the budget
        return budget is not None and epsilon(events, budget.delta, budget.method).epsilon <= budget.epsilon


def open_node_ledger(plan: Plan, node: Mapping[str, Any], run: int) -> NodeLedger | None:
    """The books of a node that owns its data and adds its own noise, else None.

    Args:
        plan: the run's.
        node: the node's configuration: ``data-file``; ``ledger-file``, by default the data file's name and
            ``.ledger.jsonl``; and the owner's ``epsilon-limit`` and ``delta-limit``, both or neither.
        run: the run's id.

    Raises:
        ArgumentError: the limit is half given or out of range.
        RefusedError: there is a limit, and the run is one without noise of this node.
    """
    if not plan.config.nodes_own_data:
        return None
    limit = _limit(node)
    if plan.budget is None or not (plan.by_silo or plan.mechanism.placement.at_parties):
        if limit is not None:
            raise RefusedError("this node has an epsilon-limit, and the run no noise that it adds itself")
        return None
    path = Path(str(node.get("ledger-file") or f"{node['data-file']}.ledger.jsonl"))
    return NodeLedger(plan, path, run, limit)


def _limit(node: Mapping[str, Any]) -> Budget | None:
    given = [node.get(name) for name in ("epsilon-limit", "delta-limit")]
    if given == [None, None]:
        return None
    for name, value in zip(("epsilon-limit", "delta-limit"), given, strict=True):
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise validation.fail(name, value, "be a number", "give epsilon-limit and delta-limit together")
    return Budget(float(given[0]), float(given[1]))  # type: ignore[arg-type]


def _opened(path: Path, header: Mapping[str, Any]) -> tuple[Ledger, Record]:
    if not path.exists():
        Ledger.create(path, header).close()
    return Ledger.resume(path)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Nobody else reads and appends meanwhile, in this process or another."""
    import fcntl  # not on Windows

    with Path(f"{path}.lock").open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
