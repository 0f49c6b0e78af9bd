"""The words that outputs of a run carry: that it is not private, and why, and where its noise is added."""

from __future__ import annotations

from fedpriv.config import Config

NOT_PRIVATE = "reproducible, not private"
NO_NOISE = "not private: no noise is added"


def remark(config: Config) -> str | None:
    """What every output of a run must carry: that it is not private, and why; None where it is.

    >>> remark(Config.parse({"seed": 7}))
    'reproducible, not private (seed 7)'
    """
    notes = []
    if config.placement == "none":
        notes.append(NO_NOISE)
    if config.seed >= 0:
        notes.append(f"{NOT_PRIVATE} (seed {config.seed})")
    return "; ".join(notes) or None


def noise(placement: str) -> str:
    """The placement in words.

    >>> noise("none"), noise("central")
    ('no noise', 'central noise')
    """
    return f"{'no' if placement == 'none' else placement} noise"
