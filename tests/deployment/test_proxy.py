"""The fleet's proxy passes on the calls of nodes, and nothing else reaches the SuperLink."""

from __future__ import annotations

import contextlib
import http.client
import http.server
import json
import os
import resource
import socket
import socketserver
import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.signed_heads import signed

from fedpriv._internal import descriptors
from fedpriv.deployment import keys, proxy_limits
from fedpriv.deployment.folders import Party, read_server
from fedpriv.deployment.provision import Request, provision
from fedpriv.deployment.proxy import Proxy


def tls(party: Party) -> ssl.SSLContext:
    """That of a SuperLink."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(party.folder / "loopback.crt", party.folder / "loopback.key")
    return context


class Upstream(http.server.ThreadingHTTPServer):
    """A SuperLink's place: it notes what arrives, and answers with it."""

    daemon_threads = True

    def __init__(self, party: Party) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.socket = tls(party).wrap_socket(self.socket, server_side=True)
        self.arrived: list[tuple[str, bytes, dict[str, str]]] = []


class Handler(http.server.BaseHTTPRequestHandler):
    server: Upstream
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.arrived.append((self.path, body, dict(self.headers)))
        self.send_response(401 if body == b"stranger" else 200)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("x-answer", "yes")
        self.end_headers()
        self.wfile.write(body[::-1])

    do_GET = do_POST  # noqa: N815

    def log_message(self, format: str, *arguments: object) -> None:
        pass


class Serving:
    """The proxy and its upstream, each in a thread."""

    def __init__(self, folder: Path) -> None:
        provision(folder, Request(1))
        party = read_server(folder)
        self.party, self.key = party, folder / "node-0/node.key"
        mark = keys.fingerprint(keys.read_node_public(party.public_keys[0]))
        party.enrolment.write_text(json.dumps({"0": {"key": mark, "node-id": 101}}))
        self.upstream = Upstream(party)
        ports = {"port": 0, "control-port": self.upstream.server_address[1]}
        self.proxy = Proxy(Party(party.folder, {**party.facts, **ports}))
        self.port = int(self.proxy.server_address[1])
        self.context = ssl.create_default_context(cafile=str(party.roots))
        for server in (self.upstream, self.proxy):
            threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()

    def connection(self) -> http.client.HTTPSConnection:
        return http.client.HTTPSConnection("127.0.0.1", self.port, timeout=10, context=self.context)

    def raw(self, text: bytes) -> bytes:
        """What the proxy answers to these bytes."""
        with (
            socket.create_connection(("127.0.0.1", self.port), timeout=10) as plain,
            self.context.wrap_socket(plain, server_hostname="127.0.0.1") as secured,
        ):
            secured.sendall(text)
            return secured.recv(4096)

    def close(self) -> None:
        for server in (self.proxy, self.upstream):
            server.shutdown()
            server.server_close()


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    made = Serving(tmp_path_factory.mktemp("proxy") / "deployment")
    yield made
    made.close()


@pytest.fixture(autouse=True)
def _clean(serving: Serving) -> None:
    serving.upstream.arrived.clear()


def test_a_nodes_calls_pass_with_their_headers_and_bodies_over_one_connection(serving: Serving) -> None:
    connection = serving.connection()
    largest = b"x" * proxy_limits.FLEET[proxy_limits.PUSH_OBJECT]
    for call, body in (("pull-messages", b"hello"), ("push-object", largest), ("pull-messages", b"")):
        own = signed(serving.key)
        connection.request("POST", f"/v1/fleet/{call}", body, own)
        answer = connection.getresponse()
        assert (answer.status, answer.read(), answer.getheader("x-answer")) == (200, body[::-1], "yes")
        path, arrived, headers = serving.upstream.arrived[-1]
        assert (path, arrived) == (f"/v1/fleet/{call}", body)
        assert own.items() <= headers.items()
    connection.close()


def test_an_error_of_the_superlink_passes_back(serving: Serving) -> None:
    connection = serving.connection()
    connection.request("POST", "/v1/fleet/activate-node", b"stranger")
    assert connection.getresponse().status == 401
    connection.close()


