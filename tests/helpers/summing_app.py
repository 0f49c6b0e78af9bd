"""A ClientApp whose sums are known: each unit adds (its number + 1) at every coordinate, and misbehaves.

To an indicator's sum it adds the INDICATED part of that, which must be at most 1/2.

``misbehave`` in the run-config makes partition 0 misbehave: see ``answer``. In release FAILING it fails.
"""

import torch
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fedpriv.federated.engine import PartialSum
from fedpriv.flower.error_masking import guarded
from fedpriv.flower.serialization import read_request, reply_content
from fedpriv.mechanism.query import IndicatorBlock

app = ClientApp()

FAILING = 13
INDICATED = 2.0**-10


@app.query()  # type: ignore[untyped-decorator]
def place(message: Message, context: Context) -> Message:
    fields = {key: context.node_config[key] for key in ("partition-id", "num-partitions")}
    if context.run_config.get("misbehave") == "placeless":
        fields.pop("partition-id")
    if context.run_config.get("misbehave") == "twins":
        fields["partition-id"] = 0
    return Message(RecordDict({"node": ConfigRecord(fields)}), reply_to=message)


@app.train()  # type: ignore[untyped-decorator]
@guarded
def answer(message: Message, context: Context) -> Message:
    request, bad = read_request(message.content), context.run_config.get("misbehave", "")
    first = context.node_config["partition-id"] == 0
    if bad == "raise-all" or ((bad == "raise" or request.release == FAILING) and first):
        raise ZeroDivisionError("secret 0.25")
    total = float(sum((shard.ids + 1).sum() for shard in request.shards))
    parties = sum(shard.parties for shard in request.shards)
    point = request.query.points[0]
    if bad == "nan" and first:
        total = float("nan")
    if bad == "boast" and first:
        parties += 1
    if bad == "modest" and first:
        parties -= 1
    if bad == "long" and first:
        total += 1e30
    release = request.release - (bad == "stale" and first)
    sums = tuple(
        torch.tensor(INDICATED * total)
        if isinstance(block, IndicatorBlock)
        else torch.full_like(point, total)
        for block in request.query.blocks
    )
    return Message(reply_content(PartialSum(sums, parties), release), reply_to=message)
