"""The quicker SuperLink answers every call as Flower's own does."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import httpx
import pytest
from flwr.proto.fleet_pb2 import PullMessagesRequest, PullMessagesResponse
from flwr.proto.node_pb2 import Node
from flwr.supercore.primitives.asymmetric import generate_key_pairs, public_key_to_bytes
from flwr.supercore.protobuf.constants import PROTOBUF_MEDIA_TYPE
from flwr.supercore.protobuf.translation import PROTOBUF_REQUEST_TYPES
from flwr.superlink import main
from starlette.middleware import Middleware

from fedpriv.deployment import superlink
from fedpriv.deployment.held import NODE_ANSWERS, NODE_ASKS, SERVER_ASKS, SERVER_SENDS, HeldQuestions
from fedpriv.deployment.superlink import AROUND, ASKED, FLEET, RUNTIME, paths_around, shortened
from fedpriv.flower.flower_log import log_once
from fedpriv.flower.holding import HELD, HOLD

pytestmark = pytest.mark.filterwarnings("ignore:No path_separator found:DeprecationWarning")

STAY = {"BaseHTTPMiddleware", "ProtobufTranslationMiddleware"}  # the first translates errors


@pytest.fixture
def unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    """What :func:`superlink.quicken` changes is taken back after the test."""
    from flwr.server.superlink.linkstate.sql_linkstate import SqlLinkState
    from flwr.supercore.sql_mixin import SqlMixin

    logger = logging.getLogger("flwr")
    monkeypatch.setattr(main, "_get_middleware", main._get_middleware)
    monkeypatch.setattr(SqlMixin, "session", SqlMixin.session)
    monkeypatch.setattr(SqlLinkState, "start_session", SqlLinkState.start_session)
    monkeypatch.setattr(logger, "propagate", logger.propagate)
    level = logger.level
    yield
    logger.setLevel(level)


def names(middlewares: list[Middleware]) -> list[str]:
    return [getattr(found.cls, "__name__", "") for found in middlewares]


def test_flower_is_the_version_whose_names_are_used() -> None:
    assert version("flwr").startswith(f"{superlink.FLWR}."), "look at fedpriv/deployment/superlink.py"


def test_every_middleware_of_flower_is_known_by_its_name() -> None:
    """A new or renamed one is no error: all requests pass it. Somebody should look at it all the same."""
    assert set(names(main._get_middleware())) == {*AROUND, *STAY}
    assert set(ASKED) < set(AROUND)
    calls = {path for _, path in PROTOBUF_REQUEST_TYPES}
    assert {NODE_ASKS, NODE_ANSWERS, SERVER_ASKS, SERVER_SENDS} <= calls


def test_what_authenticates_nodes_and_reads_requests_stays() -> None:
    assert FLEET not in paths_around("NodeAuthMiddleware")
    for name in STAY:
        assert paths_around(name) == ()
    for name in AROUND:
        assert all(not "/v1/control/".startswith(path) for path in paths_around(name))


def test_events_and_traces_that_are_asked_for_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, variable in ASKED.items():
        assert paths_around(name) == (FLEET, RUNTIME)
        monkeypatch.setenv(variable, "1")
        assert len(paths_around(name)) == 1


class Client:
    """Requests to a SuperLink that authenticates its nodes.

    Attributes:
        state: the SuperLink's.
    """

    def __init__(self, app: Any) -> None:
        app.state.enable_supernode_auth = True
        self._app, self.state = app, app.state.linkstate_factory.state()

    def send(self, request: httpx.Request) -> httpx.Response:
        async def answer() -> httpx.Response:
            transport = httpx.ASGITransport(self._app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport) as client:
                return await client.post(request.url, content=request.content, headers=request.headers)

        return asyncio.run(answer())

    def post(self, path: str, content: bytes, headers: dict[str, str]) -> httpx.Response:
        return self.send(httpx.Request("POST", f"http://link{path}", content=content, headers=headers))


def client(folder: Path, quick: bool, monkeypatch: pytest.MonkeyPatch) -> Client:
    """Of a quick SuperLink, or of Flower's."""
    with monkeypatch.context() as patched:
        patched.setattr(main, "get_ee_linkstate_db", lambda: str(folder / f"{quick}.db"))
        if quick:
            superlink.quicken()
        return Client(main.create_app())


