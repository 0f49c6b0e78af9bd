"""Questions that the SuperLink of a deployment may hold until there is something to answer.

Flower's SuperLink answers at once whether a message is there, so that whoever waits for one asks again and
again. Each question costs it some 15 ms of its one core. The SuperLink that `fedpriv deploy` starts holds a
question that says how long it may be held (:mod:`fedpriv.deployment.held`). Any other SuperLink ignores the
header, and is asked as before.
"""

from __future__ import annotations

import httpx
from flwr.supercore.protobuf.client import ProtobufClient

HOLD = "fedpriv-hold"  # header of a question: the most seconds that it may be held
REPLIES = "fedpriv-replies"  # header of a ServerApp's question: it is held until it has so many replies
QUESTION = "/pull-messages"  # the end of the paths of these questions
HELD = "fedpriv-held"  # header of an answer whose question would have been held: this SuperLink holds


class Holding:
    """Marks the questions for messages of one client of Flower's, and notes whether they are held.

    Args:
        client: Flower's client of the Fleet or the Runtime API.

    Attributes:
        seconds: how long the next questions may be held; 0: not at all.
        replies: see :data:`REPLIES`; 0 in questions of nodes.
        holds: whether the SuperLink that answered last holds questions.
    """

    def __init__(self, client: ProtobufClient) -> None:
        self.seconds, self.replies, self.holds = 0.0, 0, False
        hooks = client._client.event_hooks
        client._client.event_hooks = {
            "request": [*hooks["request"], self._mark],
            "response": [*hooks["response"], self._note],
        }

    @classmethod
    def of(cls, client: object) -> Holding | None:
        """The same; None for a client that speaks to no SuperLink over HTTP."""
        return cls(client) if isinstance(client, ProtobufClient) else None

    def _mark(self, request: httpx.Request) -> None:
        if self.seconds > 0 and request.url.path.endswith(QUESTION):
            request.headers[HOLD] = f"{self.seconds:.3f}"
            if self.replies:
                request.headers[REPLIES] = str(self.replies)

    def _note(self, response: httpx.Response) -> None:
        if response.request.url.path.endswith(QUESTION):
            self.holds = HELD in response.headers
