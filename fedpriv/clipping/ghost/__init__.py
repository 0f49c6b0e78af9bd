"""Norms and weighted sums of per-example gradients without forming the gradients."""
