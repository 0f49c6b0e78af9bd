"""The checks of a node that owns its data: its own plan, and its own ledger beside its data.

A node makes the plan from the run's public configuration. If it adds noise itself (placements local and
distributed, and the client level), it takes the noise from that plan, refuses requests that are not in the
plan, answers no request twice, and charges its ledger before it computes, in one locked read and append.

The configuration comes from whoever starts the run. An owner who wants a bound over all runs starts the node
with ``epsilon-limit`` and ``delta-limit``. Then the node refuses every request that would exceed the limit,
and every request that it would answer without its own noise. A run that would exceed the limit before its end
is refused before it begins, if that reveals no private draw (:meth:`NodeLedger.look_ahead`). Whoever starts a
run has seen the results of earlier runs, so ordinary composition is not valid here. A privacy filter enforces
the limit, for one example (or client) added or removed, whichever relation the runs name
(:mod:`fedpriv.accounting.owner_limit`).

What a node charges for an answer is in :mod:`fedpriv.node.own_events`.

A run in which the server adds the noise is answered without a ledger, or, where the owner says so
(``accept-central``), charged whole before its first answer: all releases that the run's configuration plans,
with the noise and the sampling that it states. This charge rests on the server's word, and its label says so
(:data:`ON_WORD`). It is whole because a release without this node's examples counts too.

The ledger's head may have a copy in another folder (``ledger-anchor``). Then a ledger that was deleted, cut
or put back to an earlier state together with its head is refused.
"""

from __future__ import annotations

import bisect
import math
import os
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from fedpriv._internal import validation
from fedpriv._internal.files import sync_folder
from fedpriv.accounting import Budget, LedgerError, epsilon
from fedpriv.accounting.events import Event, tally
from fedpriv.accounting.head import Head, head_path
from fedpriv.accounting.ledger import Record, require_not_deleted
from fedpriv.accounting.methods.base import UnsupportedEvent
from fedpriv.accounting.owner_limit import share
from fedpriv.accounting.record import require_reaches
from fedpriv.config.plan import Plan
from fedpriv.mechanism.sampling import Everyone
from fedpriv.node.ledger_file import (
    answered_file,
    content,
    locked,
    on_disk,
    opened,
    read_answered,
    write_answered,
)
from fedpriv.node.own_events import adds_noise, own_events, same_events
from fedpriv.node.paths import ledger_path
from fedpriv.node.policy import RefusedError

_SERVERS = "the server's record of this node"
ON_WORD = "on the server's word"  # the label of charges for noise that the node did not add itself

_TRIAL_BYTES = 2**12  # more than a charge writes


class _Charges:
    """The charges of one run, found in a ledger as it grows.

    Attributes:
        events: the charged events, in order.
        counts: {event: how often it was charged}.
        rounds: the rounds, or releases, that were charged.
    """

    def __init__(self, run: str) -> None:
        self._run = run
        self._begin()

    def _begin(self) -> None:
        self.events, self.counts, self.rounds = list[Event](), Counter[Event](), set[Any]()
        self._seen = Head(0, "")

    def of(self, record: Record) -> _Charges:
        """These, with all that the record has. Charges without a run belong to an earlier run."""
        if self._seen.length > len(record.events) or record.links[self._seen.length] != self._seen.link:
            self._begin()  # it is another ledger than before
        more = range(self._seen.length, len(record.events))
        own = [number for number in more if record.labels[number].get("run") == self._run]
        found = [record.events[number] for number in own]
        self.events += found
        self.counts.update(tally(found))
        self.rounds.update(record.labels[number].get("round") for number in own)
        self._seen = record.head
        return self


