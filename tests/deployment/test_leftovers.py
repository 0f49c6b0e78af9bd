"""What uploads that never end leave in the SuperLink's database goes; what Flower still needs stays."""

from __future__ import annotations

import hashlib
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from flwr.proto.message_pb2 import ObjectTree
from flwr.server.superlink.linkstate.sql_linkstate import SqlLinkState
from flwr.supercore.corestate import sql_corestate
from flwr.superlink import main

from fedpriv.deployment import leftovers

pytestmark = pytest.mark.filterwarnings("ignore:No path_separator found:DeprecationWarning")

TABLES = ("objects", "run_objects", "object_push_sessions", "object_push_session_roots")
RUN = 2**63 + 5


def test_flower_is_the_version_whose_tables_are_used() -> None:
    assert version("flwr").startswith(f"{leftovers.FLWR}."), "look at fedpriv/deployment/leftovers.py"


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A SuperLink's, in a file, whose sessions have expired as soon as they begin."""
    monkeypatch.setattr(sql_corestate, "OBJECT_PUSH_SESSION_TTL_SECONDS", -2)
    monkeypatch.setattr(main, "get_ee_linkstate_db", lambda: str(tmp_path / "state.db"))
    made = main.create_app().state.linkstate_factory.state()
    assert isinstance(made, SqlLinkState)
    return made


def tree(name: str, *children: str) -> ObjectTree:
    parts = [ObjectTree(object_id=hashlib.sha256(child.encode()).hexdigest()) for child in children]
    return ObjectTree(object_id=hashlib.sha256(name.encode()).hexdigest(), children=parts)


def stored(state: Any, *trees: ObjectTree) -> str:
    """Registers these objects in a session, without their upload."""
    session = str(state.start_session(RUN))
    for one in trees:
        state.preregister_object_tree(one, session)
    return session


def counts(state: Any) -> list[int]:
    with state.session() as session:
        connection = session.connection()
        return [connection.exec_driver_sql(f"SELECT COUNT(*) FROM {table}").scalar() for table in TABLES]


def store_message(state: Any, table: str, one: ObjectTree) -> None:
    """A message in Flower's table that has this object."""
    with state.session() as session:
        session.connection().exec_driver_sql(f"INSERT INTO {table} (message_id) VALUES (?)", (one.object_id,))


def test_what_nobody_can_upload_any_more_is_removed(state: Any) -> None:
    for number in range(3):
        stored(state, tree(f"{number}"), tree(f"{number}, to another node"))
    assert counts(state) == [6, 6, 3, 6]
    leftovers.remove(state)
    assert counts(state) == [0, 0, 0, 0]


def test_a_session_that_has_not_expired_stays(state: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sql_corestate, "OBJECT_PUSH_SESSION_TTL_SECONDS", 2)
    stored(state, tree("a"))
    leftovers.remove(state)
    assert counts(state) == [1, 1, 1, 1]


@pytest.mark.parametrize("table", ["message_ins", "message_res"])
def test_a_message_that_is_there_keeps_its_object(state: Any, table: str) -> None:
    """Flower hands on no message whose object it does not know."""
    kept, gone = tree("kept"), tree("gone")
    stored(state, kept, gone)
    store_message(state, table, kept)
    leftovers.remove(state)
    assert counts(state) == [1, 1, 1, 2]
    assert state.object_store.get_object_tree(kept.object_id) == kept
    with state.session() as session:
        session.connection().exec_driver_sql(f"DELETE FROM {table}")
    leftovers.remove(state)
    assert counts(state) == [0, 0, 0, 0]


def test_objects_with_contents_or_parts_are_left_to_flower(state: Any) -> None:
    whole, parts = tree("whole"), tree("parent", "child")
    stored(state, whole)
    stored(state, parts)
    with state.session() as session:
        session.connection().exec_driver_sql(
            "UPDATE objects SET is_available = 1, content = 'x' WHERE object_id = ?", (whole.object_id,)
        )
    before = counts(state)
    leftovers.remove(state)
    assert counts(state) == before


def test_it_is_done_as_messages_are_stored(state: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Passing(SqlLinkState):
        """Whose method is replaced here, and not Flower's."""

    now = [100.0]
    monkeypatch.setattr(leftovers.time, "monotonic", lambda: now[0])
    leftovers.removed_in_passing(Passing)
    state.__class__ = Passing
    for number in range(4):
        stored(state, tree(f"{number}"))
    assert counts(state)[0] == 4
    now[0] += leftovers.EVERY
    stored(state, tree("last"))
    assert counts(state) == [1, 1, 1, 1]
    stored(state, tree("after"))
    assert counts(state)[0] == 2
