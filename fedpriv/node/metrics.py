"""A small HTTP server on loopback that gives text, for Prometheus to collect."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

HOST, PATH = "127.0.0.1", "/metrics"


@contextmanager
def serving(port: int, text: Callable[[], str]) -> Iterator[int]:
    """Within this block ``http://127.0.0.1:PORT/metrics`` gives ``text()``; yields the port.

    Args:
        port: 0 takes a free one.
        text: called for each request. If it raises an exception, the answer is 500, without a text.

    Raises OSError if the port is in use.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path != PATH:
                self.send_error(404)
                return
            try:
                content = text().encode()
            except Exception:  # its text is not for whoever asks
                self.send_error(500)
                return
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            """Requests are not logged."""

    server = ThreadingHTTPServer((HOST, port), Handler)
    server.daemon_threads = True
    Thread(target=server.serve_forever, name="metrics", daemon=True).start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
