"""What a benchmark splits adds up, on either engine, and its advice follows from the settings."""

from __future__ import annotations

import json
import os

import pytest
from typer.testing import CliRunner

from fedpriv._check import ArgumentError
from fedpriv.bench import PARTS, Figures, measure
from fedpriv.cli import app
from fedpriv.config import Config
from fedpriv.stopwatch import Stopwatch, Timed

SMALL: dict[str, object] = {"clients": 1000, "sampling-rate": 0.04, "model": "logistic", "epsilon": 8.0}


def figures(settings: dict[str, object], rounds: int = 10) -> Figures:
    return measure(Config.parse({**SMALL, **settings}), rounds)


def test_parts_add_up_to_rounds_in_this_process() -> None:
    measured = figures({"engine": "in-process"})
    assert set(measured.parts) == set(PARTS)
    assert all(seconds >= 0 for seconds in measured.parts.values())
    # Medians of parts need not add up to the median of wholes, but not be far from it either.
    assert 0.3 * measured.round < sum(measured.parts.values()) < 2 * measured.round
    assert measured.parts["transport"] == 0
    assert min(measured.ordinary, measured.clipped, measured.parts["clipped sum"]) > 0
    assert not measured.by_rows


@pytest.mark.slow  # actors of its own
def test_nodes_say_where_their_time_went_and_whether_one_is_idle(ray_instance: None) -> None:
    apart = {"placement": "distributed", "sampler": "fixed-size"}
    measured = figures({"actors": 2, "cpus-per-actor": 0.5, "chunk-size": 500, **apart})
    assert min(measured.parts["transport"], measured.parts["data"], measured.parts["clipped sum"]) > 0
    assert measured.overhead == pytest.approx(1 - measured.parts["clipped sum"] / measured.round)
    assert any("chunk-size=20" in line for line in measured.advice)


def test_silos_that_train_by_themselves_are_refused() -> None:
    silos = {"unit": "example", "clients": 2, "examples-per-client": 300, "level": "client"}
    with pytest.raises(ArgumentError, match="level is 'client'"):
        figures({**silos, "sampling-rate": 0.1})
    with pytest.raises(ArgumentError, match="rounds"):
        figures({}, rounds=0)


def test_the_command_prints_a_table_or_json() -> None:
    arguments = ["bench", "--rounds", "5", "--set", "engine=in-process"]
    for key, value in SMALL.items():
        arguments += ["--set", f"{key}={value}"]
    text = CliRunner().invoke(app, arguments)
    assert text.exit_code == 0, text.output
    assert all(part in text.stdout for part in (*PARTS, "round", "times as much"))
    parsed = json.loads(CliRunner().invoke(app, [*arguments, "--json"]).stdout)
    assert set(parsed["parts"]) == set(PARTS)
    refused = CliRunner().invoke(app, ["bench", "--set", "dataset=nothing"])
    assert refused.exit_code == 2


def test_a_stopwatch_counts_what_is_called_through_it() -> None:
    watch = Stopwatch()
    timed = Timed(os, watch, {"getcwd": "asking"})
    assert timed.getcwd() == os.getcwd()
    assert timed.sep == os.sep
    watch.add({"asking": 2.0, "waiting": 1.0})
    spent = watch.take()
    assert spent["asking"] > 2.0
    assert spent["waiting"] == 1.0
    assert watch.take() == {}
