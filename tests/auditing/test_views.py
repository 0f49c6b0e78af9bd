"""Each adversary of an audit: sound runs pass, and what each of them alone can see is found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from helpers.patching import EXACT, patched, remembering
from helpers.small import small
from torch import Tensor

from fedpriv._internal.validation import ArgumentError
from fedpriv.auditing.auditor import audit
from fedpriv.auditing.finding import Finding
from fedpriv.auditing.views import Splitter, View
from fedpriv.federated.cohorts import CohortSampler
from fedpriv.federated.engine import Shard
from fedpriv.federated.worker import Worker
from fedpriv.mechanism.placement import Central, Distributed, Local
from fedpriv.mechanism.rounded_gaussian import Rounded
from fedpriv.optimizers.base import OUTPUT, State
from fedpriv.optimizers.first_order import FirstOrder
from fedpriv.rng import Key

RUN: dict[str, Any] = {"clients": 1000, "epsilon": 4.0, "rounds": 4, "sampling_rate": 0.2, "seed": 0}
EVERYONE: dict[str, Any] = {**RUN, "sampler": "everyone", "sampling_rate": 1.0}
LOCAL: dict[str, Any] = {**EVERYONE, "clients": 400, "placement": "local"}
COLLUSION: dict[str, Any] = {**EVERYONE, "placement": "distributed", "colluding_parties": 250}
LAST_MODEL: dict[str, Any] = {**EVERYONE, "optimizer": "dp-sgd"}
SILOS: dict[str, Any] = {**RUN, "unit": "example", "clients": 10, "examples_per_client": 100}
SILOS_OF_FOUR: dict[str, Any] = {**SILOS, "clients": 4, "placement": "distributed"}

SOUND: dict[str, tuple[str, dict[str, Any]]] = {
    "last model": ("last-model", LAST_MODEL),
    "last model, momentum": ("last-model", {**RUN, "optimizer": "dp-sgd", "momentum": 0.5}),
    "last model, an average": ("last-model", {**RUN, "optimizer": "dp-sgd", "averaging": 0.5}),
    "local": ("auto", LOCAL),
    "local, fixed size": ("auto", {**LOCAL, "sampler": "fixed-size", "sampling_rate": 0.3}),
    "local, two messages a client": (
        "server", {**LOCAL, "sampler": "poisson", "sampling_rate": 0.5, "max_participations": 2},
    ),
    "local, who sees models": ("models", LOCAL),
    "local, silos": ("auto", {**SILOS, "placement": "local"}),
    "distributed, the server": ("server", {**LOCAL, "placement": "distributed", "clients": 40}),
    "distributed, silos, the server": ("server", SILOS_OF_FOUR),
    "collusion": ("parties", COLLUSION),
    "collusion, sampled": ("parties", {**COLLUSION, "sampler": "fixed-size", "sampling_rate": 0.4}),
    "collusion of silos": ("parties", {**SILOS_OF_FOUR, "colluding_parties": 2}),
    "adaptive clip norm, local": ("auto", {**LOCAL, "adaptive_quantile": 0.5, "optimizer": "dp-sgd"}),
    "dp-srm, local": ("auto", {**LOCAL, "optimizer": "dp-srm"}),
}  # fmt: skip


def expect_sound(view: str, settings: dict[str, Any]) -> Finding:
    found = audit(small(**settings), view=view)
    assert not found.violated, found
    assert found.stopped == "rounds"
    assert max(found.proved, found.proved_by_curves) < found.claimed
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=pytest.mark.exhaustive if "local" in kind else ()) for kind in SOUND]
)
def test_a_sound_run_passes_the_audit_of_each_adversary(kind: str) -> None:
    expect_sound(*SOUND[kind])


@pytest.mark.slow
def test_where_accounting_is_tight_each_adversary_reaches_the_claim() -> None:
    """The server sees each message of everyone, colluders leave the calibrated noise, and with linear losses
    the last model shows the whole sum.
    """
    for view, settings in (
        ("server", LOCAL),
        ("parties", COLLUSION),
        ("last-model", {**EVERYONE, "optimizer": "dp-sgd", "learning_rate": 0.1}),
    ):
        found = expect_sound(view, settings)
        assert found.measured == pytest.approx(found.claimed, rel=0.35), (view, found)


@pytest.mark.slow
def test_who_knows_no_shares_sees_more_noise_than_colluders() -> None:
    models, parties = (audit(small(**COLLUSION), view=view) for view in ("models", "parties"))
    assert models.measured < parties.measured
    assert (models.canaries, parties.canaries) == (1000, 750)  # colluders know their own coins


# Faults in what each adversary sees.


def _one_silent(right: Any, side: Worker, request: Any) -> Any:
    """A client's message without its noise; the sum is as noisy as if it had been added."""
    reply = right(side, request)
    if request.party_stds is None or len(request.shards) != 1 or request.release != 2:
        return reply
    (shard,) = request.shards
    return side_answer(right, side, request) if 17 in shard.ids else reply


