"""Docstrings as Markdown: roles such as :func:`f` become code, and doctests stand in fences."""

from __future__ import annotations

import re
from typing import Any

import griffe

_ROLE = re.compile(r":(?:py:)?(?:mod|func|class|meth|data|attr|exc):`~?([^`]+)`")


class PlainMarkdown(griffe.Extension):
    """Rewrite every docstring before it is parsed."""

    def on_instance(self, *, obj: Any, **_: Any) -> None:
        """Called for each object that griffe has read."""
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)


def as_markdown(text: str) -> str:
    """The docstring with code for its roles, and its doctests in fences."""
    lines, fenced = list[str](), False
    for line in _ROLE.sub(r"`\1`", text).splitlines():
        starts, blank = line.lstrip().startswith(">>>"), not line.strip()
        if starts and not fenced:
            lines += ["", line[: len(line) - len(line.lstrip())] + "```pycon"]
            fenced = True
        if fenced and blank:
            lines.append("```")
            fenced = False
        lines.append(line)
    return "\n".join([*lines, "```"] if fenced else lines)
