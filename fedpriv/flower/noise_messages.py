"""What PrivateStrategy and private_mod say to each other: the records of a train message and of its reply.

A train message has what the app's clients are sent anyway, the model first of all, and records whose names
begin with ``fedpriv-``. They are the run's public settings, the query without its first point (which is the
model), and for a query of two points the second model. The app never sees them. A reply has one bounded,
noisy sum for each block of the query, and a record which says with what noise.

Seeded runs also send a client's place in its cohort, by which the parties of a simulation tell their streams
of noise apart. Otherwise a message says nothing of the other clients.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from fedpriv._internal.files import read_json
from fedpriv.config.schema import Config
from fedpriv.federated.engine import PartialSum, Shard, SumRequest
from fedpriv.flower.app_arrays import AppArrays
from fedpriv.flower.serialization import (
    MessageError,
    config_record,
    only_record,
    query_fields,
    read_query,
    read_reply,
    read_whole,
    reply_content,
)
from fedpriv.node.own_events import TOLERANCE

PREFIX = "fedpriv-"
_RUN, _QUERY, _DIVISORS = f"{PREFIX}run", f"{PREFIX}query", f"{PREFIX}divisors"
_SECOND, _NOISE = f"{PREFIX}second-point", f"{PREFIX}noise"


class NotNoisedError(MessageError):
    """A reply does not say that private_mod added the noise that was asked for."""


@dataclass(frozen=True)
class NoiseRequest:
    """A train message as private_mod reads it.

    Attributes:
        settings: the run's public settings, by key.
        arrays: the layout of the model that was sent.
        models: the app's arrays at each point of the query.
        request: the query at these points, with one shard, this client.
        model_name: the name of the model's record.
        others: what else the app is sent.
    """

    settings: dict[str, Any]
    arrays: AppArrays
    models: tuple[ArrayRecord, ...]
    request: SumRequest
    model_name: str
    others: Mapping[str, Any]

    def for_app(self, point: int) -> RecordDict:
        """What the app is sent at a point: the strategy's message without fedpriv's records."""
        copies = {
            name: ConfigRecord(dict(record)) if isinstance(record, ConfigRecord) else record
            for name, record in self.others.items()
        }
        return RecordDict({self.model_name: self.models[point], **copies})


def noise_records(
    request: SumRequest, config: Config, frozen: Sequence[str], models: Sequence[ArrayRecord]
) -> dict[str, ArrayRecord | ConfigRecord]:
    """fedpriv's records of the train messages of a release; ``models`` are the app's arrays at its points."""
    arrays: dict[str, Array] = {}
    query = ConfigRecord(query_fields(request, arrays))
    run = ConfigRecord({"settings": json.dumps(config.table()), "frozen": list(frozen)})
    records: dict[str, ArrayRecord | ConfigRecord] = {_RUN: run, _QUERY: query}
    records |= {_DIVISORS: ArrayRecord(arrays)} if arrays else {}
    return records | ({_SECOND: models[1]} if len(models) > 1 else {})


def for_client(content: RecordDict, shard: Shard, seeded: bool) -> RecordDict:
    """The content of one client's message; with a seed it also has the client's place in the cohort."""
    if not seeded:
        return content
    query = ConfigRecord({**content[_QUERY], "shard": shard.index})
    return RecordDict({**content, _QUERY: query})


def asks_for_noise(content: RecordDict) -> bool:
    """Whether a message comes from a PrivateStrategy that has its clients add noise."""
    return _RUN in content and _QUERY in content


def read_noise_request(content: RecordDict) -> NoiseRequest:
    """The request of a train message. Raises MessageError if it is malformed."""
    own = {name: content[name] for name in content if name.startswith(PREFIX)}
    others = {name: content[name] for name in content if name not in own}
    name, sent = only_record(others)
    run, query = config_record(content, _RUN), config_record(content, _QUERY)
    second, divisors = own.get(_SECOND), own.get(_DIVISORS, ArrayRecord())
    if not isinstance(second, ArrayRecord | None) or not isinstance(divisors, ArrayRecord):
        raise MessageError("a model or divisor of a request must be an ArrayRecord")
    frozen = run.get("frozen")
    if not isinstance(frozen, list) or not all(isinstance(name, str) for name in frozen):
        raise MessageError("a request's 'frozen' must be a list of names")
    del others[name]
    models = (sent, *(() if second is None else (second,)))
    arrays = AppArrays(models[0], [str(name) for name in frozen])
    if any(dict(_shapes(model)) != dict(_shapes(models[0])) for model in models):
        raise MessageError("the models of a request must have the same arrays")
    shard = Shard(read_whole(query.get("shard", 0)), np.zeros(1, np.int64), parties=1)
    points = tuple(arrays.vector(model) for model in models)
    request = read_query(query, points, divisors, (shard,))
    return NoiseRequest(_settings(run), arrays, models, request, name, others)


def noisy_reply(message: Message, request: SumRequest, sums: PartialSum) -> Message:
    """The reply with these sums, which have the noise that ``request`` names."""
    assert request.party_stds is not None
    said = ConfigRecord({"party-stds": list(request.party_stds)})
    return Message(RecordDict({**reply_content(sums, request.release), _NOISE: said}), reply_to=message)


def read_noisy_reply(content: RecordDict, request: SumRequest) -> PartialSum:
    """A client's bounded, noisy sums. The request has the shard of this client alone.

    Raises NotNoisedError if the reply does not say that it has the noise of ``request``, and MessageError if
    it is malformed in another way.
    """
    said, asked = content.get(_NOISE), request.party_stds or ()
    stds = said.get("party-stds") if isinstance(said, ConfigRecord) else None
    if not isinstance(said, ConfigRecord) or not isinstance(stds, list):
        raise NotNoisedError("a client's reply has no noise of its own; use ClientApp(mods=[private_mod])")
    same = len(stds) == len(asked) and all(
        isinstance(one, float) and math.isclose(one, std, rel_tol=TOLERANCE)
        for one, std in zip(stds, asked, strict=True)
    )
    if not same:
        raise NotNoisedError("a client's reply has other noise than it was asked for")
    return read_reply(content, request)


def _settings(run: ConfigRecord) -> dict[str, Any]:
    try:
        settings = read_json(str(run.get("settings")))
    except ValueError:
        settings = None
    if not isinstance(settings, dict):
        raise MessageError("a request's settings must be a table in JSON")
    return settings


def _shapes(model: ArrayRecord) -> list[tuple[str, tuple[tuple[int, ...], str]]]:
    return [(name, (tuple(array.shape), array.dtype)) for name, array in model.items()]