def side_answer(right: Any, side: Worker, request: Any) -> Any:
    return right(side, replace(request, party_stds=None))


def _in_pairs(right: Any, draws: Rounded) -> Any:
    """The noise of every second release is that of the one before, subtracted."""
    number = draws.label[1]
    noise = right(Rounded(Key.from_seed(0), ("pair", number // 2), right(draws), draws.scales))
    return tuple(-z for z in noise) if number % 2 else noise


def _handed_out_exact(right: Any, optimizer: Any, state: State, answer: Any) -> Any:
    """Noisy updates, but the parameters that are handed out are those of exact sums."""
    shown = state.output - EXACT["sum"].float() / RUN["clients"]
    return replace(right(optimizer, state, answer), slots={OUTPUT: shown})


def _sends_above_its_cap(right: Any, cohorts: CohortSampler, ids: Any) -> Any:
    """A cap on participations that nobody keeps."""
    return ids


FAULTS: dict[str, tuple[str, dict[str, Any], Any, str, Callable[..., Any], str]] = {
    "noise that the next release takes back": (
        "last-model", LAST_MODEL, Rounded, "take", _in_pairs, "noise that ",
    ),
    "a last model of exact sums": (
        "last-model", LAST_MODEL, FirstOrder, "update", _handed_out_exact, "computed from data",
    ),
    "less noise on the sum, last model": (
        "last-model", LAST_MODEL, Central, "server_stds",
        lambda right, *a: tuple(0.8 * std for std in right(*a)), "too small",
    ),
    "less local noise": (
        "server", LOCAL, Local, "party_stds",
        lambda right, *a: tuple(0.7 * s for s in right(*a)), "too small",
    ),
    "a message without noise": ("server", LOCAL, Worker, "answer", _one_silent, "a message with noise"),
    "one noise for all messages": (
        "server", LOCAL, Worker, "answer",
        lambda right, side, request: right(
            side, replace(request, shards=tuple(replace(s, index=0) for s in request.shards))
        ),
        "noise that ",
    ),
    "shares too small for the colluders": (
        "parties", COLLUSION, Distributed, "secret_shares", lambda right, *a: 1000, "too small",
    ),
    "shares of noise that silos leave out": (
        "server", SILOS_OF_FOUR, Distributed, "party_stds",
        lambda right, *a: tuple(0.5 * s for s in right(*a)), "too small",
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    "fault",
    [pytest.param(f, marks=() if f == "a message without noise" else pytest.mark.slow) for f in FAULTS],
)
def test_a_fault_is_found_by_its_adversary(fault: str) -> None:
    view, settings, owner, name, wrong, said = FAULTS[fault]
    if isinstance(getattr(owner, name), property):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(owner, name, property(lambda self: wrong(None, self)))
            found = audit(small(**settings), view=view)
    else:
        with patched(Worker, "gather", remembering), patched(owner, name, wrong):
            found = audit(small(**settings), view=view)
    assert found.irregular, found
    assert said in found.oddest


CAPPED: dict[str, Any] = {
    **LOCAL, "sampler": "fixed-size", "sampling_rate": 1.0, "max_participations": 1, "rounds": 6,
}  # fmt: skip
SHARES: dict[str, Any] = {**LOCAL, "placement": "distributed", "clients": 100}
# No message and no cohort is odd by itself, so guesses alone find it.
QUIET: dict[str, Any] = {
    **RUN, "clients": 1600, "epsilon": 0.05, "delta": 1e-5, "rounds": 20, "sampling_rate": 0.1,
    "placement": "distributed", "optimizer": "dp-sgd",
}  # fmt: skip
GUESSED: dict[str, tuple[str, dict[str, Any], Any, str, Callable[..., Any]]] = {
    "a cap on participations that nobody keeps": (
        "server", CAPPED, CohortSampler, "_below_cap", _sends_above_its_cap,
    ),
    "a message that is accounted with all of the noise": (
        "server", SHARES, Distributed, "message_event",
        lambda right, placement, sampler, z: replace(right(placement, sampler, z), noise_multiplier=z),
    ),
    "a server that is said not to know the cohort": (
        "server", QUIET, Distributed, "message_event",
        lambda right, placement, sampler, z: sampler.event(right(placement, sampler, z).noise_multiplier),
    ),
    "a server that is said not to see who replies": (
        "server", {**QUIET, "sampler": "everyone", "sampling_rate": 1.0, "rounds": 1},
        Distributed, "message_event",
        lambda right, placement, sampler, z: replace(right(placement, sampler, z), relation="add-remove"),
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    "fault",
    [pytest.param(f, marks=pytest.mark.exhaustive if f.startswith("a server") else ()) for f in GUESSED],
)
def test_a_fault_in_messages_is_found_by_guesses(fault: str) -> None:
    view, settings, owner, name, wrong = GUESSED[fault]
    assert not audit(small(**settings), view=view).violated
    with patched(owner, name, wrong):
        found = audit(small(**settings), view=view)
    assert found.leaks, found


def _peeking(right: Any, optimizer: Any, state: Any, answer: Any) -> Any:
    """Hands out parameters that repeat the first answer ten times: post-processing, and no fault."""
    state = right(optimizer, state, answer)
    shown: Tensor = state.params - 10 * answer[0]
    return replace(state, slots={**state.slots, OUTPUT: shown})


def test_what_is_handed_out_is_what_the_adversary_of_the_last_model_sees() -> None:
    settings = LAST_MODEL
    plain = audit(small(**settings), view="last-model")
    with patched(FirstOrder, "update", _peeking):
        shown = audit(small(**settings), view="last-model")
    assert not shown.violated
    assert shown.right < plain.right  # mostly the last release


@pytest.mark.parametrize(
    ("view", "settings", "said"),
    [
        ("admin", RUN, "view is 'admin'; it must be one of auto, models, last-model, server, parties"),
        ("server", RUN, "view is 'server'; it must be models with placement central"),
        ("parties", RUN, "view is 'parties'; it must be another one unless placement is distributed"),
        (
            "parties", {**RUN, "placement": "distributed", "colluding_parties": 0},
            "unless placement is distributed and parties collude",
        ),
        ("last-model", {**SILOS, "level": "client"}, "view is 'last-model'; it must be models with level"),
    ],
)  # fmt: skip
def test_a_view_without_a_claim_is_refused(view: str, settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ArgumentError) as refused:
        audit(small(**settings), view=view)
    assert said in str(refused.value)


def test_a_splitter_keeps_every_party_and_numbers_its_shards() -> None:
    shards = (Shard(0, np.array([0, 2, 5]), 3), Shard(1, np.array([7]), 2))
    alone = Splitter(View.SERVER).split(shards)
    assert [(s.index, s.ids.tolist(), s.parties) for s in alone] == [
        (0, [0], 1), (1, [2], 1), (2, [5], 1), (3, [7], 1), (4, [], 1),
    ]  # fmt: skip
    known = Splitter(View.PARTIES, known=3)
    pieces = known.split(shards)
    assert [(s.ids.tolist(), s.parties) for s in pieces] == [([0], 1), ([2], 1), ([5], 1), ([7], 2)]
    assert [known.knows(s) for s in pieces] == [True, True, False, False]
