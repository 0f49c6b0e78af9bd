"""What the adversary of an audit sees, and what the run claims against it.

| view | the adversary sees | the claim |
|---|---|---|
| ``models`` | the noisy answer of every release | the report's against who sees the models |
| ``last-model`` | the last model alone | the same, which is more than it needs |
| ``server`` | every message of every party, and who sent it | the report's against the server |
| ``parties`` | every answer, and the messages of the parties that collude | the same |

With secure aggregation ``server`` stands for PROTOCOL: every message of the protocol, and the sums alone.

Under local noise the budget is about the server, which is then the usual view.

>>> [view.value for view in View]
['models', 'last-model', 'server', 'parties', 'protocol']
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np

from fedpriv._internal import validation
from fedpriv.accounting.events import Event
from fedpriv.config.plan import Plan
from fedpriv.config.schema import Config
from fedpriv.federated.engine import Shard
from fedpriv.mechanism.placement import PLACEMENTS, AtParties
from fedpriv.report.adversaries import message_events, observer_events

AUTO = "auto"


class View(Enum):
    """What an adversary sees."""

    MODELS = "models"
    LAST_MODEL = "last-model"
    SERVER = "server"
    PARTIES = "parties"
    PROTOCOL = "protocol"

    @property
    def sees(self) -> str:
        """The adversary in words."""
        return _SEES[self]


_SEES = {
    View.MODELS: "who sees the released models",
    View.LAST_MODEL: "who sees the last model alone",
    View.SERVER: "the server, which sees each message",
    View.PARTIES: "colluding parties, who see the released models and know their own messages",
    View.PROTOCOL: "the server of secure aggregation, which sees every message of the protocol and the sums",
}


def view_of(config: Config, name: str) -> View:
    """The view that ``name`` asks for; AUTO is the view that the run's budget limits.

    Raises ArgumentError for a view of which the run claims nothing.
    """
    placement = PLACEMENTS[config.placement]
    if name == AUTO:
        return View.SERVER if placement.server_view else View.MODELS
    views = {view.value: view for view in View if view is not View.PROTOCOL}
    if name not in views:
        raise validation.fail("view", name, f"be one of {', '.join([AUTO, *views])}")
    view = views[name]
    if config.by_silo and view is not View.MODELS:
        hint = "each noisy answer inside a silo is audited, which is more than anyone outside it sees"
        raise validation.fail("view", name, "be models with level client", hint)
    if view is View.SERVER and not placement.at_parties:
        hint = "this server sees exact sums, and nothing is claimed against it"
        raise validation.fail("view", name, f"be models with placement {config.placement}", hint)
    if view is View.SERVER and config.aggregates_securely:
        return View.PROTOCOL
    colluders = config.colluding_parties if placement.at_parties and not placement.server_view else 0
    if view is View.PARTIES and not colluders:
        hint = "only shares of noise that parties know depend on them"
        raise validation.fail(
            "view", name, "be another one unless placement is distributed and parties collude", hint
        )
    return view


def claimed(view: View, plan: Plan, events: Sequence[Event]) -> Sequence[Event]:
    """The events that the run claims against this view, given the charged ``events``."""
    by_server = plan.max_participations is not None  # the budget is about the server
    if view in (View.SERVER, View.PROTOCOL):
        return plan.of_worst_client(events) if by_server else message_events(plan, events)
    return observer_events(plan, events) if by_server else events


@dataclass(frozen=True)
class Splitter:
    """Splits shards so that the messages that an adversary knows are computed by themselves.

    Attributes:
        view: what the adversary sees.
        silos: whether the parties are silos; otherwise they are clients.
        known: the number of colluding parties, which are the first ones.
    """

    view: View = View.MODELS
    silos: bool = False
    known: int = 0

    @classmethod
    def of(cls, view: View, plan: Plan) -> Splitter:
        """The splitter of a plan's releases."""
        placement = plan.mechanism.placement
        colluders = placement.colluders if isinstance(placement, AtParties) else 0
        return cls(view, plan.config.privacy_unit.in_silos, colluders if view is View.PARTIES else 0)

    @property
    def splits(self) -> bool:
        """Whether any message is computed by itself."""
        return self.view in (View.SERVER, View.PARTIES)

    def knows(self, shard: Shard) -> bool:
        """Whether the shard is a message of a colluding party."""
        party = shard.home if self.silos else (shard.ids[0] if len(shard.ids) else None)
        return party is not None and int(party) < self.known

    def split(self, shards: Sequence[Shard]) -> list[Shard]:
        """The same parties, in shards of one wherever the adversary knows the message."""
        if self.silos:
            return list(shards)
        pieces: list[tuple[np.ndarray, int]] = []
        for shard in shards:
            alone = shard.ids if self.view is View.SERVER else shard.ids[shard.ids < self.known]
            pieces += [(alone[i : i + 1], 1) for i in range(len(alone))]
            rest = shard.parties - len(alone)
            if rest and self.view is View.SERVER:
                pieces += [(alone[:0], 1)] * rest  # parties above their cap, which send noise alone
            elif rest:
                pieces.append((shard.ids[shard.ids >= self.known], rest))
        return [Shard(index, ids, parties) for index, (ids, parties) in enumerate(pieces)]
