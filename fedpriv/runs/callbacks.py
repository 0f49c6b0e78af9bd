"""Callbacks: a user's own code that follows a run. It is given public values only.

>>> class Printing(Callback):
...     def on_evaluation(self, record):
...         print(record["round"], "accuracy" in record)
>>> from fedpriv.simulation.api import simulate
>>> few = {"model": "logistic", "clients": 500, "sampling_rate": 0.1, "rounds": 2, "engine": "in-process"}
>>> result = simulate(few, callbacks=[Printing()])
2 True
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from fedpriv._internal import user_code, validation
from fedpriv.runs.result import Result
from fedpriv.runs.status import Status

_LOG = logging.getLogger(__name__)


class Callback:
    """Follows a run. A subclass defines those methods that it needs.

    All values are public: settings, epsilons, scores on the public test set and released models. They are
    what the run's own files hold. A release is charged before it is made, and a record is on disk before a
    callback sees it. An error in a callback is logged with its traceback; the callback is not called again,
    the run goes on, and the result's notes name the error. KeyboardInterrupt ends the run after its round, as
    Ctrl-C does: a run that is ended because of its scores costs its whole budget.
    """

    def on_round(self, status: Status) -> None:
        """A round has ended.

        Args:
            status: the round, the epsilon spent by now, and the last score.
        """

    def on_evaluation(self, record: Mapping[str, Any]) -> None:
        """The model was scored.

        Args:
            record: the line of metrics.jsonl: round, releases, scores on the public test set, epsilon.
        """

    def on_end(self, result: Result) -> None:
        """The run has ended, was interrupted or failed; its files are written.

        Args:
            result: report, metrics, model, configuration and how the run stopped.
        """


class GuardedCallbacks:
    """Calls callbacks so that an error in one of them neither ends the run nor reaches the others.

    Attributes:
        notes: the errors so far, in sentences.
    """

    def __init__(self, callbacks: Callback | Sequence[Callback] = ()) -> None:
        given = callbacks if isinstance(callbacks, Sequence) else [callbacks]
        self._callbacks = [_checked(callback) for callback in given]
        self.notes: list[str] = []

    def on_round(self, status: Status) -> None:
        """As :meth:`Callback.on_round`, of all callbacks."""
        self._call("on_round", lambda callback: callback.on_round(status))

    def on_evaluation(self, record: Mapping[str, Any]) -> None:
        """As :meth:`Callback.on_evaluation`, of all callbacks; each gets a copy that it cannot change."""
        self._call("on_evaluation", lambda callback: callback.on_evaluation(_copied(record)))

    def on_end(self, result: Result) -> None:
        """As :meth:`Callback.on_end`, of all callbacks."""
        self._call("on_end", lambda callback: callback.on_end(result))

    def _call(self, method: str, call: Callable[[Callback], None]) -> None:
        for callback in list(self._callbacks):
            try:
                call(callback)
            except Exception as error:
                self._callbacks.remove(callback)
                name = f"{type(callback).__name__}.{method}"
                self.notes.append(
                    f"callback {name} failed and was not called again: {user_code.described(error)}"
                )
                _LOG.warning(
                    "callback %s failed; the run goes on without it\n%s", name, user_code.trace(error)
                )


def _copied(record: Mapping[str, Any]) -> Mapping[str, Any]:
    """A copy of a record that cannot be changed."""
    return MappingProxyType(copy.deepcopy(dict(record)))


def _checked(callback: Callback) -> Callback:
    """The callback. Raises ArgumentError for what is none, before the run begins."""
    if not isinstance(callback, Callback):
        hint = "subclass fedpriv.Callback"
        allowed = "be fedpriv.Callback objects in a list"
        raise validation.fail("callbacks", callback, allowed, hint)
    return callback
