"""The results of ``fedpriv account`` and ``fedpriv calibrate`` as JSON-serialisable dicts.

An infinite epsilon is the text "infinity", since JSON has no number for it.

>>> of_events(schedule(0.01, 200, 0.5), 1e-5, ["gdp-clt"])["methods"]["gdp-clt"]["kind"]
'estimate'
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from fedpriv._internal import validation
from fedpriv.accounting import solving
from fedpriv.accounting.accountant import Budget
from fedpriv.accounting.calibration import calibrate
from fedpriv.accounting.events import Event, Sampling, scaled
from fedpriv.accounting.methods.base import METHODS, PrivacyGuarantee, UnsupportedEvent
from fedpriv.accounting.methods.registry import epsilon


def schedule(
    sampling_rate: float,
    steps: int,
    noise_multiplier: float | Sequence[float],
    sampler: str = "poisson",
    relation: str = "add-remove",
) -> list[Event]:
    """The events of ``steps`` rounds, with one noise multiplier for all rounds or one for each round.

    Raises ArgumentError if the number of multipliers is not ``steps``, and for values that Event refuses.
    """
    validation.integer("steps", steps)
    rate = 1.0 if sampler == Sampling.NONE else sampling_rate
    if isinstance(noise_multiplier, Sequence):
        if len(noise_multiplier) != steps:
            raise validation.ArgumentError(
                f"noise-multiplier has {len(noise_multiplier)} values for {steps} steps; give one value, or "
                "one value per step."
            )
        return [Event(float(z), sampler, relation, rate) for z in noise_multiplier]
    if steps == 0:
        return []
    return [Event(float(noise_multiplier), sampler, relation, rate, count=steps)]


def of_events(
    events: Sequence[Event], delta: float, methods: Sequence[str] = tuple(METHODS)
) -> dict[str, Any]:
    """Epsilon by each method: {"delta", "methods": {name: {"epsilon", "epsilon_lower", "kind"}}}.

    If several methods are requested, one that cannot account for these events gives {"error": reason}.

    Raises:
        ArgumentError: for arguments out of range.
        UnsupportedEvent: if the only requested method cannot account for these events.
    """
    return {"delta": delta, "methods": table(methods, lambda name: epsilon(events, delta, name))}


def table(methods: Sequence[str], by: Callable[[str], PrivacyGuarantee]) -> dict[str, dict[str, Any]]:
    """The cells of :func:`of_events` for what ``by`` answers. Raises UnsupportedEvent as it does."""
    guarantees, unsupported = by_methods(methods, by)
    return {
        name: {"error": unsupported[name]} if name in unsupported else _cell(guarantees[name])
        for name in methods
    }


def by_methods(
    methods: Sequence[str], by: Callable[[str], PrivacyGuarantee]
) -> tuple[dict[str, PrivacyGuarantee], dict[str, str]]:
    """(what ``by`` answers for each method, why it does not for the others).

    Raises UnsupportedEvent if the only method does not answer.
    """
    guarantees, unsupported = dict[str, PrivacyGuarantee](), dict[str, str]()
    for name in methods:
        try:
            guarantees[name] = by(name)
        except UnsupportedEvent as error:
            if len(methods) == 1:
                raise
            unsupported[name] = str(error)
    return guarantees, unsupported


def _cell(answer: PrivacyGuarantee) -> dict[str, Any]:
    lower = {} if answer.epsilon_lower is None else {"epsilon_lower": number(answer.epsilon_lower)}
    return {"epsilon": number(answer.epsilon), **lower, "kind": answer.kind}


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
    """The noise that spends epsilon ``target``.

    Returns {"scale", "noise_multiplier_first", "noise_multiplier_last", "epsilon", "method"}, where epsilon
    is the privacy loss at that noise. Raises ArgumentError and UnsupportedEvent as ``of_events`` and
    ``calibrate`` do.
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
    """The largest number of equal releases that epsilon ``target`` affords: {"steps", "epsilon", "method"}.

    Raises ArgumentError and UnsupportedEvent as ``of_events`` and ``solving.rounds`` do.
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

    Raises ArgumentError and UnsupportedEvent as ``of_events`` and ``solving.sampling_rate`` do.
    """
    validation.integer("steps", steps, 1)
    events = schedule(1.0, steps, noise_multiplier, sampler, relation)
    rate = solving.sampling_rate(events, Budget(target, delta, method))
    run = [replace(event, rate=rate) for event in events]
    return {"sampling_rate": rate, "epsilon": number(epsilon(run, delta, method).epsilon), "method": method}


def number(value: float) -> float | str:
    """``value``, or the text "infinity" if it is not finite."""
    return value if math.isfinite(value) else "infinity"
