"""How a run ends: one word for its report and results, and its description.

>>> ending = StopReason("interrupted")
>>> ending == "interrupted", f"{ending}", ending.complete
(True, 'interrupted', False)
>>> StopReason.ROUNDS.sentence
'all rounds done'
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, Self

ADVICE = "a smaller learning-rate may help"


class StopReason(StrEnum):
    """How a run ended, as a string for JSON.

    Attributes:
        sentence: the description that follows the run's score.
        short: a shorter description.
        complete: whether the run ended on its own.
        resumable: whether such a run has rounds and budget left.
    """

    sentence: str
    short: str
    complete: bool
    resumable: bool

    def __new__(
        cls, word: str, sentence: str = "", short: str = "", complete: bool = False, resumable: bool = False
    ) -> Self:
        """The member whose value is ``word``."""
        member = str.__new__(cls, word)
        member._value_ = word
        member.sentence, member.short = sentence, short
        member.complete, member.resumable = complete, resumable
        return member

    ROUNDS = "rounds", "all rounds done", "all rounds", True
    BUDGET = (
        "budget",
        "stopped before the release that would have passed the budget",
        "the budget",
        True,
    )
    UNANSWERED = (
        "unanswered",
        "stopped: too few clients replied, again and again",
        "too few clients replied",
        False,
        True,
    )
    DIVERGED = (
        "diverged",
        f"stopped: the model was no longer finite; {ADVICE}",
        "the model was no longer finite",
    )
    INTERRUPTED = "interrupted", "interrupted; what was charged stays charged", "interrupted", False, True
    FAILED = "failed", "FAILED before its end; what was charged stays charged", "failed", False, True

    def __repr__(self) -> str:
        """The word, as in reports."""
        return repr(self.value)


_ENDED = "stopped: "  # how the last line of a ServerApp's log begins


def end_line(reason: StopReason, more: str) -> str:
    """The last line of a ServerApp's log, from which :func:`reason_of` reads how the run ended."""
    return f"{_ENDED}{reason}{more}"


def reason_of(line: str) -> StopReason | None:
    """How a run ended, by a line of its ServerApp's log; None for another line.

    >>> reason_of(end_line(StopReason.BUDGET, "; results are in runs/1"))
    'budget'
    """
    word = line.removeprefix(_ENDED).partition(";")[0]
    return StopReason(word) if line.startswith(_ENDED) and word in set(StopReason) else None


_DIVERGED_FACTOR = 100  # a loss above this factor times the run's smallest loss means divergence
_DIVERGED_LOSS = 1e6  # a larger loss of a classifier means divergence, also without a smaller one before


def divergence(ending: StopReason, metrics: Sequence[Mapping[str, Any]]) -> str:
    """A note about a run whose last public test loss is not finite, or far above its smallest one.

    It is empty for other runs, and for those whose stop reason already says it.

    >>> divergence(StopReason.ROUNDS, [{"round": 6, "loss": 2.3}])
    ''
    """
    if not metrics or ending == StopReason.DIVERGED:
        return ""
    last = metrics[-1].get("loss", 0.0)
    if last is None:
        return f"the public test loss is not finite: the model has diverged; {ADVICE}"
    smallest = min((loss for record in metrics if (loss := record.get("loss")) is not None), default=0.0)
    # A loss below 1 is small even after a hundredfold rise; the scale of a squared error is arbitrary.
    if last > max(1.0, _DIVERGED_FACTOR * smallest):
        return f"the public test loss is {last:.3g} and was {smallest:.3g}: the model has diverged; {ADVICE}"
    if last > _DIVERGED_LOSS and "mse" not in metrics[-1]:
        return f"the public test loss is {last:.3g}: the model has diverged; {ADVICE}"
    return ""
