"""The log of Flower's code in a process of ours."""

from __future__ import annotations

import logging


def log_once() -> None:
    """Has Flower's logger write what its own console shows, once.

    Flower makes records of every level, and leaves the choice to its console handler. A handler of the
    process, such as that of fedpriv's command line, would write them all again, requests and their details
    included.
    """
    logger = logging.getLogger("flwr")
    logger.propagate = False
    logger.setLevel(min((handler.level for handler in logger.handlers), default=logging.INFO))