@pytest.mark.parametrize(
    "path",
    [
        "/v1/control/start-run",
        "/v1/control/register-node",
        "/v1/runtime/pull-task",
        "/",
        "/v1/fleet",
        "/v1/fleet/",
        "/v1/fleet/../control/start-run",
        "/v1/fleet/..%2fcontrol%2fstart-run",
        "/v1/fleet//control/start-run",
        "/v1/fleet/pull-messages?x=/v1/control/start-run",
        "//v1/control/start-run",
        "https://127.0.0.1/v1/control/start-run",
        "/v1/fleet/pull-messages/../../control/start-run",
        "/v1/Fleet/pull-messages",
        "/docs",
        "/openapi.json",
    ],
)
@pytest.mark.parametrize("method", ["POST", "GET"])
def test_everything_else_is_forbidden(serving: Serving, method: str, path: str) -> None:
    connection = serving.connection()
    connection.request(method, path, b"")
    assert connection.getresponse().status == 403
    connection.close()
    assert not serving.upstream.arrived


@pytest.mark.parametrize("method", ["PUT", "DELETE", "OPTIONS", "CONNECT", "PATCH", "HEAD"])
def test_other_methods_do_not_pass(serving: Serving, method: str) -> None:
    answer = serving.raw(f"{method} /v1/fleet/get-run HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    assert answer.split()[1] == b"501"
    assert not serving.upstream.arrived


@pytest.mark.parametrize(
    "framing",
    [
        "Transfer-Encoding: chunked\r\nContent-Length: 0\r\n",
        "Transfer-Encoding: chunked\r\n",
        "Content-Length: 0\r\nContent-Length: 40\r\n",
        "Content-Length: +4\r\n",
        "Content-Length: -1\r\n",
        "",
    ],
)
def test_an_ambiguous_length_is_refused_so_that_no_second_request_hides_in_a_body(
    serving: Serving, framing: str
) -> None:
    hidden = "POST /v1/control/start-run HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n"
    text = f"POST /v1/fleet/get-run HTTP/1.1\r\nHost: x\r\n{framing}\r\n{hidden}"
    assert serving.raw(text.encode()).split()[1] == b"400"
    assert not serving.upstream.arrived


def test_a_request_without_tls_gets_nothing(serving: Serving) -> None:
    with socket.create_connection(("127.0.0.1", serving.port), timeout=10) as plain:
        plain.sendall(b"POST /v1/fleet/get-run HTTP/1.1\r\nContent-Length: 0\r\n\r\n")
        with contextlib.suppress(ConnectionResetError):
            assert not plain.recv(4096).startswith(b"HTTP")
    assert not serving.upstream.arrived


@pytest.mark.parametrize(
    ("call", "most"),
    [
        ("push-object", 6 * 2**20),
        ("push-messages", 2**20),
        *((call, 2**14) for call in ("pull-messages", "activate-node", "get-fab", "pull-object", "other")),
    ],
)
def test_a_request_larger_than_any_of_flowers_is_refused_before_it_is_read(
    serving: Serving, call: str, most: int
) -> None:
    for length in (most + 1, 2**40):
        text = f"POST /v1/fleet/{call} HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n"
        assert serving.raw(text.encode()).split()[1] == b"413"
    assert not serving.upstream.arrived


@pytest.mark.parametrize("lines", [1, 50])
def test_a_head_larger_than_any_of_flowers_is_refused(serving: Serving, lines: int) -> None:
    for size, status in ((10_000, b"200"), (20_000, b"431")):
        header = f"x: {'y' * (size // lines)}\r\n" * lines
        text = f"POST /v1/fleet/get-run HTTP/1.1\r\nContent-Length: 0\r\n{header}\r\n"
        assert serving.raw(text.encode()).split()[1] == status


def test_a_large_body_of_whoever_is_no_enrolled_node_is_refused_unread(serving: Serving) -> None:
    """So strangers cannot take the memory that is for nodes' bodies."""
    (serving.party.folder / "other.key").write_bytes(keys.make_node_key()[0])
    for fields in ({}, signed(serving.party.folder / "other.key")):
        for length, status in ((proxy_limits.SMALL, b""), (proxy_limits.SMALL + 1, b"401")):
            lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
            text = f"POST /v1/fleet/push-object HTTP/1.1\r\n{lines}Content-Length: {length}\r\n\r\n"
            with (
                socket.create_connection(("127.0.0.1", serving.port), timeout=10) as plain,
                serving.context.wrap_socket(plain, server_hostname="127.0.0.1") as stranger,
            ):
                stranger.sendall(text.encode())
                if not status:  # a small one is waited for
                    stranger.sendall(b"x" * length)
                    status = b"200"
                assert stranger.recv(4096).split()[1] == status
    assert [len(body) for _, body, _ in serving.upstream.arrived] == [proxy_limits.SMALL] * 2


def test_bodies_for_which_there_is_no_memory_are_refused_unread_until_there_is(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node asks again after a 503, and questions and heartbeats pass meanwhile."""
    monkeypatch.setattr(serving.proxy, "memory", proxy_limits.BodyMemory(30_000, wait=0.3))
    own = signed(serving.key)
    lines = "".join(f"{name}: {value}\r\n" for name, value in own.items())
    text = f"POST /v1/fleet/push-object HTTP/1.1\r\n{lines}Content-Length: 20000\r\n\r\n".encode()
    connection = serving.connection()
    with (
        socket.create_connection(("127.0.0.1", serving.port), timeout=10) as plain,
        serving.context.wrap_socket(plain, server_hostname="127.0.0.1") as half,
    ):
        half.sendall(text + b"x" * 10_000)
        time.sleep(0.2)
        assert serving.raw(text).split()[1] == b"503"
        connection.request("POST", "/v1/fleet/pull-messages", b"hello")
        assert connection.getresponse().read() == b"olleh"
        half.sendall(b"x" * 10_000)
        assert half.recv(4096).split()[1] == b"200"
    connection.request("POST", "/v1/fleet/push-object", b"x" * 20_000, own)
    assert connection.getresponse().status == 200
    connection.close()


def test_the_health_page_tells_the_time_and_nothing_else(serving: Serving) -> None:
    connection = serving.connection()
    connection.request("GET", "/health")
    answer = connection.getresponse()
    assert (answer.status, answer.read()) == (200, b"")
    assert {name.lower() for name, _ in answer.getheaders()} == {"date", "content-length", "connection"}
    connection.close()
    assert not serving.upstream.arrived


def test_a_superlink_that_is_gone_is_a_bad_gateway(serving: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        monkeypatch.setattr(serving.proxy, "upstream", free.getsockname())
        connection = serving.connection()
        connection.request("POST", "/v1/fleet/get-run", b"")
        assert connection.getresponse().status == 502
        connection.close()


@pytest.mark.parametrize("idle", [0.0, 0.5], ids=["on the kept connection", "on a new connection"])
def test_a_question_whose_node_is_gone_is_gone_for_the_superlink_too(serving: Serving, idle: float) -> None:
    """Else a question that the SuperLink holds would take a message that nobody gets.

    After some idle seconds the SuperLink closes its connection to the proxy, and the question opens another.
    """
    asked, closed = threading.Event(), threading.Event()

    class Holds(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            while (line := self.rfile.readline()) and not closed.is_set():
                while self.rfile.readline().strip():
                    pass
                if b"pull-messages" in line:
                    asked.set()
                    if self.rfile.read(2) == b"":
                        closed.set()
                    return
                self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
                if idle:
                    time.sleep(idle / 2)
                    return

    class Held(socketserver.ThreadingTCPServer):
        daemon_threads = True

        def get_request(self) -> tuple[socket.socket, object]:
            plain, address = super().get_request()
            return tls(serving.party).wrap_socket(plain, server_side=True), address

    with Held(("127.0.0.1", 0), Holds) as upstream:
        threading.Thread(target=upstream.serve_forever, args=(0.05,), daemon=True).start()
        own, serving.proxy.upstream = serving.proxy.upstream, ("127.0.0.1", upstream.server_address[1])
        try:
            connection = serving.connection()
            connection.request("POST", "/v1/fleet/activate-node", b"")
            assert connection.getresponse().read() == b""
            time.sleep(idle)
            connection.request("POST", "/v1/fleet/pull-messages", b"")
            assert asked.wait(10)
            assert not closed.wait(0.3)
            connection.close()
            assert closed.wait(2)
        finally:
            serving.proxy.upstream = own
            upstream.shutdown()


def test_a_question_passes_in_a_proxy_with_many_connections(serving: Serving) -> None:
    """select() fails for descriptors above 1,023; a proxy of 600 nodes has more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2048:
        pytest.skip("no process may have so many files here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (2048, hard))
    with contextlib.ExitStack() as taken:
        taken.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        for _ in range(1100):
            taken.callback(os.close, os.open(os.devnull, os.O_RDONLY))
        connection = serving.connection()
        connection.request("POST", "/v1/fleet/pull-messages", b"hello")
        answer = connection.getresponse()
        assert (answer.status, answer.read()) == (200, b"olleh")
        assert connection.sock.fileno() > 1023
        connection.close()


@pytest.fixture
def few_descriptors() -> Iterator[contextlib.ExitStack]:
    """Something that holds files, and a limit that is not far; both are taken back."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.ExitStack() as taken:
        taken.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        resource.setrlimit(resource.RLIMIT_NOFILE, (512, hard))
        yield taken


def test_a_connection_without_a_free_descriptor_waits_and_the_proxy_rests(
    serving: Serving,
    few_descriptors: contextlib.ExitStack,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    tried = list[float]()
    accept = Proxy.get_request
    monkeypatch.setattr(Proxy, "get_request", lambda self: (tried.append(time.monotonic()), accept(self))[1])
    plain = few_descriptors.enter_context(socket.socket())
    with contextlib.ExitStack() as files:
        with contextlib.suppress(OSError):
            while True:
                files.callback(os.close, os.open(os.devnull, os.O_RDONLY))
        plain.settimeout(10)
        plain.connect(("127.0.0.1", serving.port))
        time.sleep(1.2)
        assert 1 <= len(tried) <= 4
    with serving.context.wrap_socket(plain, server_hostname="127.0.0.1") as secured:
        secured.sendall(b"GET /health HTTP/1.1\r\n\r\n")
        assert secured.recv(4096).split()[1] == b"200"
    lines = [line for line in capfd.readouterr().out.splitlines() if "no connection" in line]
    assert lines == ["fedpriv: the proxy can take no connection now: Too many open files"]


def test_the_proxy_raises_its_limit_and_takes_as_many_connections_as_have_room(
    serving: Serving, few_descriptors: contextlib.ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    party = Party(serving.party.folder, {**serving.party.facts, "port": 0})
    if descriptors.allowed() > 512:
        with Proxy(party):
            assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == descriptors.allowed()
    monkeypatch.setattr(descriptors, "MOST", 70)
    with Proxy(party) as proxy:
        port = int(proxy.server_address[1])
        threading.Thread(target=proxy.serve_forever, args=(0.05,), daemon=True).start()
        peers = [few_descriptors.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in "1234"]
        peers[3].settimeout(10)
        assert peers[3].recv(1) == b""
        peers[2].settimeout(0.3)
        with pytest.raises(TimeoutError):
            peers[2].recv(1)
        proxy.shutdown()


def test_a_connection_that_gets_no_thread_leaves_its_room_to_others(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with Proxy(Party(serving.party.folder, {**serving.party.facts, "port": 0})) as proxy:
        before = proxy._room._value  # type: ignore[attr-defined]
        with monkeypatch.context() as patched, socket.create_connection(proxy.server_address[:2]) as plain:
            patched.setattr(threading.Thread, "start", start)
            proxy.handle_request()
            plain.settimeout(10)
            assert plain.recv(1) == b""
        assert proxy._room._value == before  # type: ignore[attr-defined]
