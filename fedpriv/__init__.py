"""Differentially private federated learning. Nothing is imported here: each part is, by its module.

- ``from fedpriv.config.schema import Config`` and ``from fedpriv.simulation.run import simulate``: a
configured run;
- ``fedpriv.accounting``: what a run costs (``epsilon``), and the noise that a budget buys (``calibrate``);
- ``fedpriv.optimizers`` and ``fedpriv.config.plan``, ``fedpriv.runs.runner``: a run of parts of your own.

docs/guides/python.md goes through them.
"""

__version__ = "0.1.0"
