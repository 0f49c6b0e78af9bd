"""An optimizer of the user's own in reports."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fedpriv._internal.validation import ArgumentError
from fedpriv.config.plan import make_plan
from fedpriv.config.schema import Config
from fedpriv.optimizers import AdaClip, PdaDpmd, PrivateOptimizer, adadp, dp2, dp_sgd
from fedpriv.optimizers.schedules import Constant
from fedpriv.optimizers.user import settings_of


def test_a_long_text_is_shortened_in_reports() -> None:
    given = SimpleNamespace(note="ab" * 2500, fits="c" * 200, short="d e")
    settings = settings_of(given)  # type: ignore[arg-type]
    assert settings == {"note": "ab" * 98 + "a...", "fits": "c" * 200, "short": "d e"}


@pytest.mark.parametrize(
    ("optimizer", "changes", "message"),
    [
        (dp2("rmsprop", 1.0, 1.0), {"adaptive-quantile": 0.5}, "adaptive-quantile is 0.5; it must be 0 with"),
        (AdaClip(dp_sgd(1.0, 1.0)), {"adaptive-quantile": 0.5}, "it must be 0 with"),
        (
            PdaDpmd(Constant(1.0), 1.0, lambda params, step: params, 5),
            {"regulariser": "l2"},
            "regulariser is 'l2'; it must be none with optimizer",
        ),
        (
            adadp(1.0, 1.0),
            {"level": "client", "unit": "example", "clients": 2, "silo-steps": 3},
            "silo-steps is 3; it must make whole steps of adadp (its step is several releases)",
        ),
    ],
)
def test_an_object_of_ours_refuses_what_it_refuses_by_name(
    optimizer: PrivateOptimizer, changes: dict[str, Any], message: str
) -> None:
    run = {"dataset": "digits", "clients": 1000, "sampling-rate": 0.1, "rounds": 6}
    make_plan(Config.parse(run), optimizer)
    with pytest.raises(ArgumentError, match=re.escape(message)):
        make_plan(Config.parse({**run, **changes}), optimizer)


def test_settings_that_are_not_given_have_the_constructors_defaults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_momentum.py").write_text(
        "class Own:\n    def __init__(self, learning_rate=0.02, momentum=0.7, clip_norm=0.3): ...\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    config = Config.parse({"optimizer": "own_momentum:Own", "clip-norm": 2.0})
    assert (config.learning_rate, config.momentum, config.clip_norm) == (0.02, 0.7, 2.0)
    assert Config.parse({"optimizer": "own_momentum:Own", "momentum": 0.0}).momentum == 0.0
    assert Config.parse(config.table()).momentum == 0.7
    assert Config.parse({"optimizer": "own_momentum:Missing"}).momentum == 0.0  # refused where it is built
