"""The ClientApp of :mod:`fedpriv.flower.client_app` with replies that contain timings.

It is used only by ``fedpriv bench``, since the time of a cohort reveals its size, which can be private.
"""

from __future__ import annotations

import dataclasses
import functools

from flwr.app import ConfigRecord, Context, Message
from flwr.app.user_config import UserConfigValue
from flwr.clientapp import ClientApp

from fedpriv._internal.timing import Stopwatch, Timed
from fedpriv.federated.worker import Worker
from fedpriv.flower.client_app import describe_node
from fedpriv.flower.error_masking import guarded
from fedpriv.flower.serialization import read_request, reply_content
from fedpriv.node.factory import make_worker

TIMES = "times"  # the reply's record: seconds by part

app = ClientApp()
app.query()(describe_node)


@app.train()  # type: ignore[untyped-decorator]
@guarded
def answer(message: Message, context: Context) -> Message:
    """The bounded sum, with seconds: ``node`` for all, ``answer`` for a part, ``data`` for a part of that."""
    side, watch = _timed_side(tuple(sorted(context.run_config.items())))
    with watch.time("node"):
        request = read_request(message.content)
        with watch.time("answer"):
            reply = side.answer(request)
        content = reply_content(reply, request.release)
    content[TIMES] = ConfigRecord(dict(watch.take()))
    return Message(content, reply_to=message)


@functools.lru_cache(maxsize=4)
def _timed_side(run_config: tuple[tuple[str, UserConfigValue], ...]) -> tuple[Worker, Stopwatch]:
    side, watch = make_worker(dict(run_config)), Stopwatch()
    view = Timed(side.view, watch, {"batch": "data"})
    return dataclasses.replace(side, view=view), watch
