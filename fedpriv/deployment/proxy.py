"""The fleet's proxy: TLS at the address of the nodes, and behind it only the calls that nodes make.

Flower's SuperLink serves nodes (``/v1/fleet/``), whoever starts runs (``/v1/control/``) and its own processes
(``/v1/runtime/``) at one port. The SuperLink therefore listens on loopback, and the proxy passes on requests
for the fleet's calls, which Flower authenticates by the node's key. Everything else gets 403. A request is
read completely and written anew, so that no part of it can be taken for a second request.
"""

from __future__ import annotations

import errno
import http.client
import http.server
import math
import re
import select
import socket
import ssl
import threading
import time
from collections.abc import Mapping
from email.message import Message
from http import HTTPStatus
from io import BufferedIOBase
from typing import Any, ClassVar, cast

from fedpriv._internal import descriptors, validation
from fedpriv.deployment import node_proof, proxy_limits
from fedpriv.deployment.folders import Party

_CALL = re.compile(r"/v1/fleet/[a-z][a-z-]{0,63}")
_QUESTION = "/v1/fleet/pull-messages"  # the SuperLink may hold it (fedpriv/deployment/held.py)
_PART = 2**16  # bytes of an answer that is passed on part by part
_PATIENCE = 120.0  # seconds without a byte until a connection is closed
_UPSTREAM_PATIENCE = 300.0  # seconds for the SuperLink's answer
# Errors of a connection that waits, and that this process or machine has no room for.
_NO_ROOM = frozenset([errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM])
_REST = 0.5  # seconds until it is looked at again
_SAID_EACH = 60.0  # seconds between two lines about it
# Headers that concern one connection and are not passed on.
_OWN = frozenset(
    [
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "te",
        "trailer",
        "trailers",
        "transfer-encoding",
        "upgrade",
        "host",
        "content-length",
        "expect",
    ]
)


class PeerGoneError(Exception):
    """The peer has closed its connection while it waited for an answer."""


class Proxy(http.server.ThreadingHTTPServer):
    """The proxy of a deployment's server. ``serve_forever`` runs it; ``server_address`` is where.

    It raises the limit of this process's open files, on which the number of connections depends.
    Raises OSError if the port is taken, or a file of the certificate cannot be read.
    """

    daemon_threads = True
    request_queue_size = 256
    port_fact = "port"  # the fact of party.toml with its port
    calls = _CALL  # the paths that are passed on
    large: ClassVar[Mapping[str, int]] = proxy_limits.FLEET  # {path: bytes of its body}, if they may be many

    def __init__(self, server: Party) -> None:
        self.tls = server_tls(server)
        self.upstream_tls = _upstream_tls(server)
        self.upstream = ("127.0.0.1", int(server.facts["control-port"]))
        self._room = threading.BoundedSemaphore(proxy_limits.connections(server, descriptors.raise_limit()))
        self.memory, self._enrolment = proxy_limits.BodyMemory(), server.enrolment
        self._said = -math.inf  # when it was last said that there is no room
        listen = str(server.facts["listen"])
        self.address_family = socket.AF_INET6 if ":" in listen else socket.AF_INET
        super().__init__((listen, int(server.facts[self.port_fact])), self.handler())

    def handler(self) -> type[Handler]:
        """What answers the requests of a connection."""
        return Handler

    def secured(self, request: socket.socket) -> ssl.SSLSocket:
        """The connection after its TLS handshake. Raises OSError or ValueError if that fails."""
        return self.tls.wrap_socket(request, server_side=True)

    def knows(self, headers: Message) -> bool:
        """Whether the sender of a request with these headers may send a large body."""
        return node_proof.proven(self._enrolment, headers)

    def get_request(self) -> tuple[Any, Any]:
        """As the base class; rests while there is no room for the connection, which waits meanwhile."""
        try:
            return super().get_request()
        except OSError as error:
            if error.errno in _NO_ROOM:
                if time.monotonic() - self._said >= _SAID_EACH:
                    self._said = time.monotonic()
                    print(f"fedpriv: the proxy can take no connection now: {error.strerror}", flush=True)
                time.sleep(_REST)
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        """As the base class; a connection beyond the limit is closed at once."""
        if not self._room.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # the system allows no further thread; the base class closes the connection
            self._room.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """The TLS handshake and the requests of one connection, in a thread of its own."""
        try:
            request.settimeout(_PATIENCE)
            try:
                secured = self.secured(request)
            except (OSError, ValueError):
                self.shutdown_request(request)
                return
            super().process_request_thread(secured, client_address)
        finally:
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A connection that broke is the peer's affair."""


