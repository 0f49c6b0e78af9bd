"""Ended runs whose reports are made up, for tests of pictures and tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedpriv.config.schema import Config
from fedpriv.report.comparison import Run
from fedpriv.report.summary import CHANCE, NOISE_TO_SIGNAL
from fedpriv.report.sweep_results import Ended

MODELS = "who sees the released models"


def ended(score: float | None, epsilon: float = 3.0, **settings: Any) -> Ended:
    """A cell with this last score; keys in capitals change what its epsilon means."""
    meaning = {key: settings.pop(key) for key in list(settings) if key.isupper()}
    budget = {"epsilon": epsilon, "delta": meaning.get("DELTA", 1e-5), "held by": meaning.get("HELD", "pld")}
    view = {"against": meaning.get("AGAINST", MODELS), "gates the budget": True, "delta": budget["delta"]}
    noise = settings.get("placement") != "none"
    privacy = {
        "unit": meaning.get("UNIT", "client: a client with its single example"),
        "relation": meaning.get("RELATION", "add-remove"),
        "budget": budget if noise else None,
        "views": [view | {"epsilon": {budget["held by"]: {"epsilon": epsilon, "kind": "bound"}}}]
        if noise
        else [],
    }
    if "RATIOS" in meaning:
        privacy[NOISE_TO_SIGNAL] = meaning["RATIOS"]
    result: dict[str, Any] = {
        "stopped": "rounds",
        "resumed after rounds": [],
        "rounds": 20,
        CHANCE: meaning.get("CHANCE"),
    }
    records = [
        {"round": n, "accuracy": score, "epsilon": epsilon * n / 20 if noise else None} for n in (7, 10, 20)
    ]
    config = Config.parse({"rounds": 20, "epsilon": epsilon, **settings})
    report = {"privacy": privacy, "result": result, "remark": None}
    if "seed" not in settings:
        settings["seed"] = -1
    return Ended(
        {"epsilon": epsilon, **settings},
        Run(meaning.get("FOLDER", Path("x")), config, tuple(records), report),
    )


def texts(figure: Any) -> str:
    return "\n".join(text.get_text() for text in figure.texts)


def labels(figure: Any) -> list[list[str]]:
    return [[text.get_text() for text in axes.get_legend().get_texts()] for axes in figure.axes]
