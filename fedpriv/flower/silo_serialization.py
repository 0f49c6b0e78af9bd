"""The wire format of training requests and model changes at the client level: Flower records without pickle.

A request has the records ``model`` (theta, ONE ArrayRecord shared by all messages of a round) and ``round``
(its number, the events that the server charged, and the requested silos). A reply has ``changes``, one array
per silo, and ``reply``, the round that was asked for. A node keeps the state of its silos in its own Context,
which does not leave the node, and a node that owns its data on its disk (:mod:`fedpriv.node.silo_state`).

>>> import torch
>>> request = TrainRequest(torch.zeros(3), 2, (Event(1.5, "none", "add-remove"),), (0, 4))
>>> back = read_training(training_content(model_record(request), request, (4,)))
>>> back.round, back.silos, back.events == request.events
(2, (4,), True)
>>> content = changes_content([ModelDelta(4, torch.ones(3).double())], back.round)
>>> read_changes(content, (4,), request)[0].delta.sum().item()
3.0
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import torch
from flwr.app import ArrayRecord, ConfigRecord, RecordDict

from fedpriv._internal.files import read_json
from fedpriv._internal.validation import ArgumentError
from fedpriv.accounting.events import Event
from fedpriv.flower.serialization import (
    MessageError,
    array_record,
    config_record,
    encode,
    read_vector,
    read_whole,
    require_current,
)
from fedpriv.node.silo import ModelDelta, TrainRequest
from fedpriv.node.silo_state import SiloState


def model_record(request: TrainRequest) -> ArrayRecord:
    """theta, which is equal for all nodes; encode it once per round."""
    return ArrayRecord({"params": encode(request.params)})


def training_content(model: ArrayRecord, request: TrainRequest, silos: Sequence[int]) -> RecordDict:
    """The content of one node's message, which requests the changes of the node's ``silos``."""
    fields: dict[str, Any] = {
        "round": request.round,
        "events": json.dumps([event.to_json() for event in request.events]),
        "silos": [int(silo) for silo in silos],
    }
    return RecordDict({"model": model, "round": ConfigRecord(fields)})


def read_training(content: RecordDict) -> TrainRequest:
    """The TrainRequest of a message. Raises MessageError if a record is missing or malformed."""
    params, fields = read_vector(array_record(content, "model"), "params"), config_record(content, "round")
    if params.ndim != 1:
        raise MessageError("a model must be one vector")
    try:
        number = read_whole(fields["round"])
        events = tuple(Event.from_json(table) for table in read_json(str(fields["events"])))
        silos = tuple(read_whole(silo) for silo in cast("list[Any]", fields["silos"]))
    except MessageError:
        raise
    except (KeyError, TypeError, ValueError, ArgumentError) as error:
        raise MessageError(f"a round cannot be read ({type(error).__name__})") from None
    return TrainRequest(params, number, events, silos)


def changes_content(changes: Iterable[ModelDelta], number: int) -> RecordDict:
    """The content of a node's reply to the request for round ``number``."""
    arrays = {str(change.silo): encode(change.delta) for change in changes}
    return RecordDict({"changes": ArrayRecord(arrays), "reply": ConfigRecord({"round": number})})


def read_changes(content: RecordDict, silos: Sequence[int], request: TrainRequest) -> tuple[ModelDelta, ...]:
    """The changes of exactly these silos, each of the shape of the request's ``params`` (d,).

    Raises MessageError if a change is missing, was not requested, or is not finite, or if the reply is to
    another round.
    """
    require_current(config_record(content, "reply"), "round", request.round)
    record = array_record(content, "changes")
    if set(record) != {str(silo) for silo in silos}:
        raise MessageError("a reply must have the change of each requested silo and no other")
    changes = []
    for silo in silos:
        delta = read_vector(record, str(silo))
        if delta.shape != request.params.shape or delta.dtype != torch.float64:
            raise MessageError("a change must be a vector of the model's length, in float64")
        if not bool(torch.isfinite(delta).all()):
            raise MessageError("a change is not finite")
        changes.append(ModelDelta(silo, delta))
    return tuple(changes)


def read_memories(state: RecordDict, silos: Iterable[int]) -> dict[int, SiloState]:
    """The state of these silos in the node's Context; silos without state are left out."""
    memories = {}
    for silo in silos:
        key = f"silo-{silo}"
        if key not in state:
            continue
        slots = None
        if f"{key}-slots" in state:
            record = array_record(state, f"{key}-slots")
            slots = {name: read_vector(record, name) for name in record}
        memories[silo] = SiloState(read_whole(config_record(state, key).get("round")), slots)
    return memories


def write_memories(state: RecordDict, memories: Mapping[int, SiloState]) -> None:
    """Writes the state of these silos into the node's Context."""
    for silo, memory in memories.items():
        state[f"silo-{silo}"] = ConfigRecord({"round": memory.round})
        if memory.slots is not None:
            arrays = {name: encode(tensor) for name, tensor in memory.slots.items()}
            state[f"silo-{silo}-slots"] = ArrayRecord(arrays)
