"""The policy of a node's owner, for tests."""

from __future__ import annotations

from pathlib import Path

POLICY = """\
[node]
superlink = "127.0.0.1:8000"
insecure = true
partition-id = 1
num-partitions = 5
data-file = "data/silo.npz"

[limits]
run-epsilon = 8.0
epsilon-limit = 20.0
delta-limit = 1e-3
min-noise-multiplier = 0.1
max-clip-norm = 1.0
accept-central = true

[allow]
dataset = ["infinite-digits"]
model = ["logistic"]
optimizer = ["dp-sgd"]
placement = ["local", "central"]
unit = "example"
"""


def write_policy(folder: Path, *changes: tuple[str, str]) -> Path:
    """A policy file in ``folder`` whose text has each first part replaced by the second."""
    text = POLICY
    for before, after in changes:
        assert before in text
        text = text.replace(before, after)
    path = folder / "policy.toml"
    path.write_text(text)
    return path
