"""The built-in models, a family a module; each module registers its models."""
