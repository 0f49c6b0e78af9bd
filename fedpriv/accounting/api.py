"""What ``fedpriv account`` and ``fedpriv calibrate`` answer, as dicts that JSON can hold.

An infinite epsilon is the text "infinity", which JSON has no number for.

>>> account(0.01, 200, 0.5, 1e-5, methods=["gdp-clt"])["methods"]["gdp-clt"]["kind"]
'estimate'
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from fedpriv._internal import validation
from fedpriv.accounting import solving
from fedpriv.accounting.accountant import Budget
from fedpriv.accounting.calibration import calibrate
from fedpriv.accounting.events import Event, scaled
from fedpriv.accounting.methods.base import UnsupportedEvent
from fedpriv.accounting.methods.registry import METHODS, epsilon


def schedule(
    sampling_rate: float,
    steps: int,
    noise_multiplier: float | Sequence[float],
    sampler: str = "poisson",
    relation: str = "add-remove",
) -> list[Event]:
    """The events of ``steps`` rounds with one noise multiplier for all, or one for each.

    Raises ArgumentError where the number of multipliers is not ``steps``, and for what Event refuses.
    """
    validation.integer("steps", steps)
    rate = 1.0 if sampler == "none" else sampling_rate
    if isinstance(noise_multiplier, Sequence):
        if len(noise_multiplier) != steps:
            raise validation.fail("noise-multiplier", f"{len(noise_multiplier)} values", f"have {steps}")
        return [Event(float(z), sampler, relation, rate) for z in noise_multiplier]
    if steps == 0:
        return []
    return [Event(float(noise_multiplier), sampler, relation, rate, count=steps)]


def account(
    sampling_rate: float,
    steps: int,
    noise_multiplier: float | Sequence[float],
    delta: float,
    sampler: str = "poisson",
    relation: str = "add-remove",
    methods: Sequence[str] = tuple(METHODS),
) -> dict[str, Any]:
    """Epsilon by each method: {"delta", "methods": {name: {"epsilon", "epsilon_lower", "kind"}}}.

    Among several methods, one that cannot account for these events answers {"error": why}.

    Raises:
        ArgumentError: for arguments out of range.
        UnsupportedEvent: where the only method asked for cannot account for these events.
    """
    return of_events(schedule(sampling_rate, steps, noise_multiplier, sampler, relation), delta, methods)


def of_events(
    events: Sequence[Event], delta: float, methods: Sequence[str] = tuple(METHODS)
) -> dict[str, Any]:
    """As ``account``, of any events: those of a ledger, say. Raises as it does."""
    answers: dict[str, dict[str, Any]] = {}
    for name in methods:
        try:
            answer = epsilon(events, delta, name)
        except UnsupportedEvent as error:
            if len(methods) == 1:
                raise
            answers[name] = {"error": str(error)}
            continue
        answers[name] = {"epsilon": number(answer.epsilon)}
        if answer.epsilon_lower is not None:
            answers[name]["epsilon_lower"] = number(answer.epsilon_lower)
        answers[name]["kind"] = answer.kind
    return {"delta": delta, "methods": answers}


def calibration(
    target: float,
    delta: float,
    sampling_rate: float,
    steps: int,
    relative_noise: Sequence[float] | None = None,
    method: str = "pld",
    sampler: str = "poisson",
    relation: str = "add-remove",
) -> dict[str, Any]:
    """The noise that spends epsilon ``target``: {"scale", "noise_multiplier_first",
    "noise_multiplier_last", "epsilon", "method"}, epsilon being what is then spent.

    Raises ArgumentError and UnsupportedEvent as ``account`` and ``calibrate`` do.
    """
    validation.integer("steps", steps, 1)
    events = schedule(
        sampling_rate, steps, 1.0 if relative_noise is None else relative_noise, sampler, relation
    )
    scale = calibrate(events, Budget(target, delta, method))
    run = [scaled(event, scale) for event in events]
    return {
        "scale": scale,
        "noise_multiplier_first": run[0].noise_multiplier,
        "noise_multiplier_last": run[-1].noise_multiplier,
        "epsilon": number(epsilon(run, delta, method).epsilon),
        "method": method,
    }


def solve_steps(
    target: float,
    delta: float,
    sampling_rate: float,
    noise_multiplier: float,
    method: str = "pld",
    sampler: str = "poisson",
    relation: str = "add-remove",
) -> dict[str, Any]:
    """The most releases of one kind that epsilon ``target`` affords: {"steps", "epsilon", "method"}.

    Raises ArgumentError and UnsupportedEvent as ``account`` and ``solving.rounds`` do.
    """
    [event] = schedule(sampling_rate, 1, noise_multiplier, sampler, relation)
    steps = solving.rounds([event], Budget(target, delta, method))
    run = [replace(event, count=steps)] if steps else []
    return {"steps": steps, "epsilon": number(epsilon(run, delta, method).epsilon), "method": method}


def solve_rate(
    target: float,
    delta: float,
    steps: int,
    noise_multiplier: float | Sequence[float],
    method: str = "pld",
    sampler: str = "poisson",
    relation: str = "add-remove",
) -> dict[str, Any]:
    """The largest sampling rate that epsilon ``target`` affords: {"sampling_rate", "epsilon", "method"}.

    Raises ArgumentError and UnsupportedEvent as ``account`` and ``solving.sampling_rate`` do.
    """
    validation.integer("steps", steps, 1)
    events = schedule(1.0, steps, noise_multiplier, sampler, relation)
    rate = solving.sampling_rate(events, Budget(target, delta, method))
    run = [replace(event, rate=rate) for event in events]
    return {"sampling_rate": rate, "epsilon": number(epsilon(run, delta, method).epsilon), "method": method}


def number(value: float) -> float | str:
    """``value``, or "infinity"."""
    return value if math.isfinite(value) else "infinity"
