"""How the examples of a data set are divided among clients."""
