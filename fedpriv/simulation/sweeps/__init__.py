"""Sweeps: many runs of a grid of settings, each a process of its own, with one table and one picture."""
