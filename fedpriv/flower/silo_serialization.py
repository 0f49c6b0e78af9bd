"""What silos that train by themselves are asked and answer, as Flower records, without pickle.

What travels to a node is ``model`` (theta, ONE ArrayRecord shared by all messages of a round) and ``round``
(its number, the events that the server charged, and which of the node's silos are asked). What comes back is
``changes``, one array a silo. A node remembers its silos in its own Context, which stays with it.

>>> import torch
>>> request = TrainRequest(torch.zeros(3), 2, (Event(1.5, "none", "add-remove"),), (0, 4))
>>> back = read_training(training_content(model_record(request), request, (4,)))
>>> back.round, back.silos, back.events == request.events
(2, (4,), True)
>>> content = changes_content([ModelDelta(4, torch.ones(3).double())])
>>> read_changes(content, (4,), request.params)[0].delta.sum().item()
3.0
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import torch
from flwr.app import ArrayRecord, ConfigRecord, RecordDict
from torch import Tensor

from fedpriv._internal.validation import ArgumentError
from fedpriv.accounting.events import Event
from fedpriv.flower.serialization import (
    MessageError,
    array_record,
    config_record,
    encode,
    read_vector,
    read_whole,
)
from fedpriv.node.silo import ModelDelta, SiloState, TrainRequest


def model_record(request: TrainRequest) -> ArrayRecord:
    """theta, which every node gets alike: encode it once a round."""
    return ArrayRecord({"params": encode(request.params)})


def training_content(model: ArrayRecord, request: TrainRequest, silos: Sequence[int]) -> RecordDict:
    """The content of one node's message: the round as it asks the node's ``silos``."""
    fields: dict[str, Any] = {
        "round": request.round,
        "events": json.dumps([event.to_json() for event in request.events]),
        "silos": [int(silo) for silo in silos],
    }
    return RecordDict({"model": model, "round": ConfigRecord(fields)})


def read_training(content: RecordDict) -> TrainRequest:
    """The ask as a node reads it. Raises MessageError where a record is missing or malformed."""
    params, fields = read_vector(array_record(content, "model"), "params"), config_record(content, "round")
    if params.ndim != 1:
        raise MessageError("a model must be one vector")
    try:
        number = read_whole(fields["round"])
        events = tuple(Event.from_json(table) for table in json.loads(str(fields["events"])))
        silos = tuple(read_whole(silo) for silo in cast("list[Any]", fields["silos"]))
    except MessageError:
        raise
    except (KeyError, TypeError, ValueError, ArgumentError) as error:
        raise MessageError(f"a round cannot be read ({type(error).__name__})") from None
    return TrainRequest(params, number, events, silos)


def changes_content(changes: Iterable[ModelDelta]) -> RecordDict:
    """The content of a node's reply."""
    arrays = {str(change.silo): encode(change.delta) for change in changes}
    return RecordDict({"changes": ArrayRecord(arrays)})


def read_changes(content: RecordDict, silos: Sequence[int], params: Tensor) -> tuple[ModelDelta, ...]:
    """The changes of exactly these silos, each of the shape of ``params`` (d,).

    Raises MessageError where one is missing, nobody asked for it, or it is not finite.
    """
    record = array_record(content, "changes")
    if set(record) != {str(silo) for silo in silos}:
        raise MessageError("a reply must hold the change of each silo that was asked, and no other")
    changes = []
    for silo in silos:
        delta = read_vector(record, str(silo))
        if delta.shape != params.shape or delta.dtype != torch.float64:
            raise MessageError("a change must be a vector of the model's length, in float64")
        if not bool(torch.isfinite(delta).all()):
            raise MessageError("a change is not finite")
        changes.append(ModelDelta(silo, delta))
    return tuple(changes)


def read_memories(state: RecordDict, silos: Iterable[int]) -> dict[int, SiloState]:
    """What the node's Context remembers of these silos."""
    memories = {}
    for silo in silos:
        place = f"silo-{silo}"
        if place not in state:
            continue
        slots = None
        if f"{place}-slots" in state:
            record = array_record(state, f"{place}-slots")
            slots = {name: read_vector(record, name) for name in record}
        memories[silo] = SiloState(read_whole(config_record(state, place)["round"]), slots)
    return memories


def write_memories(state: RecordDict, memories: Mapping[int, SiloState]) -> None:
    """Have the node's Context remember these silos."""
    for silo, memory in memories.items():
        state[f"silo-{silo}"] = ConfigRecord({"round": memory.round})
        if memory.slots is not None:
            arrays = {name: encode(tensor) for name, tensor in memory.slots.items()}
            state[f"silo-{silo}-slots"] = ArrayRecord(arrays)
