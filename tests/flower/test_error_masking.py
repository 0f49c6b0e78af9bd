"""A failing node names the exception's type and nothing that could contain data."""

import pytest
from flwr.app import Context, Message, RecordDict
from helpers import echo_app as echo

from fedpriv._internal.user_code import UserCodeError
from fedpriv.flower.error_masking import guarded, raising
from fedpriv.flower.grids.base import node_context
from fedpriv.flower.grids.in_process import InProcessGrid
from fedpriv.flower.serialization import MessageError
from fedpriv.node.policy import RefusedError


@guarded
def leaky(message: Message, context: Context) -> Message:
    """Fails with a text that quotes data."""
    raise KeyError(echo.SECRET)


@pytest.fixture
def message() -> Message:
    grid = InProcessGrid(client_app=f"{echo.__name__}:app")
    return grid.create_message(RecordDict(), "train", 1, "")


def test_the_error_reply_has_the_type_and_no_text(message: Message) -> None:
    reply = leaky(message, node_context(1, 1, {}))
    assert reply.error.reason == "KeyError"
    assert echo.SECRET not in repr(reply.error)


@guarded
def refusing(message: Message, context: Context) -> Message:
    """Fails with one of fedpriv's errors."""
    raise RefusedError("round 3 was answered before")


@guarded
def reading(message: Message, context: Context) -> Message:
    """Fails with a MessageError."""
    raise MessageError("this run's parties add noise, and the ask names none")


@guarded
def loading(message: Message, context: Context) -> Message:
    """Fails in the owner's code; the text may quote data."""
    raise UserCodeError(f"dataset is 'mine:data'; it must work when it is called (KeyError: {echo.SECRET})")


def test_the_reason_why_a_node_is_not_ready_is_in_its_own_log(caplog: pytest.LogCaptureFixture) -> None:
    """All nodes are queried, so this reveals nothing; without a data-file a node is not an owner's."""
    message = InProcessGrid(client_app=f"{echo.__name__}:app").create_message(RecordDict(), "query", 1, "")
    with caplog.at_level("INFO"):
        refusing(message, node_context(1, 1, {}))
        leaky(message, node_context(1, 1, {}))
    assert [record.getMessage() for record in caplog.records] == [
        "refusing failed with RefusedError: round 3 was answered before",
        "leaky failed with KeyError",
    ]


def test_nothing_is_logged_unless_the_node_asks_for_it(
    message: Message, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO"):
        leaky(message, node_context(1, 1, {}))
        refusing(message, node_context(1, 1, {}))
    assert caplog.text == ""
    with caplog.at_level("DEBUG", logger="fedpriv.flower.error_masking"):
        leaky(message, node_context(1, 1, {}))
    assert echo.SECRET in caplog.text


def test_an_owners_log_has_the_type_and_only_fedprivs_texts(
    message: Message, caplog: pytest.LogCaptureFixture
) -> None:
    owners = node_context(1, 1, {})
    owners.node_config["data-file"] = "mine.npz"
    with caplog.at_level("INFO"):
        leaky(message, owners)
        refusing(message, owners)
        reading(message, owners)
        loading(message, owners)
    assert [record.getMessage() for record in caplog.records] == [
        "leaky failed with KeyError",
        "refusing failed with RefusedError: round 3 was answered before",
        "reading failed with MessageError: this run's parties add noise, and the ask names none",
        "loading failed with UserCodeError",
    ]


def test_the_same_process_can_request_the_exception_itself(message: Message) -> None:
    with raising(), pytest.raises(KeyError, match=echo.SECRET):
        leaky(message, node_context(1, 1, {}))
    assert leaky(message, node_context(1, 1, {})).has_error()
