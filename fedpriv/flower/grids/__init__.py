"""Grids that host the ClientApp themselves: in this process, or in Ray actors."""
