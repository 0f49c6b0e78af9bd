"""Differentially private federated learning that people can trust, and that is fast."""

__version__ = "0.1.0"
