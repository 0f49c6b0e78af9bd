"""What a benchmark of a run says."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

PARTS = ("sampling", "data", "clipped sum", "transport", "noise", "update", "accounting")

Lap = Mapping[str, float]  # seconds of one round by what the watch counted, with the whole as ``round``


@dataclass(frozen=True)
class Comparison:
    """Gradients over as many examples as a cohort is expected to hold, or fewer, in one process.

    Attributes:
        examples, units: how many examples, of how many units.
        ordinary: seconds of an ordinary gradient: one forward and one backward pass over all of them.
        clipped: seconds of the run's own sum over them: its queries, by how often a run asks each, what its
            clients compute, and the sizes that its clients have.
        by_rows: why the model is summed by forming every gradient; empty where it is not.
        instead: seconds of that sum with another setting, by ``key=value``; tried on a GPU only.
    """

    examples: int
    units: int
    ordinary: float
    clipped: float
    by_rows: str
    instead: Mapping[str, float]


@dataclass(frozen=True)
class Figures:
    """What was measured; times are medians in seconds.

    Attributes:
        parts: seconds of a round by PARTS. Where nodes work at once, data and clipped sum are the slowest's.
        shares: the parts of a round by PARTS, which add up to 1: medians of the rounds' own.
        round: seconds of a whole round.
        evaluation: seconds of an evaluation, with the files that are written then.
        compared: clipped sums beside ordinary gradients.
        examples_per_second: of the expected cohort, by ``round``.
        device: where actors compute, or this process without them.
        actors, threads: how many actors (0: this process computes), and threads of each.
        memory, actors_memory: bytes that this process, and all actors together, took at most; 0 where the
            system does not say.
        ledger: the folder on whose disk the ledger was written.
        advice: what would make rounds cheaper.
    """

    parts: Mapping[str, float]
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
    def overhead(self) -> float:
        """The part of a round outside the clipped sum, in [0, 1]."""
        return 1 - self.shares["clipped sum"]


def split(lap: Lap) -> dict[str, float]:
    """A round's seconds by PARTS.

    Noise is what is left, since the server's is drawn meanwhile, awaited and added; and what parties add,
    which nodes draw while they answer.
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
    """The medians of the parts' shares of their own rounds, scaled so that they add up to 1.

    A quotient of two medians would be of two rounds, and could leave more, or less, than the others take.
    """
    medians = {part: statistics.median(one[part] / sum(one.values()) for one in splits) for part in splits[0]}
    return {part: share / sum(medians.values()) for part, share in medians.items()}
