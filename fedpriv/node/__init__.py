"""A node: the worker that it builds, its policy, its ledger, and training within a silo."""
