"""The dicts behind ``fedpriv account`` and ``fedpriv calibrate``."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fedpriv._internal.validation import ArgumentError
from fedpriv.accounting import UnsupportedEvent
from fedpriv.accounting.api import calibration, of_events, schedule


def account(
    rate: float,
    steps: int,
    noise: float | list[float],
    delta: float,
    sampler: str = "poisson",
    relation: str = "add-remove",
    **methods: list[str],
) -> dict[str, Any]:
    return of_events(schedule(rate, steps, noise, sampler, relation), delta, **methods)


def test_account_has_the_documented_keys() -> None:
    answer = account(0.01, 200, 0.5, 1e-5)
    assert json.loads(json.dumps(answer)) == answer
    assert list(answer) == ["delta", "methods"]
    methods = answer["methods"]
    assert set(methods) == {"pld", "rdp", "gdp-clt", "tcdp", "zcdp", "advanced"}
    assert set(methods["pld"]) == {"epsilon", "epsilon_lower", "kind"}
    assert set(methods["gdp-clt"]) == {"epsilon", "kind"}
    assert methods["pld"]["epsilon"] == pytest.approx(7.73, abs=5e-3)
    assert methods["gdp-clt"]["epsilon"] == pytest.approx(4.56, abs=5e-3)
    assert (methods["pld"]["kind"], methods["gdp-clt"]["kind"]) == ("bound", "estimate")


def test_one_multiplier_per_step() -> None:
    one = account(0.01, 3, [1.0, 1.0, 1.0], 1e-5, methods=["pld"])
    assert one == account(0.01, 3, 1.0, 1e-5, methods=["pld"])
    with pytest.raises(ArgumentError, match="noise-multiplier has 2 values for 3 steps"):
        account(0.01, 3, [1.0, 1.0], 1e-5)


def test_an_unsupporting_method_gives_an_error_entry_or_raises_if_it_is_the_only_one() -> None:
    arguments = (0.1, 100, 1.0, 1e-5, "without-replacement", "replace-one")
    methods = account(*arguments)["methods"]
    assert "does not support" in methods["gdp-clt"]["error"]
    assert methods["pld"]["epsilon"] < methods["rdp"]["epsilon"]
    with pytest.raises(UnsupportedEvent, match="gdp-clt"):
        account(*arguments, methods=["gdp-clt"])


def test_sampling_none_ignores_the_rate_and_infinity_is_text() -> None:
    assert account(0.3, 100, 1.0, 1e-5, "none", methods=["pld"])["methods"]["pld"][
        "epsilon"
    ] == pytest.approx(91.8, abs=0.05)
    answer = account(0.1, 1, 0.0, 1e-5, methods=["pld"])["methods"]["pld"]
    assert (answer["epsilon"], answer["epsilon_lower"]) == ("infinity", "infinity")
    assert account(0.1, 0, 1.0, 1e-5, methods=["pld"])["methods"]["pld"]["epsilon"] == 0


def test_calibration_has_the_documented_keys() -> None:
    answer = calibration(1.0, 1e-5, 0.01, 4, [1.0, 0.9, 0.8, 0.5])
    assert json.loads(json.dumps(answer)) == answer
    assert list(answer) == ["scale", "noise_multiplier_first", "noise_multiplier_last", "epsilon", "method"]
    assert answer["noise_multiplier_first"] == answer["scale"]
    assert answer["noise_multiplier_last"] == answer["scale"] * 0.5
    assert 0.99 <= answer["epsilon"] <= 1
    run = [answer["scale"] * r for r in (1.0, 0.9, 0.8, 0.5)]
    assert account(0.01, 4, run, 1e-5, methods=["pld"])["methods"]["pld"]["epsilon"] == answer["epsilon"]


def test_steps_are_checked() -> None:
    with pytest.raises(ArgumentError, match="steps is 0"):
        calibration(1.0, 1e-5, 0.01, 0)
