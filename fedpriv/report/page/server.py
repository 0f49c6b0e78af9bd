"""The page served on this machine, with runs that go on: ``fedpriv view``.

It answers two addresses, both below a random token: the page, and a stream of events with the runs as they
are. It reads files of runs inside one folder, writes nothing, and listens on 127.0.0.1 alone. A request that
names another host is refused, so that no web page can read it by a name that it lets point here.
"""

from __future__ import annotations

import hmac
import json
import secrets
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from fedpriv._internal import run_files, validation
from fedpriv.report.page import data, folders
from fedpriv.report.page.page import page
from fedpriv.report.run_folders import run_folders

_HOST = "127.0.0.1"
_TICK = 0.5  # seconds between looks at the folder
_PING = 20  # looks after which a stream without news says that it is there
_MOST_STREAMS = 16

Signature = tuple[tuple[str, int, int], ...]


class Viewer(ThreadingHTTPServer):
    """Serves the page about a folder.

    Attributes:
        root: the folder.
        address: where a browser finds the page.
    """

    daemon_threads = True

    def __init__(self, root: str | Path, port: int = 0) -> None:
        self.root = Path(root)
        if not self.root.is_dir():
            raise validation.fail("FOLDER", str(root), "be an existing folder")
        validation.integer("port", port)
        super().__init__((_HOST, port), _Handler)
        self.token = secrets.token_urlsafe(24)
        self.ended = threading.Event()
        self.streams = threading.BoundedSemaphore(_MOST_STREAMS)
        self._lock = threading.Lock()
        self._page: tuple[Signature | None, str] = None, ""

    @property
    def address(self) -> str:
        """The page's address, with the token."""
        return f"http://{_HOST}:{self.server_port}/{self.token}/"

    def page(self) -> str:
        """The page; made anew where runs have ended since. What goes on reaches it by the events."""
        with self._lock:
            before, made = self._page
            now = signature(self.root, (run_files.CONFIG, run_files.REPORT))
            if now != before:
                made = page(folders.read_inside(self.root), f"fedpriv: {self.root}", live=True)
                self._page = now, made
            return made

    def server_close(self) -> None:
        """End the streams, too."""
        self.ended.set()
        super().server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that goes away is no error."""


def signature(root: Path, names: tuple[str, ...]) -> Signature:
    """The files of runs with these names, with the time and size of each: it changes with their content."""
    try:
        found = run_folders(root)
    except (validation.ArgumentError, OSError):
        return ()
    parts = []
    for path in (folder / name for folder in found for name in names):
        try:
            state = path.stat()
        except OSError:
            continue
        parts.append((str(path), state.st_mtime_ns, state.st_size))
    return tuple(parts)


class _Handler(BaseHTTPRequestHandler):
    """One request: GET of the page or of the events, and nothing else."""

    server: Viewer
    server_version, sys_version = "fedpriv", ""
    timeout = 30  # seconds for a request's head

    def do_GET(self) -> None:
        """Answer a request."""
        known = {f"{host}:{self.server.server_port}" for host in (_HOST, "localhost")}
        if self.headers.get("Host") not in known:
            self.send_error(403)
        elif self._is(f"/{self.server.token}/"):
            self._answer(self.server.page().encode())
        elif self._is(f"/{self.server.token}/events"):
            self._stream()
        else:
            self.send_error(404)

    def _is(self, path: str) -> bool:
        """Whether this path was asked for; how long that takes tells nothing of the token."""
        return hmac.compare_digest(self.path.encode(errors="replace"), path.encode())

    def _head(self, kind: str) -> None:
        self.send_response(200)
        for name, value in (
            ("Content-Type", f"{kind}; charset=utf-8"),
            ("Cache-Control", "no-store"),
            ("Referrer-Policy", "no-referrer"),
            ("X-Content-Type-Options", "nosniff"),
            ("X-Frame-Options", "DENY"),
        ):
            self.send_header(name, value)

    def _answer(self, content: bytes) -> None:
        self._head("text/html")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _stream(self) -> None:
        """The runs now, and again whenever their files change."""
        if not self.server.streams.acquire(blocking=False):
            self.send_error(503)
            return
        try:
            self._head("text/event-stream")
            self.end_headers()
            before, quiet = None, 0
            while not self.server.ended.is_set():
                now = signature(self.server.root, (run_files.CONFIG, run_files.METRICS, run_files.REPORT))
                if now != before:
                    runs = data.runs(folders.read_inside(self.server.root))
                    self.wfile.write(f"data: {json.dumps(runs)}\n\n".encode())
                    before, quiet = now, 0
                elif quiet >= _PING:
                    self.wfile.write(b": still here\n\n")
                    quiet = 0
                self.wfile.flush()
                quiet += 1
                self.server.ended.wait(_TICK)
        except OSError:  # the browser is gone
            return
        finally:
            self.server.streams.release()

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: an address has the token."""
