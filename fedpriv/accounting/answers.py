"""The front door's accounting: ``fedpriv.account`` and ``fedpriv.calibrate``.

>>> answer = account(sampling_rate=0.01, steps=1000, noise_multiplier=1.0, delta=1e-5, methods=["pld", "rdp"])
>>> round(answer.epsilon, 2), answer.guarantees["rdp"].kind
(1.83, 'bound')
>>> round(calibrate(epsilon=1.0, delta=1e-5, sampling_rate=0.01, steps=1000).noise_multiplier, 2)
1.42
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

from fedpriv._internal import validation
from fedpriv.accounting import api, totals
from fedpriv.accounting.events import Event, Sampling
from fedpriv.accounting.methods.base import METHODS, PrivacyGuarantee
from fedpriv.accounting.methods.registry import epsilon as epsilon_of

SAMPLINGS = {sampling.sampler: sampling for sampling in Sampling}
_ARGUMENTS = ("sampling-rate", "noise-multiplier", "relative-noise")
_HEADER = ("method", "epsilon", "lower bound", "kind")


@dataclass(frozen=True, repr=False)
class Account:
    """The privacy loss of a schedule of releases, or of runs together.

    Attributes:
        delta: the delta of all epsilons.
        guarantees: {method: guarantee} for the methods that support the schedule.
        unsupported: {method: reason} for the other methods.
        assumptions: what must hold for the total of ledgers, in sentences.
        notes: what to know about the ledgers, in sentences.
    """

    delta: float
    guarantees: Mapping[str, PrivacyGuarantee]
    unsupported: Mapping[str, str] = field(default_factory=dict)
    assumptions: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def epsilon(self) -> float:
        """Epsilon by PLD, otherwise by the first requested method; an upper bound unless it is gdp-clt."""
        return (self.guarantees.get("pld") or next(iter(self.guarantees.values()))).epsilon

    def rows(self) -> list[tuple[str, str, str, str]]:
        """One row per method: (method, epsilon, lower bound, kind)."""
        rows = [
            (name, f"{g.epsilon:.4g}", "" if g.epsilon_lower is None else f"{g.epsilon_lower:.4g}", g.kind)
            for name, g in self.guarantees.items()
        ]
        return rows + [(name, "-", "", why) for name, why in self.unsupported.items()]

    def __repr__(self) -> str:
        table = [_HEADER, *self.rows()]
        widths = [max(len(line[column]) for line in table) for column in range(len(_HEADER))]
        lines = ["  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip() for line in table]
        return "\n".join([f"epsilon at delta {self.delta:g}", *lines, *self._sentences()])

    def _sentences(self) -> list[str]:
        return [*(f"assumed: {text}" for text in self.assumptions), *(f"NOTE: {text}" for text in self.notes)]

    def _repr_html_(self) -> str:
        lines = "".join(
            f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in self.rows()
        )
        head = "".join(f"<th>{name}</th>" for name in _HEADER)
        said = "".join(f"<p>{escape(text)}</p>" for text in self._sentences())
        return f"<p>epsilon at delta {self.delta:g}</p><table><tr>{head}</tr>{lines}</table>{said}"


@dataclass(frozen=True)
class Calibration:
    """A schedule that spends a budget and never more.

    Attributes:
        noise_multiplier: the noise's standard deviation over the clip norm; with ``relative_noise``, the
            common factor of all relative noises.
        steps: the number of releases.
        sampling_rate: the probability that a unit is in a cohort.
        epsilon: the spent epsilon, at most the budget's.
        delta: the budget's delta.
        method: the accounting method.
    """

    noise_multiplier: float
    steps: int
    sampling_rate: float
    epsilon: float
    delta: float
    method: str


def account(
    *,
    delta: float,
    steps: int | None = None,
    noise_multiplier: float | Sequence[float] | None = None,
    sampling_rate: float | None = None,
    sampler: str | None = None,
    relation: str | None = None,
    methods: str | Sequence[str] = tuple(METHODS),
    ledger: str | Path | Sequence[str | Path] = (),
    anchor: str | Path | None = None,
    anchor_command: str | None = None,
) -> Account:
    """Epsilon of a schedule of subsampled Gaussian releases, or of runs by their ledgers, by each method.

    Args:
        delta: in (0, 1).
        steps: T, the number of releases; by default the number of noise multipliers, where there are several.
        noise_multiplier: z, the standard deviation of the noise over the clip norm; or one for each release.
        sampling_rate: q, the probability that a unit is in a cohort; 1 or None with sampler everyone.
        sampler: poisson (the default), fixed-size or everyone; or what a ledger calls it.
        relation: add-remove or replace-one; None: replace-one for fixed-size cohorts, otherwise add-remove.
        methods: names of METHODS, or one of them. All are upper bounds, except for gdp-clt, which can
            understate.
        ledger: a run's ``ledger.jsonl`` in place of a schedule; several for the total of runs on the same
            data, whose assumptions are in the answer.
        anchor: the file of the ledger's anchor, where it is not at the place that the ledger names.
        anchor_command: the command of the ledgers' anchor, if it is one.

    Raises:
        ArgumentError: if an argument is out of range or missing, or if ledgers have different privacy units.
        LedgerError: if a ledger was changed, or cut at its end.
        UnsupportedEvent: if the only method does not support the schedule.

    >>> account(delta=1e-5, steps=1000, noise_multiplier=1.0, sampling_rate=0.01, methods=["rdp"])
    epsilon at delta 1e-05
    method  epsilon  lower bound  kind
    rdp     2.108                 bound
    """
    methods = [methods] if isinstance(methods, str) else methods
    with validation.python_names(_ARGUMENTS):
        for method in methods:
            validation.choice("methods", method, METHODS)
        paths = [ledger] if isinstance(ledger, str | Path) else list(ledger)
        total = totals.of_files(paths, anchor, anchor_command) if paths else None
        schedule = (sampling_rate, steps, noise_multiplier, sampler, relation)
        if total is None:
            events = _events(*schedule)
        elif schedule == (None,) * len(schedule):
            events = list(total.events)
        else:
            raise validation.fail("ledger", str(paths[0]), "be given without a schedule")
        by = functools.partial(total.epsilon if total else functools.partial(epsilon_of, events), delta)
        guarantees, unsupported = api.by_methods(methods, by)
    if total is None:
        return Account(delta, guarantees, unsupported)
    return Account(delta, guarantees, unsupported, total.assumptions, tuple(total.notes))


def calibrate(
    *,
    epsilon: float,
    delta: float,
    steps: int | None = None,
    sampling_rate: float | None = None,
    noise_multiplier: float | None = None,
    relative_noise: Sequence[float] | None = None,
    sampler: str = "poisson",
    relation: str | None = None,
    method: str = "pld",
) -> Calibration:
    """The noise, the number of releases, or the sampling rate that a budget affords: the omitted argument.

    Args:
        epsilon, delta: the budget.
        steps, sampling_rate, noise_multiplier: two of the three, as in :func:`account`; the third is
            computed.
        relative_noise: r_t for each release if the noise is computed; all of them are scaled by one factor.
        sampler, relation: as in :func:`account`.
        method: the accounting method that enforces the budget.

    Raises:
        ArgumentError: if an argument is out of range, if not exactly one of the three is omitted, or if
            nothing meets the budget.
        UnsupportedEvent: if the method does not support the schedule.

    >>> calibrate(epsilon=1.0, delta=1e-5, sampling_rate=0.01, noise_multiplier=1.5, method="rdp").steps
    975
    """
    everyone = SAMPLINGS.get(sampler, sampler) == Sampling.NONE
    rate = 1.0 if everyone and sampling_rate is None else sampling_rate
    given = {"steps": steps, "sampling_rate": rate, "noise_multiplier": noise_multiplier}
    missing = [name for name, value in given.items() if value is None]
    if len(missing) != 1:
        text = f"give exactly two of {', '.join(given)}; the third is computed ({len(missing)} are omitted)"
        raise validation.ArgumentError(text)
    with validation.python_names(_ARGUMENTS):
        validation.choice("method", method, METHODS)
        drawn = sampling_of(sampler, "sampler")
        kind = {"method": method, "sampler": drawn, "relation": relation or drawn.relation}
        if noise_multiplier is not None and relative_noise is not None:
            raise validation.fail("relative-noise", "given", "be left out where noise-multiplier is given")
        if noise_multiplier is None:
            assert steps is not None
            assert rate is not None
            found: dict[str, Any] = api.calibration(epsilon, delta, rate, steps, relative_noise, **kind)
        elif steps is None:
            assert rate is not None
            found = api.solve_steps(epsilon, delta, rate, noise_multiplier, **kind)
        else:
            found = api.solve_rate(epsilon, delta, steps, noise_multiplier, **kind)
    known: dict[str, Any] = {"scale": noise_multiplier, "steps": steps, "sampling_rate": rate}
    known |= found
    spent = float(known["epsilon"])
    return Calibration(known["scale"], known["steps"], known["sampling_rate"], spent, delta, method)


def sampling_of(sampler: str | None, argument: str) -> Sampling:
    """What a sampler does that is given by its name, or by a ledger's name of it, or not.

    >>> sampling_of("fixed-size", "sampler") is sampling_of("without-replacement", "sampler")
    True
    """
    name = sampler or Sampling.POISSON.sampler
    names = [*dict.fromkeys((*SAMPLINGS, *map(str, SAMPLINGS.values())))]
    return SAMPLINGS.get(name) or Sampling(validation.choice(argument, name, names))


def _events(
    rate: float | None,
    steps: int | None,
    noise: float | Sequence[float] | None,
    sampler: str | None,
    relation: str | None,
) -> list[Event]:
    if steps is None and isinstance(noise, Sequence):
        steps = len(noise)
    if steps is None or noise is None:
        key = "steps" if steps is None else "noise-multiplier"
        raise validation.fail(key, None, "be given, or a ledger")
    drawn = sampling_of(sampler, "sampler")
    if rate is None and drawn.samples:
        raise validation.fail("sampling-rate", rate, "be given, unless sampler is everyone")
    if not drawn.samples and rate not in (None, 1):
        raise validation.fail("sampling-rate", rate, "be left out, or 1, with sampler everyone")
    return api.schedule(1.0 if rate is None else rate, steps, noise, drawn, relation or drawn.relation)
