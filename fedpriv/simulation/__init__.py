"""Simulated federations, and the comparison of placements."""