def _upstream_tls(server: Party) -> ssl.SSLContext:
    """TLS to the SuperLink, on the server's loopback."""
    tls = ssl.create_default_context(cafile=str(server.loopback_roots))
    # With TLS 1.3, tickets for later sessions come after the handshake, and a new connection would look as if
    # an answer had begun (:meth:`Handler._watch`). With TLS 1.2 they are part of the handshake: the first
    # bytes after it are those of an answer, or of the connection's end.
    tls.maximum_version = ssl.TLSVersion.TLSv1_2
    return tls


def server_tls(server: Party) -> ssl.SSLContext:
    """TLS with the certificate of the deployment's server. Raises OSError if its files cannot be read."""
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.minimum_version = ssl.TLSVersion.TLSv1_2
    tls.load_cert_chain(server.path("certificate"), server.path("certificate-key"))
    return tls


class Handler(http.server.BaseHTTPRequestHandler):
    """Requests of one connection, passed on over one connection to the SuperLink."""

    server: Proxy
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "fedpriv", ""
    timeout: ClassVar[float] = _PATIENCE
    disable_nagle_algorithm = True

    def setup(self) -> None:
        super().setup()
        self._upstream: http.client.HTTPSConnection | None = None

    def finish(self) -> None:
        super().finish()
        if self._upstream is not None:
            self._upstream.close()

    def parse_request(self) -> bool:
        """As the base class, of a head that is not too large."""
        whole = self.rfile
        self.rfile = cast(BufferedIOBase, proxy_limits.Head(whole))
        try:
            return super().parse_request()
        finally:
            self.rfile = whole

    def do_GET(self) -> None:
        """Whether the server is there: nothing else can be asked for so."""
        self._answer(HTTPStatus.OK if self.path == "/health" else HTTPStatus.FORBIDDEN)

    def do_POST(self) -> None:
        """Passes on a call that the proxy is for."""
        length = self._length()
        if length is None:
            self._answer(HTTPStatus.BAD_REQUEST)
        elif not self.server.calls.fullmatch(self.path):
            self._answer(HTTPStatus.FORBIDDEN)
        elif length > self.server.large.get(self.path, proxy_limits.SMALL):
            self._answer(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
        elif length > proxy_limits.SMALL and not self.server.knows(self.headers):
            self._answer(HTTPStatus.UNAUTHORIZED)
        else:
            try:
                with self.server.memory.taken(length):
                    self._pass_on(length)
            except proxy_limits.NoRoomError:
                self._answer(HTTPStatus.SERVICE_UNAVAILABLE)

    def _length(self) -> int | None:
        """The length of the request's body; None unless one length is stated, and no other framing."""
        stated = self.headers.get_all("Content-Length", [])
        if self.headers.get_all("Transfer-Encoding") or len(stated) != 1 or not stated[0].isdecimal():
            return None
        return int(stated[0])

    def _pass_on(self, length: int) -> None:
        body = self.rfile.read(length)
        if len(body) < length:
            self.close_connection = True
            return
        headers = {name: value for name, value in self.headers.items() if name.lower() not in _OWN}
        try:
            answer = self._asked(body, headers)
            content = None if self._streams() else answer.read()
        except PeerGoneError:
            self._close_upstream()
            self.close_connection = True
            return
        except (OSError, http.client.HTTPException):
            self._close_upstream()
            self._answer(HTTPStatus.BAD_GATEWAY)
            return
        self.passed(answer.status, body, content or b"")
        self.send_response_only(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in _OWN:
                self.send_header(name, value)
        if content is None:
            self._stream(answer)
            return
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def passed(self, status: int, body: bytes, content: bytes) -> None:
        """Called with each call that the SuperLink has answered; nothing is logged (:meth:`log_message`)."""

    def _streams(self) -> bool:
        """Whether the answer is passed on part by part, as it comes."""
        return False

    def _stream(self, answer: http.client.HTTPResponse) -> None:
        """Passes on the parts of an answer while :meth:`may_go_on`, and closes the connection after it."""
        self.send_header("Transfer-Encoding", "chunked")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        try:
            while (part := answer.read1(_PART)) and self.may_go_on():
                self.wfile.write(b"%x\r\n%b\r\n" % (len(part), part))
                self.wfile.flush()
            if not part:
                self.wfile.write(b"0\r\n\r\n")
        except (OSError, http.client.HTTPException):
            pass  # without its end the peer sees that the stream was cut
        self._close_upstream()

    def may_go_on(self) -> bool:
        """Whether the peer may still have the rest of an answer."""
        return True

    def _asked(self, body: bytes, headers: dict[str, str]) -> http.client.HTTPResponse:
        """The SuperLink's answer; asked anew if it had closed the connection that was kept."""
        for kept in (self._upstream is not None, False):
            if self._upstream is None:
                host, port = self.server.upstream
                self._upstream = http.client.HTTPSConnection(
                    host, port, timeout=_UPSTREAM_PATIENCE, context=self.server.upstream_tls
                )
            try:
                self._upstream.request("POST", self.path, body, headers)
                if self.path == _QUESTION:
                    self._watch(self._upstream.sock)
                return self._upstream.getresponse()
            except (http.client.RemoteDisconnected, ConnectionError):
                self._close_upstream()
                if not kept:
                    raise
        raise AssertionError("unreachable")

    def _watch(self, upstream: socket.socket) -> None:
        """Waits until an answer begins. Raises PeerGoneError if the peer closes its connection first.

        The SuperLink holds questions, and drops one whose connection closes: else it would hand a message to
        a node that is gone. Bytes from it are an answer's, also on a new connection (:func:`_upstream_tls`):
        it closes connections after 5 idle seconds, nodes rest for up to 10, and the next question opens one.
        """
        waits = select.poll()  # and not select(), which takes no descriptor above 1,023
        for one in (self.connection, upstream):
            waits.register(one, select.POLLIN)
        ready = {descriptor for descriptor, _ in waits.poll(1000 * _UPSTREAM_PATIENCE)}
        if self.connection.fileno() in ready and not self._is_open():
            raise PeerGoneError

    def _is_open(self) -> bool:
        """Whether the peer, who has sent something while it waits, has not closed its connection by it."""
        try:
            return bool(self.rfile.peek(1))  # type: ignore[attr-defined]  # it stays there for the next request
        except OSError:
            return False

    def _close_upstream(self) -> None:
        if self._upstream is not None:
            self._upstream.close()
            self._upstream = None

    def _answer(self, status: HTTPStatus, text: str = "") -> None:
        """An answer with a line of text, or without, after which the connection is closed."""
        content = text.encode()
        self.close_connection = True
        self.send_response_only(status)
        self.send_header("Date", self.date_time_string())
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Requests are not logged: when a node answers may depend on its data."""


def serve(server: Party, kind: type[Proxy] = Proxy) -> None:
    """Runs a proxy until the process ends. Raises ArgumentError if it cannot start."""
    try:
        proxy = kind(server)
    except OSError as error:
        where = f"{server.facts['listen']}:{server.facts[kind.port_fact]}"
        reason = error.strerror or type(error).__name__
        hint = "another program may use the port"
        raise validation.ArgumentError(f"The proxy cannot listen at {where}: {reason} ({hint}).") from None
    with proxy:
        proxy.serve_forever()
