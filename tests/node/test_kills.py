"""kill -9 at random moments: a node has charged whatever it answered, and its ledger is accepted."""

from __future__ import annotations

import itertools
import os
import random
import signal
import time
from pathlib import Path

import pytest
from helpers.owner_policy import write_policy
from helpers.small import small

from fedpriv.accounting.ledger import read
from fedpriv.config.plan import make_plan
from fedpriv.node.ledger import open_node_ledger
from fedpriv.node.policy_file import read_policy
from fedpriv.node.setup import require_set_up, set_up

KILLS = 50


@pytest.mark.slow
def test_fifty_kills_lose_no_charge(tmp_path: Path) -> None:
    """Each child charges release after release, and notes each one only after its charge, as an answer is."""
    policy = read_policy(write_policy(tmp_path, ("epsilon-limit = 20.0", "epsilon-limit = 1e6")))
    set_up(policy)
    plan = make_plan(
        small(
            unit="example",
            clients=5,
            examples_per_client=50,
            placement="local",
            nodes_own_data=True,
            rounds=2_000,
            delta=1e-4,
            optimizer="dp-sgd",
        )
    )
    own = open_node_ledger(plan, {**policy.node_config, "min-noise-multiplier": 0.0}, 7)
    assert own is not None
    event, answers, chance = plan.events[0], tmp_path / "answers", random.Random(0)
    charged: list[int] = []
    for number in itertools.count():
        if number >= KILLS and len(charged) >= KILLS / 5:
            return
        child = os.fork()
        if not child:
            try:
                for release in itertools.count(len(read(policy.ledger, policy.anchor).events)):
                    own.charge(release, [event])
                    with answers.open("ab") as file:
                        file.write(f"{release}\n".encode())
            finally:
                os._exit(1)
        time.sleep(chance.uniform(0.002, 0.1))
        os.kill(child, signal.SIGKILL)
        assert os.waitpid(child, 0)[1] == signal.SIGKILL, f"child {number} ended by itself"
        charged = [labels["round"] for labels in require_set_up(policy).labels]
        answered = answers.read_text().split() if answers.exists() else []
        assert charged == list(range(len(charged)))
        assert set(map(int, answered)) <= set(charged)
