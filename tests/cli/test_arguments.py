"""Settings on a command line: pairs in one word, the last of each."""

from __future__ import annotations

import pytest

from fedpriv._internal.validation import ArgumentError
from fedpriv.cli.arguments import last_of_each, require_pairs


@pytest.mark.parametrize(
    ("args", "hint"),
    [
        (["--set", "clients", "10"], "write --set clients=10"),
        (["--set", "clients 10"], "write --set clients=10"),
        (["--set", "clients", "=", "10"], "write --set clients=10"),
        (["--set", "clients:", "10"], "write --set clients=10"),
        (["--set", "clients"], "write --set clients=VALUE"),
    ],
)
def test_a_pair_in_two_words_is_refused_as_it_should_be_written(args: list[str], hint: str) -> None:
    with pytest.raises(ArgumentError, match=hint):
        require_pairs([*args])


def test_pairs_pass() -> None:
    require_pairs(["run.toml", "--set", "out=", "--set", "model=a=b", "--set"])


def test_the_last_of_each_setting_stays_in_its_place() -> None:
    args = ["run.toml", "--out", "a", "--set=seed=1", "--json", "--overwrite", "--set", "seed=2", "--out=b"]
    found, replaced = last_of_each(args)
    assert found == ["run.toml", "--json", "--overwrite", "--set", "seed=2", "--out=b"]
    assert replaced == [
        "--out a is replaced by --out b, which comes later",
        "--set seed=1 is replaced by --set seed=2, which comes later",
    ]
