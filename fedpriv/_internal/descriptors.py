"""How many files and connections this process may have open at a time.

A process usually starts with at most 1,024 descriptors, its soft limit. It may raise that to its hard limit.

>>> 0 < raise_limit() <= MOST
True
"""

from __future__ import annotations

# More is not used: some programs go through all descriptors that they may have, and macOS allows fewer than
# it says.
MOST = 2**16


def allowed() -> int:
    """The number of descriptors to which this process may raise its limit, at most :data:`MOST`."""
    try:
        import resource
    except ImportError:  # Windows, which has no such limit
        return MOST
    return _at_most(resource.getrlimit(resource.RLIMIT_NOFILE)[1])


def raise_limit() -> int:
    """Raises this process's limit to what is :func:`allowed`. Returns the limit, at most :data:`MOST`."""
    try:
        import resource
    except ImportError:
        return MOST
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if _at_most(soft) < allowed():
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (allowed(), hard))
        except (OSError, ValueError):  # the system allows fewer than it says
            return _at_most(soft)
    return allowed()


def _at_most(limit: int) -> int:
    import resource

    return MOST if limit == resource.RLIM_INFINITY else min(limit, MOST)
