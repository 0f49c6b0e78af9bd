"""The command line: ``fedpriv simulate | train | compare | sweep | report | audit | deploy | ...``.

Exit codes: 0 a run ended (also at its budget, or on Ctrl-C with a valid folder), 1 something failed
while running, 2 the request was refused before any work started.
"""

from __future__ import annotations

import logging

from fedpriv._internal.allocator import tune_allocator

# Each adds its commands to the app.
from fedpriv.cli import (
    account,
    audit,
    bench,
    compare,
    data,
    deploy,
    node,
    optimizers,
    report,
    resume,
    simulate,
    sweep,
    train,
    view,
)
from fedpriv.cli.app import app

__all__ = [
    "account",
    "app",
    "audit",
    "bench",
    "compare",
    "data",
    "deploy",
    "main",
    "node",
    "optimizers",
    "report",
    "resume",
    "simulate",
    "sweep",
    "train",
    "view",
]


def main() -> None:
    """The ``fedpriv`` command."""
    logging.basicConfig(level=logging.WARNING)
    tune_allocator()
    app(prog_name="fedpriv")
