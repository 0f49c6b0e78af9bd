"""fedpriv on Flower's message API: ServerApp, ClientApp, messages, and two grids for simulations.

A :class:`~fedpriv.flower.grid_engine.GridEngine` requests one bounded sum from each node of any Flower
``Grid``. The ClientApp in :mod:`fedpriv.flower.client_app` answers for all virtual clients of its node.
"""

import os

# Flower and Ray report usage by default; fedpriv reports nothing. They read this when they are imported.
os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
