"""The two diagrams of the site, as SVG. ``python docs/_site/diagrams.py`` writes them to docs/assets/.

The rooms are drawn from the layers that tests/test_architecture.py holds the code to.
"""

from __future__ import annotations

import ast
from pathlib import Path
from xml.sax.saxutils import escape

ROOT = Path(__file__).resolve().parents[2]

ABOUT = {
    "__init__": "import fedpriv",
    "__main__": "python -m fedpriv",
    "cli": "the commands",
    "bench": "time of a round",
    "simulation": "simulate, train, compare",
    "deployment": "keys, checks, proxy, runs",
    "auditing": "attacks on a run",
    "flower": "server and client apps, grids",
    "runs": "loop, folder, checkpoints",
    "node": "a client with its own data",
    "report": "report, plots, notices",
    "config": "settings, plan",
    "contrib": "methods outside the protocol",
    "federated": "round loop, cohorts, workers",
    "tasks": "model, loss, metrics",
    "optimizers": "one file a paper",
    "clipping": "bounded sums",
    "mechanism": "query, sampling, noise",
    "models": "model builders",
    "data": "data sets, partitions",
    "scattering": "fixed features of images",
    "rng": "keyed generators",
    "parameters": "flat vectors",
    "accounting": "events, budget, ledger",
    "secure_aggregation": "sums of masked messages",
    "_internal": "helpers",
}
_STYLE = "font-family:system-ui,sans-serif"
_LINE = 'stroke="#555" stroke-width="1.5" marker-end="url(#a)"'
_PUBLIC, _SECRET, _OTHER = "#c8e6df", "#fbe6c8", "#e3e8f0"
_NEVER = "private: nothing of it is logged, stored or returned"
_WIDTH, _ROW, _BOX, _GAP = 760, 58, 200, 14


def layers() -> list[set[str]]:
    """LAYERS of tests/test_architecture.py, from the ground up."""
    tree = ast.parse((ROOT / "tests/test_architecture.py").read_text())
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "LAYERS":
            found: list[set[str]] = ast.literal_eval(node.value)
            return found
    raise LookupError("LAYERS is not in tests/test_architecture.py")


def rooms() -> str:
    """The packages in layers, the ground at the bottom."""
    rows = list(reversed(layers()))
    height = _ROW * len(rows) + 60
    parts = [_text(_WIDTH / 2, 24, "Each package imports only from the rows below it", 15, bold=True)]
    for number, row in enumerate(rows):
        y = 40 + number * _ROW
        start = (_WIDTH - len(row) * _BOX - (len(row) - 1) * _GAP) / 2
        for place, room in enumerate(sorted(row)):
            parts += _box(
                start + place * (_BOX + _GAP), y, _BOX, 46, room, ABOUT.get(room, ""), _colour(room)
            )
    return _svg(_WIDTH, height, parts)


def _colour(room: str) -> str:
    if room in {"accounting", "mechanism", "clipping", "optimizers"}:
        return _PUBLIC  # the privacy core
    return _OTHER


_STEPS = (
    ("query", "optimizer.query(state): what each unit computes, its clip norms, its relative noise"),
    ("charge", "the event goes to the ledger on disk; refused if it would pass the budget"),
    ("sample", "a cohort, by the sampler that the event was made from"),
    ("clipped sum", "workers clip each unit's vector and add; no vector leaves its worker"),
    ("release", "Gaussian noise of z times the sensitivity, at the place that placement names"),
    ("update", "optimizer.update(state, answer): uses the noisy answer only"),
)
_PRIVATE = {"sample", "clipped sum"}


def one_round() -> str:
    """The steps of a round, in order; those that touch private data in another colour."""
    width, parts = 860, [_text(430, 26, "One round", 17, bold=True)]
    for number, (name, about) in enumerate(_STEPS):
        y = 46 + number * 72
        colour = _SECRET if name in _PRIVATE else _PUBLIC
        parts += _box(30, y, 160, 48, f"{number + 1}. {name}", "", colour)
        parts.append(_text(210, y + 29, about, 14, anchor="start"))
        if number + 1 < len(_STEPS):
            parts.append(_arrow(110, y + 48, 110, y + 72))
    y = 46 + len(_STEPS) * 72
    back = f"M30 {y - 48} H12 V70 H26"  # from the last step to the first
    parts.append(f'<path d="{back}" fill="none" {_LINE}/>')
    for x, colour, text in ((30, _PUBLIC, "public, or already noisy"), (240, _SECRET, _NEVER)):
        parts.append(f'<rect x="{x}" y="{y + 6}" width="18" height="18" fill="{colour}" stroke="#667"/>')
        parts.append(_text(x + 26, y + 20, text, 13, anchor="start"))
    return _svg(width, y + 42, parts)


def _box(x: float, y: float, width: float, height: float, name: str, about: str, colour: str) -> list[str]:
    title = "fedpriv" if name == "__init__" else name
    parts = [
        f'<rect x="{x:g}" y="{y:g}" width="{width}" height="{height}" rx="6" fill="{colour}" stroke="#667"/>'
    ]
    middle = x + width / 2
    parts.append(_text(middle, y + (20 if about else height / 2 + 5), title, 14, bold=True))
    return [*parts, _text(middle, y + 37, about, 12)] if about else parts


def _text(x: float, y: float, text: str, size: int, bold: bool = False, anchor: str = "middle") -> str:
    weight = ' font-weight="600"' if bold else ""
    return (
        f'<text x="{x:g}" y="{y:g}" font-size="{size}" text-anchor="{anchor}"{weight} fill="#222">'
        f"{escape(text)}</text>"
    )


def _arrow(x1: float, y1: float, x2: float, y2: float) -> str:
    return (
        f'<path d="M{x1:g} {y1:g} L{x2:g} {y2 - 3:g}" stroke="#555" stroke-width="1.5" marker-end="url(#a)"/>'
    )


def _svg(width: float, height: float, parts: list[str]) -> str:
    head = (
        '<marker id="a" markerWidth="8" markerHeight="8" refX="5" refY="4" orient="auto">'
        '<path d="M0 0 L8 4 L0 8 z" fill="#555"/></marker>'
    )
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" style="{_STYLE}">\n'
        f'<defs>{head}</defs>\n<rect width="100%" height="100%" fill="#fff"/>\n{body}\n</svg>\n'
    )


DRAWN = {"rooms.svg": rooms, "round.svg": one_round}

if __name__ == "__main__":
    for name, draw in DRAWN.items():
        (ROOT / "docs/assets" / name).write_text(draw())
