"""fedpriv on Flower's message API: the two apps, the messages between them, and two grids of our own.

A :class:`~fedpriv.flower.grid_engine.GridEngine` asks the nodes of any Flower ``Grid`` for one bounded sum
each; the ClientApp in :mod:`fedpriv.flower.client_app` answers for the virtual clients of its node.
"""

import os

# Flower and Ray report usage by default; fedpriv reports nothing. They read this when they are imported.
os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
