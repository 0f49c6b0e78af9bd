"""Accounting methods: one module each, and the registry that names them."""
