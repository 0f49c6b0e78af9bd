"""Auditing a run: canaries, lower bounds on epsilon, and tests of the noise."""