@dataclass(frozen=True)
class NodeLedger:
    """The ledger of one node's answers.

    Attributes:
        plan: the plan of this run.
        path: the ledger's path; all runs on the node's data share the ledger.
        run: the id of this run.
        limit: the owner's limit for all runs together, or None.
        min_noise_multiplier: the least noise multiplier of a release that the owner allows; 0 allows all.
        anchor: a file in another folder that keeps the ledger's head, or None.
        colluders: how many other nodes the owner takes to work with the server (:func:`answered`).
        continued: whether the run goes on under a new number of Flower's. Then ``run`` is the first one's.
    """

    plan: Plan
    path: Path
    run: int
    limit: Budget | None = None
    min_noise_multiplier: float = 0.0
    anchor: Path | None = None
    colluders: int = 0
    continued: bool = False

    def charge(self, number: int, events: Sequence[Event], since: Head | None = None) -> Head:
        """Records the events of round (or release) ``number`` and returns, once they are on disk, where the
        ledger ends. ``since`` is where it has ended before, as the state of the node's silo says.

        Raises RefusedError, and records nothing, if the number was charged before, or if the events exceed
        both the plan and its budget, or the owner's limit, or have less noise than the owner allows. Raises
        LedgerError, and records nothing, if the ledger was edited, cut, put back to an earlier state (also
        one that does not reach ``since``), or deleted while its head was kept. Raises LedgerError also if the
        disk refuses the charge, which may then be there or not; nothing is answered.
        """
        with on_disk(self.path), locked(self.path):
            ledger, record = opened(self.path, self.plan.config.unit, self.anchor)
            with ledger:
                self._require_reaches(record, since)
                self._check(number, events, record)
                ledger.record(events, run=str(self.run), round=number)
                return ledger.head

    def charge_run(self, number: int) -> None:
        """Charges the whole run before its first answer, on the server's word; ``number`` is the release.

        A file beside the ledger keeps the number of the next release of each such run that may be answered,
        since the charge does not tell what was answered.

        Raises RefusedError, and records nothing, if the run has no such release, if it or a later one was
        answered before, or if the run exceeds the owner's limit or has less noise than the owner allows;
        LedgerError as :meth:`charge` does.
        """
        events = self._planned
        if not 0 <= number < len(events):
            raise RefusedError(f"release {number} is not in the plan of {len(events)} releases")
        with on_disk(self.path), locked(self.path):
            after = answered_file(self.path)
            following = read_answered(after)
            ledger, record = opened(self.path, self.plan.config.unit, self.anchor)
            with ledger:
                self._check_unit(record)
                charged = self._charges.of(record).events
                if charged and str(self.run) not in following:
                    raise RefusedError(f"{after} does not tell what this run was answered; restore a copy")
                if number < following.get(str(self.run), 0):
                    raise RefusedError(f"release {number}, or a later one, was answered before")
                if not same_events(charged, events[: len(charged)]):
                    raise RefusedError("this run was charged before with another plan")
                rest = events[len(charged) :]  # a crash while it was charged leaves a part
                if rest:
                    self._check_owner("the run", rest, record)
                write_answered(after, {**following, str(self.run): number + 1})
                if rest:
                    ledger.record(rest, run=str(self.run), rests=ON_WORD)

    def head(self, since: Head | None) -> Head | None:
        """Where the ledger ends now, for the server to keep; None if that is private, or there is no ledger.

        A client's ledger is private: its length tells in how many releases the client took part.

        Args:
            since: where it ended when the server last asked, or None.

        Raises LedgerError unless the ledger reaches ``since``.
        """
        if not self.plan.config.privacy_unit.in_silos:
            return None
        if not self.path.exists():
            if since is not None:
                raise LedgerError(
                    f"{self.path} is missing, and {_SERVERS} says that it had {since.length} events: "
                    "restore the ledger from a copy"
                )
            return None
        with locked(self.path):
            record = content(self.path, self.anchor)
        if since is not None:
            require_reaches(record, since, self.path, _SERVERS)
        return record.head

    def has_begun(self) -> bool:
        """Whether the ledger has a charge of this run."""
        if not self.path.exists():
            return False
        with locked(self.path):
            return bool(self._charges.of(content(self.path, self.anchor)).events)

    def differs(self) -> str:
        """How the charges of this run, which has ended, differ from its plan's; "" if they do not.

        Raises LedgerError as :meth:`charge` does.
        """
        with locked(self.path):
            charged = self._charges.of(content(self.path, self.anchor)).events
        if same_events(charged, self._planned):
            return ""
        made, due = len(charged), len(self._planned)
        if made != due:
            return f"{self.path} charged {made} of the {due} releases that the node answered"
        return f"{self.path} charged other events than the releases that the node answered"

    @cached_property
    def _charges(self) -> _Charges:
        return _Charges(str(self.run))

    @cached_property
    def _planned(self) -> tuple[Event, ...]:
        return own_events(self.plan, self.colluders)

    @cached_property
    def _planned_counts(self) -> dict[Event, int]:
        return tally(self._planned)

    def _require_reaches(self, record: Record, since: Head | None) -> None:
        if since is not None:
            require_reaches(record, since, self.path, "the state of this node's silo")

    def look_ahead(self, since: Head | None = None) -> str:
        """A warning for the node's own log if the owner's limit will stop a run that has not begun, or "".

        It applies only if the node takes part in every release; otherwise the number of its releases depends
        on private draws.

        Raises:
            RefusedError: instead of the warning, if it reveals nothing private. Then the server knows before
                the run that this node would drop out. A client's ledger reveals the draws of earlier runs, so
                for a client only the run's own releases are compared with the limit. It is also raised if the
                ledger is for another privacy unit.
            LedgerError: if the ledger was edited, cut or deleted, does not reach ``since`` (:meth:`charge`),
                or cannot be written. A node that cannot charge answers nothing, and the run would train on
                noise in its place.
        """
        with on_disk(self.path):
            self._require_writable()
            return self._look_ahead(since)

    def _require_writable(self) -> None:
        """Raises OSError unless a charge could be put on disk now. Charges nothing."""
        for path in (self.path, head_path(self.path), self.anchor):
            if path is not None and path.exists():
                with path.open("ab") as file:
                    os.fsync(file.fileno())
        folder = self.path.parent
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(_TRIAL_BYTES))
            file.flush()
            os.fsync(file.fileno())
        sync_folder(folder)

    def _look_ahead(self, since: Head | None) -> str:
        if not self.path.exists():
            require_not_deleted(self.path, self.anchor)
            if since is not None:
                raise LedgerError(
                    f"{self.path} is missing, and the state of this node's silo says that it had "
                    f"{since.length} events: restore the ledger from a copy"
                )
            past: tuple[Event, ...] = ()
        else:
            with locked(self.path):
                record = content(self.path, self.anchor)
            self._require_reaches(record, since)
            self._check_unit(record)
            if self._charges.of(record).events:
                return ""  # the run has begun
            past = record.events
        silo = self.plan.config.privacy_unit.in_silos
        private = adds_noise(self.plan) and not isinstance(self.plan.mechanism.sampler, Everyone)
        if not silo and private:
            return ""
        public = past if silo else ()
        reason = self._shortage(public)
        if reason:
            raise RefusedError(reason)
        return self._shortage(past)

    def _shortage(self, past: Sequence[Event]) -> str:
        """Why the limit does not suffice for the run after these events, or "" if it does."""
        if self.limit is None:
            return ""
        planned = self._planned
        if self._within([*past, *planned]):
            return ""
        step, what = (self.plan.config.silo_steps, "round") if self.plan.by_silo else (1, "release")
        ends = range(step, len(planned) + 1, step)
        fit = bisect.bisect(ends, False, key=lambda end: not self._within([*past, *planned[:end]]))
        passing = planned[fit * step : (fit + 1) * step]
        return (
            f"{self._limit_text} suffices for {fit} of the run's {len(ends)} {what}s: "
            f"{self._spent(past)} is spent, and the first {what} that exceeds it costs "
            f"{self._spent(passing)}; start a run with a smaller epsilon or fewer rounds, or raise the limit"
        )

    def _within(self, events: Sequence[Event]) -> bool:
        return self._share(events) <= 1

    def _spent(self, events: Sequence[Event]) -> str:
        taken = self._share(events)
        return "more than all of it" if math.isinf(taken) else f"{taken:.2%} of it"

    def _share(self, events: Sequence[Event]) -> float:
        """The share of the owner's limit that these events use."""
        assert self.limit is not None
        try:
            return share(self.limit, events)
        except UnsupportedEvent as error:
            raise RefusedError(f"this node's epsilon-limit cannot be enforced: {error}") from None

    @property
    def _limit_text(self) -> str:
        assert self.limit is not None
        return f"this node's epsilon-limit of {self.limit.epsilon:g} (delta-limit {self.limit.delta:g})"

    def _check_unit(self, record: Record) -> None:
        # Checked also without a limit, since a later run may have one and then adds up all recorded events.
        if record.header.get("unit") != self.plan.config.unit:
            raise RefusedError(
                "the ledger's privacy unit differs from the run's; set another ledger-file for this run"
            )

    def _check(self, number: int, events: Sequence[Event], record: Record) -> None:
        own = self._charges.of(record)
        if number in own.rounds:
            raise RefusedError(f"round {number} was answered before")
        self._check_unit(record)
        if not self._fits(own, events):
            raise RefusedError(f"round {number} would exceed the run's budget")
        self._check_owner(f"round {number}", events, record)

    def _check_owner(self, what: str, events: Sequence[Event], record: Record) -> None:
        """Raises RefusedError if the owner's limits do not allow these events after those of the record."""
        least = min((event.noise_multiplier for event in events), default=math.inf)
        if least < self.min_noise_multiplier:
            raise RefusedError(
                f"{what} has a noise multiplier of {least:.4g}, below this node's "
                f"min-noise-multiplier of {self.min_noise_multiplier:g}"
            )
        if self.limit is not None and not self._within([*record.events, *events]):
            raise RefusedError(
                f"{what} would exceed {self._limit_text}: {self._spent(record.events)} is spent, and "
                f"{'it' if what == 'the run' else 'the round'} costs {self._spent(events)}"
            )

    def _fits(self, charged: _Charges, more: Sequence[Event]) -> bool:
        """Whether a run with these events and more spends at most the plan's budget."""
        budget, own, planned = self.plan.budget, self._planned, self._planned_counts
        if all(n <= planned.get(event, 0) for event, n in (charged.counts + Counter(tally(more))).items()):
            return True  # a part of the planned events, which were calibrated to the budget
        if budget is None:
            return False
        most = budget.epsilon
        if self.continued:  # releases that the server lost are made again; in all no more than was planned
            most = max(most, epsilon(own, budget.delta, budget.method).epsilon)
        return epsilon([*charged.events, *more], budget.delta, budget.method).epsilon <= most


