"""The server's view of secure aggregation: sound runs pass, and each planted fault is found by its name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import pytest
from helpers.patching import patched
from helpers.small import small
from scipy import stats

from fedpriv.auditing.auditor import audit, audit_own_data
from fedpriv.auditing.protocol import uniform
from fedpriv.auditing.views import View
from fedpriv.federated import worker
from fedpriv.secure_aggregation import masks, messages, party, server
from fedpriv.secure_aggregation.messages import Exchange
from fedpriv.secure_aggregation.party import Party
from fedpriv.secure_aggregation.server import Server

RUN: dict[str, Any] = {
    "unit": "example", "clients": 7, "examples_per_client": 100, "sampler": "everyone", "sampling_rate": 1.0,
    "placement": "distributed", "secure_aggregation": True, "engine": "in-process", "epsilon": 4.0,
    "optimizer": "dp-sgd", "rounds": 3, "seed": 0,
}  # fmt: skip


@pytest.mark.parametrize("changes", [{}, {"clients": 2, "adaptive_quantile": 0.5}, {"colluding_parties": 2}])
def test_a_sound_run_passes_the_audit_of_its_server(changes: dict[str, Any]) -> None:
    found = audit(small(**(RUN | changes)), view="server")
    assert not found.violated, found
    assert (found.view, found.stopped) == (View.PROTOCOL, "rounds")
    assert found.proved < found.claimed


def test_the_server_of_a_run_of_its_own_data_is_audited() -> None:
    config = small(**{**RUN, "clients": 4, "examples_per_client": 30, "rounds": 2})
    found = audit_own_data(config, lambda config: pytest.fail("in process"), canaries=10, view="server")
    assert not found.violated, found


def test_honest_p_values() -> None:
    """Of 600 vectors of uniform numbers no more than one in twenty has a p-value below 0.05, and 5 stds."""
    draws = np.random.default_rng(1)
    values = [uniform(draws.integers(0, 2**64, 300, np.uint64)) for _ in range(600)]
    assert sum(value < 0.05 for value in values) <= 30 + 5 * np.sqrt(30)
    assert stats.binom.cdf(0, 600, 0.5) < min(values)


@pytest.mark.parametrize("std", [2.0**20, 2.0**33, 2.0**50, 2.0**59])
def test_numbers_that_are_small_beside_the_modulus_are_not_uniform(std: float) -> None:
    noise = np.random.default_rng(2).normal(0, std, 200).astype(np.int64).view(np.uint64)
    assert uniform(noise) < 1e-9


FIRST: dict[tuple[int, int], bytes] = {}  # what a pair, or a party, used in the first release


def _one_stream_a_pair(
    right: Any, binding: bytes, secret: bytes, public: bytes, one: int, other: int
) -> bytes:
    pair = (min(one, other), max(one, other))
    return FIRST.setdefault(pair, right(binding, secret, public, one, other))


def _one_pair_again(right: Any, binding: bytes, secret: bytes, public: bytes, one: int, other: int) -> bytes:
    """Parties 2 and 5 use one stream in all releases; all other masks are fresh."""
    key: bytes = right(binding, secret, public, one, other)
    return FIRST.setdefault((2, 5), key) if {one, other} == {2, 5} else key


def _both_shares(right: Any, own: Party, signed: Any) -> Any:
    """Party 1 takes party 3 for gone: it reveals the share of its mask key, and others that of its seed."""
    held = dict(own._held)
    reply = right(own, signed)
    if own.number != 1:
        return reply
    seeds = {peer: pair[1] for peer, pair in held.items() if peer != 3}
    body = messages.pack_reveal(seeds, {3: held[3][0]})
    return messages.sealed(own._session, own._identity, Exchange.REVEAL, 1, body)


def _without_noise(
    right: Any, sums: Any, stds: Any, parties: int, key: Any, release: int, index: int, *rest: Any
) -> Any:
    """Silo 3 leaves its share of the noise out."""
    return right(sums, stds, 0 if index == 2 else parties, key, release, index, *rest)


def _one_message_short(right: Any, own: Server, replies: Any) -> Any:
    """A sum to which somebody adds one step."""
    total = right(own, replies)
    return np.concatenate([total[:1] + np.uint64(1), total[1:]])


def _same_keys(right: Any, own: Party) -> Any:
    """A party whose mask key is the same in each release."""
    fresh, drawn = own._entropy, list[bytes]()

    def draw(size: int) -> bytes:
        drawn.append(fresh(size))
        return drawn[-1] if len(drawn) > 1 else FIRST.setdefault((own.number, own.number), drawn[-1])

    own._entropy = draw
    return right(own)


FAULTS: dict[str, tuple[list[tuple[Any, str, Callable[..., Any]]], str]] = {
    "masks of zero": ([(masks, "add", lambda right, *a, **k: None)], "a masked message that is not uniform"),
    "self masks of zero alone": (
        [(module, "self_mask", lambda right, *a: bytes(32)) for module in (party, server)],
        "without the masks of this release's fresh keys",
    ),
    "pair masks reused in each release": (
        [(party, "pair_mask", _one_stream_a_pair)], "a mask that was used in an earlier release",
    ),
    "one pair's mask reused": (
        [(party, "pair_mask", _one_pair_again)], "without the masks of this release's fresh keys",
    ),
    "one mask key for the run": ([(Party, "keys", _same_keys)], "a mask key that was used before"),
    "both shares of a party": ([(Party, "reveal", _both_shares)], "both shares of a party"),
    "noise left out by a silo": (
        [(worker, "add_party_noise", _without_noise)], "noise that is missing",
    ),
    "a sum with something else in it": (
        [(Server, "total", _one_message_short)], "a sum that is not the sum of the parties' messages",
    ),
}  # fmt: skip


@contextmanager
def planted(name: str) -> Iterator[str]:
    """The fault; gives what the audit must call it."""
    faults, said = FAULTS[name]
    FIRST.clear()
    with ExitStack() as stack:
        for owner, attribute, wrong in faults:
            stack.enter_context(patched(owner, attribute, wrong))
        yield said


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(fault: str) -> None:
    with planted(fault) as said:
        found = audit(small(**RUN), view="server")
    assert found.irregular, found
    assert said in found.oddest


def test_who_reads_messages_without_masks_guesses_more_than_is_claimed() -> None:
    """The adversary that takes masked messages for plain ones learns nothing, unless masks are absent."""
    config = small(**{**RUN, "colluding_parties": 0, "epsilon": 8.0})
    sound = audit(config, view="server")
    with planted("masks of zero"):
        found = audit(config, view="server")
    assert found.leaks
    assert not sound.leaks
    assert found.right > sound.right


def test_the_models_of_such_a_run_are_audited_as_before() -> None:
    assert audit(small(**RUN)).view is View.MODELS


def test_parties_that_leave_are_probed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Masks of parties that left are removed; a share of the wrong kind shows there alone."""
    right = Party.reveal

    def wrong(own: Party, signed: Any) -> Any:
        """Seeds of the parties that left are revealed, too, instead of their mask keys."""
        gone = own._held.keys() - own._survivors
        held = dict(own._held)
        reply = right(own, signed)
        if not gone:
            return reply
        body = messages.pack_reveal({peer: pair[1] for peer, pair in held.items()}, {})
        return messages.sealed(own._session, own._identity, Exchange.REVEAL, own.number, body)

    monkeypatch.setattr(Party, "reveal", wrong)
    found = audit(small(**RUN), view="server")
    assert found.irregular
    assert "a revealed share of a mask that must stay secret" in found.oddest
    assert found.stopped == "rounds"  # in the run itself nobody left
