"""What a deployment's SuperLink does otherwise than Flower's, so that a round takes less of its one core.

Nothing of what Flower's code answers or refuses changes. :func:`quicken` does five things before the
SuperLink starts in this process:

- Requests pass only the middlewares that look at them. Flower 1.41 leads every request through nine, of which
  most serve operators alone, and look only at paths below ``/v1/control/``. Each costs a group of tasks and
  two streams all the same. Requests of nodes (``/v1/fleet/``) and of a run's server (``/v1/runtime/``) go
  around those that would hand them on as they are. All other paths go through all of them.
- Questions for messages are held until there is one (:mod:`fedpriv.deployment.held`).
- Threads wait for each other's transactions at a lock. SQLite has one writer at a time, and whoever finds its
  file taken sleeps for some milliseconds, tries again, and sleeps longer.
- Rows of uploads that never end are removed (:mod:`fedpriv.deployment.leftovers`).
- The log is written once, and without Flower's records of single requests, whose details do not belong there.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from starlette.middleware import Middleware
from starlette.types import ASGIApp, Receive, Scope, Send

from fedpriv.deployment.held import HeldQuestions
from fedpriv.deployment.leftovers import removed_in_passing
from fedpriv.flower.flower_log import log_once

FLWR = "1.41"  # whose names are used here; tests/deployment/test_superlink.py holds them

FLEET, RUNTIME = "/v1/fleet/", "/v1/runtime/"
# {name of a middleware: the paths that it hands on as they are}
AROUND = {
    "ControlSensitiveResponseMiddleware": (FLEET, RUNTIME),
    "ControlAuthenticationMiddleware": (FLEET, RUNTIME),
    "ControlLicenseMiddleware": (FLEET, RUNTIME),
    "ControlEventLogMiddleware": (FLEET, RUNTIME),
    "RuntimeTracingMiddleware": (FLEET,),
    "NodeAuthMiddleware": (RUNTIME,),
    "FleetEventLogMiddleware": (RUNTIME,),
}
# The same, for both, unless the environment has this variable at 1.
ASKED = {
    "RuntimeTracingMiddleware": "FLWR_TRACING_ENABLED",
    "FleetEventLogMiddleware": "FLWR_ENABLE_EVENT_LOG",
}


class GoneAround:
    """An ASGI app in which the requests for some paths go around a middleware.

    Args:
        app: what the middleware leads to.
        middleware: makes the middleware, given ``app``.
        paths: beginnings of the paths that go around.
    """

    def __init__(self, app: ASGIApp, middleware: Callable[[ASGIApp], ASGIApp], paths: Sequence[str]) -> None:
        self._app, self._within, self._paths = app, middleware(app), tuple(paths)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles one request. Its route is found by the same path."""
        around = scope["type"] == "http" and scope["path"].startswith(self._paths)
        await (self._app if around else self._within)(scope, receive, send)


def paths_around(name: str) -> tuple[str, ...]:
    """Beginnings of the paths whose requests the middleware of this name hands on as they are.

    >>> paths_around("NodeAuthMiddleware")
    ('/v1/runtime/',)
    >>> paths_around("ProtobufTranslationMiddleware")
    ()
    """
    if name in ASKED and os.environ.get(ASKED[name]) != "1":
        return (FLEET, RUNTIME)
    return AROUND.get(name, ())


def shortened(middlewares: Sequence[Middleware]) -> list[Middleware]:
    """The middlewares, each left out for the requests that it does not look at."""
    made = list[Middleware]()
    for found in middlewares:
        paths = paths_around(getattr(found.cls, "__name__", ""))
        if not paths:
            made.append(found)
            continue

        def within(app: ASGIApp, found: Any = found) -> ASGIApp:
            return found.cls(app, *found.args, **found.kwargs)  # type: ignore[no-any-return]

        made.append(Middleware(GoneAround, within, paths))
    return made


def one_transaction(mixin: Any) -> None:
    """Has the threads of this process open transactions of this class of Flower's one by one."""
    lock, session = threading.RLock(), mixin.session  # a transaction may open others of the same thread

    @contextmanager
    def alone(self: Any) -> Iterator[Any]:
        with lock, session(self) as found:
            yield found

    mixin.session = alone


def quicken() -> None:
    """Changes Flower's code in this process as the module says, before its SuperLink starts here."""
    from flwr.server.superlink.linkstate.sql_linkstate import SqlLinkState
    from flwr.supercore.sql_mixin import SqlMixin
    from flwr.superlink import main

    log_once()
    one_transaction(SqlMixin)
    removed_in_passing(SqlLinkState)
    flowers = main._get_middleware
    main._get_middleware = lambda: [Middleware(HeldQuestions), *shortened(flowers())]
