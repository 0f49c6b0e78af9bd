"""What uploads that never end leave in a SuperLink's database is removed while the run goes on.

Flower 1.41 notes for each message the objects that its sender is to upload, and forgets them after the
upload, or when the run ends. A message that travels whole (:mod:`fedpriv.flower.whole_messages`) has an
object that nobody uploads, so each would leave five rows: 4 kB a round for two nodes, and as much of the
SuperLink's memory. Flower refuses an object when its session has expired, after three minutes. A session that
has expired is therefore removed here, with the objects of its messages, once its messages are gone.

Objects that have a content or parts are left to Flower, and so is a session with one of them.
"""

from __future__ import annotations

import threading
import time
from typing import Any

FLWR = "1.41"  # whose tables are used here; tests/deployment/test_leftovers.py holds them

EVERY = 10.0  # seconds; a deletion looks at all rows of a run, so there should be few at a time

# Objects without content and parts, of sessions that have expired, whose message is no longer there.
_OBJECTS = """
DELETE FROM objects WHERE ref_count = 0 AND is_available = 0
AND object_id IN (
    SELECT root_object_id FROM object_push_session_roots
    JOIN object_push_sessions USING (session_id) WHERE expires_at <= ?
)
AND NOT EXISTS (SELECT 1 FROM message_ins WHERE message_id = objects.object_id)
AND NOT EXISTS (SELECT 1 FROM message_res WHERE message_id = objects.object_id)
AND NOT EXISTS (SELECT 1 FROM object_children WHERE parent_id = objects.object_id)
"""
# Sessions that have expired and have no object left; their rows in other tables go with them.
_SESSIONS = """
DELETE FROM object_push_sessions WHERE expires_at <= ?
AND NOT EXISTS (
    SELECT 1 FROM object_push_session_roots JOIN objects ON object_id = root_object_id
    WHERE object_push_session_roots.session_id = object_push_sessions.session_id
)
"""


def remove(state: Any) -> None:
    """Removes what there is now from the database of ``state``, Flower's SqlLinkState."""
    from flwr.supercore.date import now

    with state.session() as session:
        # As Flower's column of times has them. Text is compared, so a part of a second does not count.
        expired = now().strftime("%Y-%m-%d %H:%M:%S")
        for statement in (_OBJECTS, _SESSIONS):
            session.connection().exec_driver_sql(statement, (expired,))


def removed_in_passing(states: Any) -> None:
    """Has states of this class of Flower's remove it as messages are stored, every EVERY seconds at most."""
    start, lock = states.start_session, threading.Lock()
    last = time.monotonic()

    def started(self: Any, run_id: int) -> str:
        nonlocal last
        with lock:
            due = time.monotonic() - last >= EVERY
            last = time.monotonic() if due else last
        if due:
            remove(self)
        return str(start(self, run_id))

    states.start_session = started
