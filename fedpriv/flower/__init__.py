"""fedpriv on Flower's message API: the two apps, the messages between them, and two grids of our own.

A :class:`~fedpriv.flower.grid_engine.GridEngine` asks the nodes of any Flower ``Grid`` for one bounded sum
each; the ClientApp in :mod:`fedpriv.flower.client_app` answers for the virtual clients of its node.
"""
