"""Masks a node's errors: the server receives only the exception's type, which cannot contain data.

Flower sends the text of an exception to the server, and such a text can quote values. Therefore the functions
of the ClientApp are wrapped in :func:`guarded`, which replies with the type's name only. The full traceback
goes to the node's own log at level DEBUG. If the node owns its data (or has unknown settings, perhaps
misspelt), its log also gets the type at level WARNING, with the text if it is one of fedpriv's errors, which
contain no data. In a simulation the node's log is the run's log, where the names of failed nodes are private.
The reason why a node is not ready is always logged, since all nodes are asked to describe themselves.

Only code in the same process can request the exception itself, with :func:`raising` (the grids of simulations
do this, to show a user where the user's own code failed). No message and no configuration can.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from flwr.app import Context, Error, Message, MessageType
from flwr.common.constant import ErrorCode

from fedpriv._internal.user_code import UserCodeError
from fedpriv._internal.validation import ArgumentError
from fedpriv.accounting import LedgerError, UnsupportedEvent
from fedpriv.data import DataError
from fedpriv.flower.serialization import MessageError
from fedpriv.node.policy import RefusedError, misspelt, owns_data

Answerer = Callable[[Message, Context], Message]

_OURS = (ArgumentError, DataError, LedgerError, MessageError, RefusedError, UnsupportedEvent)

_log = logging.getLogger(__name__)
_raise: ContextVar[bool] = ContextVar("fedpriv-raise", default=False)


def error_reply(message: Message, error: BaseException, crashed: bool = False) -> Message:
    """The reply to ``message`` that names the type of ``error``; ``crashed`` marks a dead worker."""
    code = ErrorCode.CLIENT_APP_CRASHED if crashed else ErrorCode.CLIENT_APP_RAISED_EXCEPTION
    return Message(Error(code, type(error).__name__), reply_to=message)


def public_text(error: BaseException) -> str:
    """The text of one of fedpriv's errors, which contain no data; "" for any other."""
    return str(error) if isinstance(error, _OURS) and not isinstance(error, UserCodeError) else ""


def guarded(function: Answerer) -> Answerer:
    """``function`` whose exceptions become error replies without their text."""

    @functools.wraps(function)
    def answer(message: Message, context: Context) -> Message:
        try:
            return function(message, context)
        except Exception as error:
            if _raise.get():
                raise
            of_all = message.metadata.message_type == MessageType.QUERY
            if of_all or owns_data(context.node_config) or misspelt(context.node_config):
                text = public_text(error)
                _log.warning(
                    "%s failed with %s%s",
                    function.__name__,
                    type(error).__name__,
                    f": {text}" if text else "",
                )
            _log.debug("%s failed", function.__name__, exc_info=True)
            return error_reply(message, error)

    return answer


@contextmanager
def raising() -> Iterator[None]:
    """Within this block and thread, guarded functions raise their exceptions."""
    token = _raise.set(True)
    try:
        yield
    finally:
        _raise.reset(token)
