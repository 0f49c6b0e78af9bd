"""Accounting methods, one module each, and the registry that lists them."""
