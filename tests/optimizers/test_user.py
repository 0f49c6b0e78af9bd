"""An optimizer of the user's own in reports."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from fedpriv.config.schema import Config
from fedpriv.optimizers.user import settings_of


def test_a_long_text_is_shortened_in_reports() -> None:
    given = SimpleNamespace(note="ab" * 2500, fits="c" * 200, short="d e")
    settings = settings_of(given)  # type: ignore[arg-type]
    assert settings == {"note": "ab" * 98 + "a...", "fits": "c" * 200, "short": "d e"}


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
