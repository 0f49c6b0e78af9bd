"""Names that patterns with ``*`` and ``?`` choose.

>>> matching("frozen", ["a.*"], ["a.weight", "a.bias", "b.weight"], "fit a name", "")
['a.weight', 'a.bias']
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from fnmatch import fnmatchcase

from fedpriv._internal import validation


def matching(key: str, patterns: Iterable[str], names: Collection[str], allowed: str, hint: str) -> list[str]:
    """The names that fit one of the patterns, in their order.

    Args:
        key: the setting or argument that has the patterns.
        patterns: the patterns.
        names: all names.
        allowed, hint: what the error says a pattern must do, and what helps.

    Raises ArgumentError for a pattern that no name fits.
    """
    patterns = tuple(patterns)
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise validation.fail(key, pattern, allowed, hint)
    return [name for name in names if any(fnmatchcase(name, pattern) for pattern in patterns)]
