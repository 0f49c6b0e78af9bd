"""HTML from text: elements whose content is escaped, and the Markdown of report.md.

>>> element("td", "a < b", klass="number")
'<td class="number">a &lt; b</td>'
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from html import escape
from itertools import groupby


def element(tag: str, *text: str, klass: str = "", **attributes: str) -> str:
    """An element with escaped text."""
    return wrapped(tag, "".join(map(escape, text)), klass=klass, **attributes)


def wrapped(tag: str, content: str, klass: str = "", **attributes: str) -> str:
    """An element around markup; its attributes are escaped."""
    given = {**({"class": klass} if klass else {}), **attributes}
    head = "".join(f' {name.replace("_", "-")}="{escape(value)}"' for name, value in given.items())
    return f"<{tag}{head}>{content}</{tag}>"


def table(header: Sequence[str], rows: Sequence[Sequence[str]], klass: str = "") -> str:
    """A table of escaped texts."""
    head = wrapped("thead", wrapped("tr", "".join(element("th", name, scope="col") for name in header)))
    body = "".join(wrapped("tr", "".join(element("td", cell) for cell in row)) for row in rows)
    return wrapped("div", wrapped("table", head + wrapped("tbody", body), klass=klass), klass="wide")


def markdown(text: str, level: int = 3) -> str:
    """The Markdown that fedpriv writes: headings, tables, lists, quotes, bold, code. All text is escaped.

    Headings begin at ``level``.

    >>> markdown("# A\\n\\n> **b** <i>\\n")
    '<h3>A</h3><blockquote><p><strong>b</strong> &lt;i&gt;</p></blockquote>'
    """
    return "".join(_blocks(text.splitlines(), level))


def _blocks(lines: Sequence[str], level: int) -> Iterator[str]:
    for kind, part in groupby(lines, _kind):
        content = [line.strip() for line in part]
        if kind == "heading":
            for line in content:
                depth = len(line) - len(line.lstrip("#")) + level - 1
                yield wrapped(f"h{depth}", _inline(line.lstrip("# ")))
        elif kind == "table":
            yield _table(content)
        elif kind == "list":
            yield wrapped("ul", "".join(wrapped("li", _inline(line[2:])) for line in content))
        elif kind == "quote":
            yield wrapped("blockquote", "".join(wrapped("p", _inline(line[1:].strip())) for line in content))
        elif kind == "text":
            yield wrapped("p", _inline(" ".join(content)))


def _kind(line: str) -> str:
    starts = {"#": "heading", "|": "table", "- ": "list", ">": "quote"}
    found = (kind for start, kind in starts.items() if line.startswith(start))
    return next(found, "text" if line.strip() else "")


def _table(lines: Sequence[str]) -> str:
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    head, body = rows[0], [row for row in rows[1:] if not all(set(cell) <= set("-:") for cell in row)]
    above = "".join(wrapped("th", _inline(cell), scope="col") for cell in head)
    below = "".join(wrapped("tr", "".join(wrapped("td", _inline(cell)) for cell in row)) for row in body)
    named = wrapped("thead", wrapped("tr", above)) if any(head) else ""
    return wrapped("div", wrapped("table", named + wrapped("tbody", below)), klass="wide")


def _inline(text: str) -> str:
    safe = escape(text)
    safe = re.sub(r"\*\*(.+?)\*\*", r"<strong>\1</strong>", safe)
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", safe)
