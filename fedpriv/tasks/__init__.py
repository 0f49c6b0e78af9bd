"""A model with its loss and its metrics, as functions of one flat parameter vector."""
