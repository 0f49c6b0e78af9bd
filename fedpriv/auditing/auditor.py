"""An empirical audit: does a run leak more about its units than its ledger claims?

The configured federation runs with a canary in place of every unit. A fair coin decides whether each canary
is present. A canary is an example with a gradient of the maximal norm in its own coordinate, so canaries do
not interfere. Everything else is the run's own code: sampling, clipping, queries, noise, optimizer, ledger.
Then the optimal adversary guesses for each canary whether it was present, by the likelihood ratio of a
sampled Gaussian. It sees all releases and knows everything except the coins, the cohorts and the noise.
Further adversaries do the same under the assumption of less noise. The best adversary counts, at a confidence
that holds for all of them together.

The number of right guesses is used in two ways:

- **Test of the claim.** The ledger's events allow a guess to be right with a probability of at most (1 + A) /
  2, where A is the total-variation distance between the releases of neighbours
  (:func:`fedpriv.accounting.advantage`). If the releases are as claimed, the coordinates are independent and
  the number of right guesses is binomial. A number that is too large, at a given confidence, is a violation.
  The factor on all noise at which the observed number would be exactly the allowed one gives a measured
  epsilon.
- **Many runs.** A small run has too few units for one attack. It is repeated, with a guess about one coin in
  each run, so that guesses are independent whatever the mechanism does.
- **Lower bound from one run.** For any mechanism, (epsilon, delta)-differential privacy bounds the number of
  right guesses about m coins (:mod:`fedpriv.auditing.one_run`). This gives a lower bound on epsilon that
  needs no assumption on the mechanism but is far from tight.

Such an adversary assumes independent noise and fresh cohorts. The auditor, who knows everything, also
subtracts the exact sums and tests the residuals (:mod:`fedpriv.auditing.noise_tests`). Noise that is too
small, missing, shared or reused, and cohorts that are too large or repeated, are violations, too.

An audit can find a mechanism that protects less than it claims. It cannot prove that a mechanism protects.

>>> from fedpriv.config.schema import Config
>>> settings = {"clients": 2000, "sampler": "everyone", "sampling-rate": 1.0, "rounds": 2, "epsilon": 8.0}
>>> finding = audit(Config.parse({**settings, "seed": 0}))
>>> finding.violated, finding.proved < finding.measured < 2 * finding.claimed
(False, True)
"""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fedpriv._internal import run_files, validation
from fedpriv.accounting import Ledger
from fedpriv.auditing import claims
from fedpriv.auditing.finding import Finding
from fedpriv.auditing.judgement import Attack, joined, judged
from fedpriv.auditing.neighbours import Neighbours
from fedpriv.auditing.nodes import NodeCoins, Owner, nodes_plan, on_nodes, wrong_ledgers
from fedpriv.auditing.noise_tests import Residuals
from fedpriv.auditing.silos import watched_silos
from fedpriv.auditing.subject import (
    Subject,
    canaries_plan,
    own_plan,
    require_auditable,
    with_canaries,
    with_own_data,
)
from fedpriv.auditing.views import AUTO, View, view_of
from fedpriv.auditing.watched import Watched
from fedpriv.config.plan import Plan
from fedpriv.config.schema import Config
from fedpriv.federated.engine import Engine
from fedpriv.federated.loop import Outcome, Progress, run
from fedpriv.federated.stop_reason import StopReason
from fedpriv.node import silo
from fedpriv.rng import Key
from fedpriv.runs.budget import RunAccountant

_PROBED_SILOS = 2  # silos in which steps are repeated on neighbouring data


def audit(
    config: Config,
    canaries: int = 0,
    confidence: float = 0.99,
    observe: Callable[[int], None] = lambda rounds: None,
    view: str = AUTO,
    runs: int = 1,
) -> Finding:
    """Audits a configuration: runs it with canaries as units, and evaluates the guesses about them.

    Args:
        config: a run with noise. Its data and model are not used.
        canaries: the number of canaries, at the same sampling rate; 0: the number of the run's units, but at
            most 100,000, 5,000 if clients make local steps, or 2,000 if each message is seen.
        confidence: of the verdict, in (0, 1).
        observe: called after each round with the number of rounds so far.
        view: what the adversary sees (:class:`fedpriv.auditing.views.View`); "auto" is the server's
            view under local noise, and otherwise that of the released models.
        runs: how often a small run is repeated, with a guess about one canary each time; 1: one run, with
            guesses about all of them.

    Raises ArgumentError for a run without noise, with public examples, or that claims nothing of this view.
    """
    return audit_plan(canaries_plan(config, canaries, view_of(config, view)), confidence, observe, view, runs)


