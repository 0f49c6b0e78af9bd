"""What would make a run's rounds cheaper, by what stands out of its figures."""

from __future__ import annotations

import math
from collections.abc import Iterator

from fedpriv._internal import hardware
from fedpriv.bench.figures import Figures
from fedpriv.config.plan import Plan
from fedpriv.tasks.metrics import counted

_MUCH = 0.2  # of a round, from which a part is worth a word
_LITTLE = 0.05  # of a round, which evaluations may take
_FASTER = 0.9  # of the time, below which another setting is worth a word
_WORTH_ACTORS = 0.02  # seconds of clipped sum, from which several processes gain more than they cost


def advise(plan: Plan, figures: Figures) -> tuple[str, ...]:
    """Sentences for whoever set the run up, none where nothing stands out."""
    return (*_of_sums(figures), *_of_actors(plan, figures), *_of_shares(plan, figures))


def _of_sums(figures: Figures) -> Iterator[str]:
    compared = figures.compared
    if compared.by_rows:
        yield (
            f"every gradient is formed, since {compared.by_rows}: without that a round would take less "
            "memory, and the clipped sum a fraction of its time"
        )
    for setting, seconds in compared.instead.items():
        if seconds < _FASTER * compared.clipped:
            less = ", with fewer digits in its passes" if setting.startswith("precision") else ""
            yield f"{setting} makes the clipped sum {compared.clipped / seconds:.1f} times as fast{less}"


def _of_actors(plan: Plan, figures: Figures) -> Iterator[str]:
    here, actors, threads = hardware.usable(), figures.actors, figures.threads
    long = figures.parts["clipped sum"] > _WORTH_ACTORS
    expected = plan.mechanism.sampler.expected_size
    if not actors:
        if here > 1 and long and figures.device == "cpu":
            yield f"one process computes, and this machine has {here} cores: engine=ray uses them"
        return
    if (shards := math.ceil(expected / plan.chunk_size)) < actors:
        each = max(1, math.ceil(expected / actors))
        yield f"{actors} actors share {counted(shards, 'shard')} a round: chunk-size={each} uses them all"
    if figures.device != "cpu":
        return
    who = f"{counted(actors, 'actor')} of {counted(threads, 'thread')}"
    if actors * threads > here:
        yield f"{who} compete for {counted(here, 'core')}: fewer take less memory"
    elif here // threads > actors and long:
        idle = here - actors * threads
        yield f"{who} leave {counted(idle, 'core')} idle: actors={here // threads}"


def _of_shares(plan: Plan, figures: Figures) -> Iterator[str]:
    share = figures.shares
    if share["transport"] > _MUCH:
        yield (
            f"transport takes {share['transport']:.0%} of a round: larger cohorts, fewer actors or "
            "engine=in-process have less of it"
        )
    if share["data"] > _MUCH:
        yield (
            f"making examples takes {share['data']:.0%} of a round: a data set that is not made on the fly "
            "costs less, and more actors share the work"
        )
    if share["accounting"] > _MUCH:
        yield (
            f"accounting takes {share['accounting']:.0%} of a round, most of it waiting for the ledger to be "
            f"on the disk of {figures.ledger}: an output folder on a faster one helps"
        )
    if figures.evaluation > _MUCH * plan.config.evaluate_every * figures.round:
        rounds = round(figures.evaluation / (_LITTLE * figures.round))
        part = figures.evaluation / plan.config.evaluate_every / figures.round
        yield f"evaluations add {part:.0%} to a round: with evaluate-every={rounds} they add {_LITTLE:.0%}"
