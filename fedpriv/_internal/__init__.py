"""Helpers of the other packages: checked arguments, atomic files, hardware, plots. No public names."""
