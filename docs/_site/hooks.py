"""What mkdocs does beside rendering docs/: generated pages, notebooks, and documents that live elsewhere."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.plugins import get_plugin_logger
from mkdocs.structure.files import File, Files

sys.path.insert(0, str(Path(__file__).parent))
import generate

ROOT = generate.ROOT

# Documents of the repository that the site shows too, at the same path; docs/ is the site's root.
_ELSEWHERE = ("CHANGELOG.md", "CONTRIBUTING.md", "benchmarks/RESULTS.md", "deploy/README.md")
_log = get_plugin_logger("fedpriv")
_SHOWN_TYPES = {".md", ".png", ".svg"}


def on_config(config: Any) -> Any:
    """Add the pages of the Python API, and the papers' results, to the navigation."""
    for entry in config.nav:
        if "Reference" in entry:
            api = [{_title(name): f"reference/api/{name}.md"} for name, _ in generate.api()]
            entry["Reference"].append({"Python API": api})
    return config


def _title(name: str) -> str:
    return name if name == "fedpriv" else f"fedpriv.{name}"


def on_files(files: Files, config: Any) -> Files:
    """Add what is not in docs/ as it is."""
    for path, text in generate.pages().items():
        files.append(File.generated(config, path, content=text))
    for path in sorted((ROOT / "docs/notebooks").glob("*.ipynb")):
        files.append(File.generated(config, f"notebooks/{path.stem}.md", content=_notebook(path)))
    shown = [ROOT / name for name in _ELSEWHERE]
    shown += [p for p in sorted((ROOT / "simulations").rglob("*")) if p.suffix in _SHOWN_TYPES]
    for path in shown:
        files.append(File.generated(config, str(path.relative_to(ROOT)), abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Point links between docs/ and the rest of the repository at their places in the site."""
    depth = page.file.src_uri.count("/")
    source = Path(page.file.abs_src_path) if page.file.abs_src_path else None
    if source is not None and source.is_relative_to(ROOT / "docs"):
        return markdown.replace("](" + "../" * (depth + 1), "](" + "../" * depth)
    return re.sub(r"\]\(((?:\.\./)*)docs/", r"](\1", markdown)


def on_post_page(output: str, page: Any, **_: Any) -> str:
    """Warn, which stops `make docs`, of a page that would load something from the network."""
    for asset in re.findall(r'<(?:script|link|img|iframe)[^>]+(?:src|href)="?(https?://[^">\s]+)', output):
        _log.warning("%s loads %s from the network", page.file.src_uri, asset)
    return output


def _notebook(path: Path) -> str:
    """A notebook as Markdown: its text, its code and the text that the code printed."""
    cells = json.loads(path.read_text())["cells"]
    blocks = []
    for cell in cells:
        text = "".join(cell["source"])
        blocks.append(text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```")
        for output in cell.get("outputs", []):
            printed = "".join(output.get("text", output.get("data", {}).get("text/plain", [])))
            if printed:
                blocks.append(f"```text\n{printed.rstrip()}\n```")
    link = f"[Download this notebook]({path.name})\n"
    return "\n\n".join([*blocks[:1], link, *blocks[1:]]) + "\n"