def audit_plan(
    plan: Plan,
    confidence: float = 0.99,
    observe: Callable[[int], None] = lambda rounds: None,
    view: str = AUTO,
    runs: int = 1,
) -> Finding:
    """Audits a plan, for example one with a custom optimizer, with one canary for each of its units.

    Args:
        plan: with noise.
        confidence, observe, view, runs: as in :func:`audit`.

    An interrupted run is judged by the events in its ledger.

    Raises ArgumentError as :func:`audit` does.
    """
    validation.between("confidence", confidence, 0, 1)
    require_auditable(plan.config)
    validation.integer("runs", runs, minimum=1)
    seen = view_of(plan.config, view)
    if runs > 1:
        subjects = (with_canaries(plan, seen, key) for key in _keys(plan, runs))
        return _finding_of_many(subjects, confidence, observe)
    return _finding(with_canaries(plan, seen, _key(plan)), confidence, observe)


def audit_own_data(
    config: Config,
    make_engine: Callable[[Config], Any],
    canaries: int = 0,
    confidence: float = 0.99,
    observe: Callable[[int], None] = lambda rounds: None,
    view: str = AUTO,
    runs: int = 1,
) -> Finding:
    """Audits a run with its own data, model and engine: a coin leaves out, or replaces, some of its units.

    Args:
        config: a run with noise.
        make_engine: starts the engine that the configuration names.
        canaries: the number of units whose coins are guessed; 0: up to 200, and fewer for large models.
        confidence, observe, view: as in :func:`audit`.
        runs: how often a small run is repeated in this process, with one coin each time, for a unit that is
            drawn anew.

    Raises ArgumentError for a run without noise, on nodes with their own data, or that claims nothing of this
    view; and as :func:`fedpriv.simulate` does.
    """
    validation.between("confidence", confidence, 0, 1)
    validation.integer("runs", runs, minimum=1)
    seen, plan = view_of(config, view), own_plan(config, canaries)
    if runs > 1:
        _require_repeatable(config, canaries)
        subjects = (with_own_data(plan, seen, key, 1, make_engine) for key in _keys(plan, runs))
        return _finding_of_many(subjects, confidence, observe)
    subject = with_own_data(plan, seen, _key(plan), canaries, make_engine)
    try:
        return _finding(subject, confidence, observe)
    finally:
        subject.close()


def audit_nodes(
    config: Config,
    coins: NodeCoins,
    owners: Sequence[Owner],
    engine: Engine | silo.SiloEngine,
    run: int,
    confidence: float = 0.99,
    observe: Callable[[int], None] = lambda rounds: None,
    view: str = AUTO,
) -> Finding:
    """Audits a run on nodes that own their data, all of one owner, who left units out of it by coins.

    Args:
        config: a run with noise, of nodes that own their data.
        coins: as :func:`fedpriv.auditing.nodes.drawn` has drawn them, and as the nodes' audit files are.
        owners: the nodes' configurations, by partition. The auditor reads the data files, too. At the client
            level nodes note their steps beside their audit files.
        engine: asks the nodes; each release is asked for once. It must raise an error where a node fails.
        run: the number under which the nodes charge the run to their ledgers.
        confidence, observe, view: as in :func:`audit`.

    Steps on neighbouring data are repeated by the same code in this process.

    Raises ArgumentError as :func:`fedpriv.auditing.nodes.drawn` does, and DataError for a node's notes that
    are not there.
    """
    validation.between("confidence", confidence, 0, 1)
    plan, seen = nodes_plan(config, view), view_of(config, view)
    subject = on_nodes(plan, seen, _key(plan), coins, owners, engine)
    found = _finding(subject, confidence, observe)
    if found.stopped != StopReason.ROUNDS:
        return found  # a node may have charged what was not answered
    return replace(found, wrong_ledgers=wrong_ledgers(plan, owners, run))


def _key(plan: Plan) -> Key:
    return Key.of(plan.config.asked_seed if plan.config.seed >= 0 else secrets.randbits(128))


