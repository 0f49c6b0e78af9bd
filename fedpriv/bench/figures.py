"""The measurements of a benchmark."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

PARTS = ("sampling", "data", "clipped sum", "transport", "noise", "update", "accounting")

Lap = Mapping[str, float]  # seconds of one round by part, with the total as ``round``


@dataclass(frozen=True)
class Comparison:
    """Gradients over the expected number of examples of a cohort, or fewer, in one process.

    Attributes:
        examples, units: the number of examples and of their units.
        ordinary: seconds of an ordinary gradient: one forward and one backward pass over all examples.
        clipped: seconds of the run's clipped sum over them, with the run's queries (weighted by their
            frequency), client computation and client sizes.
        by_rows: the reason why every gradient is formed; empty with ghost clipping.
        alone: whether units are computed one by one, because their bits depend on their places in a batch.
        instead: seconds of the clipped sum with another setting, by ``key=value``; tried on a GPU only.
    """

    examples: int
    units: int
    ordinary: float
    clipped: float
    by_rows: str
    alone: bool
    instead: Mapping[str, float]


@dataclass(frozen=True)
class Figures:
    """The measurements; times are medians in seconds.

    Attributes:
        shares: the shares of a round by PARTS, which sum to 1: scaled medians of each round's shares. With
            several nodes, data and clipped sum are the slowest node's.
        round: seconds of a whole round.
        evaluation: seconds of an evaluation, including the files that it writes.
        compared: clipped sums compared with ordinary gradients.
        examples_per_second: the expected examples of a cohort per second of ``round``.
        device: the device of the actors, or of this process if there are none.
        actors, threads: the number of actors (0: this process computes), and threads per actor.
        memory, actors_memory: peak memory in bytes of this process, and of all actors together; 0 if the
            system does not report it.
        ledger: the folder of the ledger.
        advice: advice for faster rounds.
    """

    shares: Mapping[str, float]
    round: float
    evaluation: float
    compared: Comparison
    examples_per_second: float
    device: str
    actors: int
    threads: int
    memory: int
    actors_memory: int
    ledger: str
    advice: tuple[str, ...] = ()

    @property
    def parts(self) -> dict[str, float]:
        """Seconds of a round by PARTS, which add up to ``round``."""
        return {part: share * self.round for part, share in self.shares.items()}

    @property
    def overhead(self) -> float:
        """The share of a round outside the clipped sum, in [0, 1]."""
        return 1 - self.shares["clipped sum"]


def split(lap: Lap) -> dict[str, float]:
    """A round's seconds by PARTS.

    Noise is the parties' noise, which nodes draw while they answer, plus the remaining time, in which the
    server waits for its noise and adds it.
    """
    made, gathered = lap.get("data", 0.0), lap["gather"]
    answered = lap.get("answer", gathered)
    added = min(lap.get("party noise", 0.0), max(0.0, answered - made))
    parts = {
        "sampling": lap["sampling"],
        "data": made,
        "clipped sum": max(0.0, answered - made - added),
        "transport": max(0.0, gathered - answered),
        "update": lap["update"],
        "accounting": lap["accounting"],
    }
    return {**parts, "noise": added + max(0.0, lap["round"] - added - sum(parts.values()))}


def shares(splits: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The median over rounds of each part's share of its round, scaled so that they sum to 1."""
    medians = {part: statistics.median(one[part] / sum(one.values()) for one in splits) for part in splits[0]}
    return {part: share / sum(medians.values()) for part, share in medians.items()}
