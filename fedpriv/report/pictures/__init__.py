"""The pictures of runs, a module a kind. Each is drawn only where its data exist.

Colours are those of Okabe and Ito, which colour-blind people tell apart; lines differ in style and marker,
too. A panel has at most eight lines. A vertical axis that does not start at 0 is marked, and said to be cut.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from fedpriv.report.pictures import (
    epsilon_by_round,
    gain_matrix,
    noise_to_signal,
    population,
    score_by_epsilon,
    score_by_round,
    score_by_setting,
)
from fedpriv.report.sweep_results import Ended

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_KINDS = (
    score_by_epsilon,
    gain_matrix,
    population,
    score_by_setting,
    score_by_round,
    epsilon_by_round,
    noise_to_signal,
)
# The pictures by their files' names, each with its title and what draws it, or gives None.
KINDS: dict[str, tuple[str, Callable[[Sequence[Ended], str], Figure | None]]] = {
    kind.__name__.rpartition(".")[2].replace("_", "-"): (kind.TITLE, kind.draw) for kind in _KINDS
}


def drawn(ended: Sequence[Ended], about: str) -> Iterator[tuple[str, str, Figure]]:
    """(the file's name without its ending, the title, the figure) of each picture whose data exist."""
    for name, (title, draw) in KINDS.items():
        if ended and (figure := draw(ended, about)) is not None:
            yield name, title, figure