def open_node_ledger(plan: Plan, node: Mapping[str, Any], run: int) -> NodeLedger | None:
    """The ledger of a node that owns its data, if it adds its own noise or counts the server's, else None.

    Args:
        plan: the run's plan.
        node: the node's configuration: ``data-file``; ``ledger-file``, by default the data file's name plus
            ``.ledger.jsonl``; the owner's ``epsilon-limit`` and ``delta-limit``, both or neither;
            ``min-noise-multiplier``; and ``colluding-peers``.
        run: the run's id.

    Raises:
        ArgumentError: if only one of the two limits is given, or one is out of range.
        RefusedError: if there is a limit but this node adds no noise in the run.
    """
    if not plan.config.nodes_own_data:
        return None
    limit = _limit(node)
    least = validation.non_negative("min-noise-multiplier", node.get("min-noise-multiplier", 0.0))
    counted = node.get("accept-central") is True and plan.budget is not None
    if not adds_noise(plan) and not counted:
        name = "an epsilon-limit" if limit is not None else "a min-noise-multiplier" if least else None
        if name is not None:
            raise RefusedError(f"this node has {name}, but it adds no noise itself in this run")
        return None
    name = node.get("ledger-anchor")
    anchor = Path(str(name)) if name else None
    colluders = validation.integer("colluding-peers", node.get("colluding-peers", 1))
    first = plan.config.continues
    path, number = ledger_path(node), int(first) if first else run
    return NodeLedger(plan, path, number, limit, least, anchor, colluders, bool(first))


def _limit(node: Mapping[str, Any]) -> Budget | None:
    given = [node.get(name) for name in ("epsilon-limit", "delta-limit")]
    if given == [None, None]:
        return None
    for name, value in zip(("epsilon-limit", "delta-limit"), given, strict=True):
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise validation.fail(name, value, "be a number", "give epsilon-limit and delta-limit together")
    return Budget(float(given[0]), float(given[1]))  # type: ignore[arg-type]
