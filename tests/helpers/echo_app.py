"""A ClientApp for the grids' tests: doubles, fails, dies or sleeps on request."""

import os
import time

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fedpriv.flower.error_masking import guarded

app = ClientApp()
not_an_app = object()
SECRET = "value 0.123456789"


@app.query()  # type: ignore[untyped-decorator]
def place(message: Message, context: Context) -> Message:
    fields = {
        "partition-id": context.node_config["partition-id"],
        "num-partitions": context.node_config["num-partitions"],
        "lesson": context.run_config.get("lesson", ""),
        "pid": os.getpid(),
        "threads": torch.get_num_threads(),
    }
    return Message(RecordDict({"node": ConfigRecord(fields)}), reply_to=message)


@app.train()  # type: ignore[untyped-decorator]
def double(message: Message, context: Context) -> Message:
    arrays = message.content["points"].to_numpy_ndarrays()
    return Message(RecordDict({"points": ArrayRecord([2 * values for values in arrays])}), reply_to=message)


@app.train("fail")  # type: ignore[untyped-decorator]
@guarded
def fail(message: Message, context: Context) -> Message:
    raise ZeroDivisionError(SECRET)


@app.train("unguarded")  # type: ignore[untyped-decorator]
def unguarded(message: Message, context: Context) -> Message:
    raise ZeroDivisionError(SECRET)


@app.train("die")  # type: ignore[untyped-decorator]
def die(message: Message, context: Context) -> Message:
    if context.node_config["partition-id"] == 0:
        os._exit(1)
    return Message(RecordDict(), reply_to=message)


@app.train("sleep")  # type: ignore[untyped-decorator]
def sleep(message: Message, context: Context) -> Message:
    if context.node_config["partition-id"] == 0:
        time.sleep(1.0)
    return Message(RecordDict(), reply_to=message)
