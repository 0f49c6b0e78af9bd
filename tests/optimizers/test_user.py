"""An optimizer of the user's own in reports."""

from __future__ import annotations

from types import SimpleNamespace

from fedpriv.optimizers.user import settings_of


def test_a_long_text_is_shortened_in_reports() -> None:
    given = SimpleNamespace(note="ab" * 2500, fits="c" * 200, short="d e")
    settings = settings_of(given)  # type: ignore[arg-type]
    assert settings == {"note": "ab" * 98 + "a...", "fits": "c" * 200, "short": "d e"}
