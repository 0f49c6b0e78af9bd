"""What the chart of a page draws: the scores of each run by round, and what a point tells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedpriv._internal.settings import shown_word
from fedpriv.config.schema import Config
from fedpriv.federated.stop_reason import StopReason
from fedpriv.mechanism.placement import PLACEMENTS
from fedpriv.report import comparison
from fedpriv.report.page.folders import Found
from fedpriv.report.summary import round_0
from fedpriv.report.sweep_results import telling
from fedpriv.tasks.metrics import shown


def runs(found: Found) -> list[dict[str, Any]]:
    """The runs, those without a report first.

    All of it is public: settings, scores on the public test set, and epsilons.
    """
    ended = found.runs
    configs = [*(run.config for run in found.unfinished), *(run.config for run in ended)]
    settings = comparison.differences(configs)
    keys = telling(settings)
    settings = [{key: own[key] for key in keys if key in own} for own in settings]
    going = [
        _run(str(run.folder), run.config, own, run.metrics, None)
        for run, own in zip(found.unfinished, settings, strict=False)
    ]
    return going + [
        _run(str(run.folder), run.config, own, [*round_0(run.report), *run.metrics], run.ended)
        for run, own in zip(ended, settings[len(going) :], strict=True)
    ]


def _run(
    folder: str,
    config: Config,
    own: Mapping[str, Any],
    records: Sequence[Mapping[str, Any]],
    ended: StopReason | None,
) -> dict[str, Any]:
    """One run. A score that is no number is None: the model has diverged."""
    measure = shown(records[-1] if records else {})
    keys = ("round", measure.key, "epsilon")
    points = [[_number(record.get(key)) for key in keys] for record in records]
    named = {**own} or {"optimizer": config.optimizer}
    if config.seed >= 0:
        named["seed"] = config.seed
    return {
        "folder": folder,
        "settings": {key: shown_word(value) for key, value in named.items()},
        "rounds": config.rounds,
        "measure": measure.words,
        "percent": measure.fraction,
        "budget": config.epsilon if PLACEMENTS[config.placement].adds_noise else None,
        "ended": None if ended is None else ended.short,
        "points": points,
    }


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) else None
