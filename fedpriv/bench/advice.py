"""Advice that makes a run's rounds faster, based on its measurements."""

from __future__ import annotations

import math
from collections.abc import Iterator

from fedpriv._internal import hardware
from fedpriv.bench.figures import Figures
from fedpriv.clipping.invariance import ALONE
from fedpriv.config.plan import Plan
from fedpriv.tasks.metrics import counted

_LARGE_SHARE = 0.2  # a part of a round above this share gets advice
_EVALUATION_SHARE = 0.05  # the advised share of evaluations
_FASTER = 0.9  # another setting is advised if it takes less than this share of the time
_WORTH_ACTORS = 0.02  # seconds of a clipped sum above which several processes are faster than one


def advise(plan: Plan, figures: Figures) -> tuple[str, ...]:
    """Sentences of advice; empty if there is none."""
    return (*_of_sums(figures), *_of_actors(plan, figures), *_of_shares(plan, figures))


def _of_sums(figures: Figures) -> Iterator[str]:
    compared = figures.compared
    if compared.by_rows:
        yield (
            f"every gradient is formed, because {compared.by_rows}: ghost clipping would need less memory "
            "and a fraction of the clipped sum's time"
        )
    if compared.alone:
        yield ALONE
    for setting, seconds in compared.instead.items():
        if seconds < _FASTER * compared.clipped:
            less = ", with passes of lower precision" if setting.startswith("precision") else ""
            yield f"{setting} makes the clipped sum {compared.clipped / seconds:.1f} times as fast{less}"


def _of_actors(plan: Plan, figures: Figures) -> Iterator[str]:
    here, actors, threads = hardware.usable(), figures.actors, figures.threads
    long = figures.parts["clipped sum"] > _WORTH_ACTORS
    expected = plan.mechanism.sampler.expected_size
    if not actors:
        if here > 1 and long and figures.device == "cpu":
            yield f"one process computes, but this machine has {here} cores: engine=ray uses them"
        return
    if (shards := math.ceil(expected / plan.chunk_size)) < actors:
        each = max(1, math.ceil(expected / actors))
        yield f"{actors} actors share {counted(shards, 'shard')} per round: chunk-size={each} uses all actors"
    if figures.device != "cpu":
        return
    who = f"{counted(actors, 'actor')} of {counted(threads, 'thread')}"
    if actors * threads > here:
        yield f"{who} compete for {counted(here, 'core')}: fewer actors need less memory"
    elif here // threads > actors and long:
        idle = here - actors * threads
        yield f"{who} leave {counted(idle, 'core')} idle: actors={here // threads}"


def _of_shares(plan: Plan, figures: Figures) -> Iterator[str]:
    share = figures.shares
    if share["transport"] > _LARGE_SHARE:
        yield (
            f"transport takes {share['transport']:.0%} of a round: larger cohorts, fewer actors or "
            "engine=in-process reduce it"
        )
    if share["data"] > _LARGE_SHARE:
        yield (
            f"making examples takes {share['data']:.0%} of a round: a data set that is not generated during "
            "the run is faster, and more actors share the work"
        )
    if share["accounting"] > _LARGE_SHARE:
        yield (
            f"accounting takes {share['accounting']:.0%} of a round, mostly to write the ledger to the disk "
            f"of {figures.ledger}: use an output folder on a faster disk"
        )
    if figures.evaluation > _LARGE_SHARE * plan.config.evaluate_every * figures.round:
        rounds = round(figures.evaluation / (_EVALUATION_SHARE * figures.round))
        part, less = figures.evaluation / plan.config.evaluate_every / figures.round, _EVALUATION_SHARE
        yield f"evaluations add {part:.0%} to a round: with evaluate-every={rounds} they add {less:.0%}"