def test_every_call_is_answered_as_by_flower(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unchanged: None
) -> None:
    """Each call without credentials, as a request and as bytes that are none, and a path that is no call."""
    calls = [path for _, path in PROTOBUF_REQUEST_TYPES if "stream" not in path]
    flowers, ours = client(tmp_path, False, monkeypatch), client(tmp_path, True, monkeypatch)
    seen = set[int]()
    for path in [*calls, "/v1/fleet/none", "/v1/control/none", "/v1/fleet/../control/list-runs"]:
        for body in (b"", b"\xff\xff"):
            for kind in (PROTOBUF_MEDIA_TYPE, "text/plain"):
                headers = {"content-type": kind}
                theirs, own = (one.post(path, body, headers) for one in (flowers, ours))
                assert own.status_code == theirs.status_code, (path, body, own.text)
                assert own.content == theirs.content or own.status_code == 200, path
                seen.add(own.status_code)
    assert {200, 401, 404} < seen


def test_a_node_must_prove_its_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unchanged: None) -> None:
    from flwr.supercore.protobuf.client import ProtobufRequestContext
    from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

    made = client(tmp_path, True, monkeypatch)
    keys = [generate_key_pairs() for _ in range(2)]
    public = [public_key_to_bytes(key) for _, key in keys]
    node, _ = (made.state.create_node("a", "b", one, 30.0) for one in public)
    request = PullMessagesRequest(node=Node(node_id=node))
    headers = {"content-type": PROTOBUF_MEDIA_TYPE, HOLD: "0.01"}

    def asked(pair: Any) -> Any:
        unsigned = httpx.Request(
            "POST", f"http://link{NODE_ASKS}", content=request.SerializeToString(), headers=headers
        )
        context = ProtobufRequestContext("/flwr.proto.Fleet/PullMessages", request, unsigned)
        return NodeAuthHttpInterceptor(*pair).intercept(context, lambda one: made.send(one.request))

    own = asked(keys[0])
    assert (own.status_code, own.headers[HELD]) == (200, "1")
    assert not PullMessagesResponse.FromString(own.content).messages_list
    assert own.content == b""  # by which HeldQuestions knows that there was no message
    assert asked(keys[1]).status_code == 401


def test_the_questions_are_held_before_anything_else(unchanged: None) -> None:
    superlink.quicken()
    found = main._get_middleware()
    assert found[0].cls is HeldQuestions
    assert len(found) == 1 + len(AROUND) + len(STAY)
    assert names(shortened([Middleware(HeldQuestions)])) == ["HeldQuestions"]


def test_rows_of_uploads_that_never_end_are_removed(unchanged: None) -> None:
    from flwr.server.superlink.linkstate.sql_linkstate import SqlLinkState

    before = SqlLinkState.start_session
    superlink.quicken()
    assert SqlLinkState.start_session is not before


def test_transactions_of_threads_do_not_overlap_and_nest() -> None:
    open_now, most = 0, 0

    class Mixin:
        @contextmanager
        def session(self) -> Iterator[str]:
            nonlocal open_now, most
            open_now += 1
            most = max(most, open_now)
            pause.wait(0.01)
            try:
                yield "session"
            finally:
                open_now -= 1

    pause = threading.Event()
    superlink.one_transaction(Mixin)

    def work() -> None:
        for _ in range(5):
            with Mixin().session() as found:
                assert found == "session"

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert most == 1
    with Mixin().session(), Mixin().session():
        assert most == 2


def test_the_log_has_what_the_console_shows_once(unchanged: None, monkeypatch: pytest.MonkeyPatch) -> None:
    logger = logging.getLogger("flwr")
    [console] = logger.handlers
    monkeypatch.setattr(console, "level", logging.INFO)  # as it is at the start; other tests change it
    log_once()
    assert not logger.propagate
    assert not logger.isEnabledFor(logging.DEBUG)  # single requests, with their contents
    assert logger.isEnabledFor(logging.INFO)
    monkeypatch.setattr(console, "level", logging.DEBUG)  # FLWR_LOG_LEVEL=DEBUG
    log_once()
    assert logger.isEnabledFor(logging.DEBUG)
