"""The round loop, its engine protocol, and what a client computes."""