def _keys(plan: Plan, runs: int) -> list[Key]:
    """A key of its own for each run."""
    return [Key.of(int(seed)) for seed in _key(plan).generator("audit").integers(2**63, size=runs)]


def _require_repeatable(config: Config, canaries: int) -> None:
    """Raises ArgumentError for what an audit of many runs cannot repeat."""
    if canaries > 1:
        hint = "of many runs each has one unit with a coin"
        raise validation.fail("canaries", canaries, "be 0 or 1 with several runs", hint)
    if not config.in_process:
        hint = "other processes would repeat the noise of a seed"
        raise validation.fail("engine", config.engine, "be in-process with several runs", hint)


def _finding(subject: Subject, confidence: float, observe: Callable[[int], None]) -> Finding:
    """Runs the subject and evaluates the guesses."""
    return judged(subject, _run(subject, observe), confidence)


def _finding_of_many(
    subjects: Iterable[Subject], confidence: float, observe: Callable[[int], None]
) -> Finding:
    """Runs subjects that differ in their keys alone, and evaluates a guess about one coin of each."""
    runs = list[Attack]()
    for number, subject in enumerate(subjects):
        found = _run(subject, observe, probed=not number)
        coin = number % len(subject.there)  # whatever the coins say
        runs.append(replace(found, scores=found.scores[:, [coin]], there=subject.there[[coin]]))
        if found.stopped is StopReason.INTERRUPTED:
            break
    return judged(subject, joined(runs), confidence)


def _run(subject: Subject, observe: Callable[[int], None], probed: bool = True) -> Attack:
    """Runs the subject; ``probed`` says whether steps are repeated on neighbouring data, too."""
    plan, start = subject.plan, subject.start
    silos = range(plan.config.clients) if plan.by_silo else (None,)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / run_files.LEDGER
        with Ledger.create(path, {}) as ledger:
            budget_gate = RunAccountant(plan, ledger, path)
            charged = claims.Charged(budget_gate, path)
            watched = [Watched.over(subject, charged, number) for number in silos]
            outcome = _loop(subject, watched, lambda progress: observe(progress.round))
        for one in watched:
            one.finish()
        events = budget_gate.charged_on_disk().events
    if subject.view is View.LAST_MODEL and watched[0].first:
        watched[0].score_change((outcome.state.output.double() - start.double()).cpu().numpy())
    scores, residuals = np.concatenate([one.scores for one in watched], axis=1), watched[0].residuals
    tested = [watched[0].messages]
    if watched[0].protocol is not None:
        watched[0].protocol.probe()
        tested.append(watched[0].protocol.tests)
    for tests in (*tested, *(one.residuals for one in watched[1:])):
        residuals.join(tests)
    if sum(event.count for event in events) < outcome.releases:
        residuals.fault("a release that is not in the ledger")
    for one in watched[: _PROBED_SILOS if probed else 0]:
        _compare_neighbours(subject, one, residuals)
    # What one unit adds depends on the others, so that guesses about units of one run are not independent.
    independent, lone = not subject.own_data, watched[0].compares and len(subject.there) == 1
    return Attack(scores, subject.there, residuals, events, outcome.stopped, independent, lone=lone)


def _loop(subject: Subject, watched: Sequence[Watched], observe: Callable[[Progress], None]) -> Outcome:
    """The run's own loop with observed optimizers and engines."""
    plan, key, charged = subject.plan, subject.key, watched[0].charged
    if plan.by_silo:
        return silo.run(plan, subject.start, watched_silos(subject, watched), charged, observe)
    mechanism = replace(plan.mechanism, optimizer=watched[0])
    return run(mechanism, subject.start, watched[0], charged, key, plan.cohorts(key), observe)


def _compare_neighbours(subject: Subject, watched: Watched, residuals: Residuals) -> None:
    """Repeats some steps of the run on neighbouring data."""
    own = subject.key if watched.silo is None else subject.key.child("silo", watched.silo)
    units = subject.units.in_steps()
    neighbours = Neighbours(subject, units, own, watched.inner, watched.silo)
    for kept in watched.kept:
        for found in neighbours.faults(kept.state, kept.releases):
            residuals.fault(found)
        residuals.take(neighbours.few_parties(kept.state, kept.releases))
