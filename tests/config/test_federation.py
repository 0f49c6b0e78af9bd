"""Privacy units, levels and partitions: the words are those of the settings, and another word is refused."""

from __future__ import annotations

from enum import StrEnum
from typing import get_args

import pytest

from fedpriv._internal.validation import ArgumentError
from fedpriv.config.federation import Partitioning
from fedpriv.config.schema import Config
from fedpriv.data.partitioning.populations import KINDS
from fedpriv.mechanism.units import Level, PrivacyUnit


@pytest.mark.parametrize(
    ("key", "kind"), [("unit", PrivacyUnit), ("level", Level), ("partition", Partitioning)]
)
def test_settings_have_the_words_of_the_types(key: str, kind: type[StrEnum]) -> None:
    assert get_args(Config.fields()[key].annotation) == tuple(kind)


def test_data_can_be_divided_in_each_way_and_in_silos() -> None:
    assert {*KINDS} == {*Partitioning, "silos"}


def test_another_level_is_refused() -> None:
    with pytest.raises(ArgumentError, match="level is 'silo'; it must be one of aggregation, client"):
        Level.of({"level": "silo"})


@pytest.mark.parametrize(
    ("settings", "divided", "units"),
    [
        ({}, False, 10),
        ({"partition": "iid", "examples-per-client": 7}, True, 10),
        ({"partition": "natural"}, True, 10),
        ({"unit": "example", "examples-per-client": 7}, False, 70),
    ],
)
def test_who_holds_what_follows_from_unit_and_partition(settings: dict, divided: bool, units: int) -> None:
    config = Config.parse({"clients": 10, **settings})
    assert (config.divided, config.units) == (divided, units)
