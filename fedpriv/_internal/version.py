"""The version of fedpriv, as pyproject.toml has it, too."""

__version__ = "0.1.0"
