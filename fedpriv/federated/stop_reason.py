"""How a run ends: one word in its report and its results, and what is said of it.

>>> ending = StopReason("interrupted")
>>> ending == "interrupted", f"{ending}", ending.whole
(True, 'interrupted', False)
>>> StopReason.ROUNDS.sentence
'all rounds done'
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any


class StopReason(StrEnum):
    """How a run ended; a string, as JSON has it."""

    ROUNDS = "rounds"
    BUDGET = "budget"
    UNANSWERED = "unanswered"
    DIVERGED = "diverged"
    INTERRUPTED = "interrupted"
    FAILED = "failed"

    def __repr__(self) -> str:
        """The word, so that results show it as their report does."""
        return repr(self.value)

    @property
    def whole(self) -> bool:
        """Whether the run ended by itself."""
        return self in (StopReason.ROUNDS, StopReason.BUDGET)

    @property
    def sentence(self) -> str:
        """What is said of it after what the run reached."""
        return _SAID[self][0]

    @property
    def short(self) -> str:
        """The same in a few words."""
        return _SAID[self][1]


_SAID = {
    StopReason.ROUNDS: ("all rounds done", "all rounds"),
    StopReason.BUDGET: ("stopped before the release that would have passed the budget", "the budget"),
    StopReason.UNANSWERED: ("stopped: too few clients replied, again and again", "too few clients replied"),
    StopReason.DIVERGED: (
        "stopped: the model was no longer finite; a smaller learning-rate may help",
        "the model was no longer finite",
    ),
    StopReason.INTERRUPTED: ("interrupted; what was charged stays charged", "interrupted"),
    StopReason.FAILED: ("FAILED before its end; what was charged stays charged", "failed"),
}


_FAR, _HUGE = 100, 1e6  # times the smallest loss of a run; and of labels and tags, whatever it was before
_ADVICE = "a smaller learning-rate may help"


def divergence(ending: StopReason, metrics: Sequence[Mapping[str, Any]]) -> str:
    """What is to be said of a run whose last model's loss is not finite, or far above what it was; nothing
    where it is neither, or where its ending says so. The loss is that on the public test set.

    >>> divergence(StopReason.ROUNDS, [{"round": 6, "loss": 2.3}])
    ''
    """
    if not metrics or ending == StopReason.DIVERGED:
        return ""
    last = metrics[-1].get("loss", 0.0)
    if last is None:
        return f"the public test loss is not finite: the model has diverged; {_ADVICE}"
    smallest = min((loss for record in metrics if (loss := record.get("loss")) is not None), default=0.0)
    # Losses far below 1 may rise a hundredfold and be small; those of values have whatever unit they have.
    if last > max(1.0, _FAR * smallest):
        return f"the public test loss is {last:.3g} and was {smallest:.3g}: the model has diverged; {_ADVICE}"
    if last > _HUGE and "mse" not in metrics[-1]:
        return f"the public test loss is {last:.3g}: the model has diverged; {_ADVICE}"
    return ""
