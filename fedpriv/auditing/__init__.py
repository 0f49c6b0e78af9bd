"""Empirical privacy audits: canaries, lower bounds on epsilon, and tests of the noise."""
