"""The command line: ``fedpriv simulate | train | resume | compare | bench | account | calibrate | data``.

Exit codes: 0 a run ended (also at its budget, or on Ctrl-C with a valid folder), 1 something failed
while running, 2 the request was refused before any work started.
"""

from __future__ import annotations

import logging

from fedpriv.cli import account, bench, data, resume, simulate, train  # each adds its commands to the app
from fedpriv.cli.app import app

__all__ = ["account", "app", "bench", "data", "main", "resume", "simulate", "train"]


def main() -> None:
    """The ``fedpriv`` command."""
    logging.basicConfig(level=logging.WARNING)
    app()
