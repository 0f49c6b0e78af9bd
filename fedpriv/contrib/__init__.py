"""Methods outside the optimizer protocol: DP-AGD, private selection."""
