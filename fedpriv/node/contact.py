"""When a node last had contact with its server, in a small file for health checks on the same machine.

The file has two times and nothing of runs or data: when the server last answered any call, Flower's
heartbeats included, and when it last answered a question for messages. The second is empty while the node
answers a message, which may take long.

>>> import tempfile
>>> path = Path(tempfile.mkdtemp()) / "contact"
>>> contact = Contact(path)
>>> read_contact(path) is None
True
>>> contact.asked()
>>> read_contact(path).asked is None
False
"""

from __future__ import annotations

import json
import os
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from fedpriv._internal.files import read_json

_EVERY = 5.0  # least seconds between two writes


class Contact:
    """Writes the file of a node's process, at most every few seconds.

    A file that cannot be written stays old, so that a health check fails; the node goes on.

    Args:
        path: the file. That of an earlier process is deleted.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._lock = path, threading.Lock()  # heartbeats come from a thread of their own
        self._asked: float | None = time.time()
        self._written = -_EVERY
        self.close()

    def heard(self) -> None:
        """The server has answered a call."""
        with self._lock:
            now = time.monotonic()
            if now - self._written < _EVERY:
                return
            self._written = now
            content = {"heard": round(time.time()), "asked": self._asked and round(self._asked)}
            draft = self._path.with_name(f"{self._path.name}.new")
            with suppress(OSError):
                draft.write_text(json.dumps(content))
                os.replace(draft, self._path)

    def asked(self) -> None:
        """The server has answered a question for messages."""
        self._asked = time.time()
        self.heard()

    def answers(self) -> None:
        """The node begins to answer a message; the next question ends that."""
        self._asked = None

    def close(self) -> None:
        """The process ends: there is no contact any more."""
        with suppress(OSError):
            self._path.unlink(missing_ok=True)


@dataclass(frozen=True)
class Times:
    """What the file says, in seconds since 1970.

    Attributes:
        heard: when the server last answered any call.
        asked: when it last answered a question for messages; None while the node answers a message.
    """

    heard: float
    asked: float | None


def read_contact(path: Path) -> Times | None:
    """The times of the file; None if there is no such file, or another content."""
    try:
        found = read_json(path.read_bytes())
        return Times(float(found["heard"]), None if found["asked"] is None else float(found["asked"]))
    except (OSError, ValueError, KeyError, TypeError, OverflowError):
        return None
