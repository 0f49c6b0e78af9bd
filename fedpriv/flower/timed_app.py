"""The ClientApp of :mod:`fedpriv.flower.client_app`, whose replies say where their time went.

It is for ``fedpriv bench`` alone: how long a cohort takes is private.
"""

from __future__ import annotations

import dataclasses
import functools

from flwr.app import ConfigRecord, Context, Message
from flwr.app.user_config import UserConfigValue
from flwr.clientapp import ClientApp

from fedpriv._internal.timing import Stopwatch, Timed
from fedpriv.federated.worker import Worker
from fedpriv.flower.client_app import place
from fedpriv.flower.error_masking import guarded
from fedpriv.flower.serialization import read_ask, reply_content
from fedpriv.node.factory import make_worker

TIMES = "times"  # the reply's record: seconds by part

app = ClientApp()
app.query()(place)


@app.train()  # type: ignore[untyped-decorator]
@guarded
def answer(message: Message, context: Context) -> Message:
    """The bounded sum, and the seconds of ``data``, of the ``answer`` it is part of, and of the ``node``."""
    side, watch = _timed_side(tuple(sorted(context.run_config.items())))
    with watch.time("node"):
        request = read_ask(message.content)
        with watch.time("answer"):
            reply = side.answer(request)
        content = reply_content(reply)
    content[TIMES] = ConfigRecord(dict(watch.take()))
    return Message(content, reply_to=message)


@functools.lru_cache(maxsize=4)
def _timed_side(run_config: tuple[tuple[str, UserConfigValue], ...]) -> tuple[Worker, Stopwatch]:
    side, watch = make_worker(dict(run_config)), Stopwatch()
    view = Timed(side.view, watch, {"batch": "data"})
    return dataclasses.replace(side, view=view), watch
