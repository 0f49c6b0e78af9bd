"""What fedpriv imports is what it declares, and the lock file pins what is declared."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from importlib.metadata import packages_distributions, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
DECLARED = {canonicalize_name(Requirement(line).name): Requirement(line) for line in PROJECT["dependencies"]}
EXTRAS = {
    canonicalize_name(Requirement(line).name): Requirement(line)
    for lines in PROJECT["optional-dependencies"].values()
    for line in lines
}
# What comes with a declared dependency, which decides its version (see pyproject.toml).
THROUGH = {
    "ray": "flwr",
    "dp-accounting": "flwr",
    "httpx": "flwr",
    "starlette": "flwr",
    "pydantic-core": "pydantic",
}
# Extras, which a function imports where they are installed, and says how to install them where they are not.
OPTIONAL = {
    "datasets": {"data/readers/hugging_face.py"},
    "peft": {"models/parts.py"},
    "pillow": {"data/image_decoding.py"},
    "pyarrow": {
        "data/readers/arrow.py",
        "data/readers/hugging_face.py",
        "data/readers/table.py",
        "report/sweep_results.py",
    },
    "pandas": {"runs/result.py", "simulation/comparison.py", "simulation/sweeps/api.py"},
}
LOCK = (ROOT / "requirements.lock").read_text()


def imported() -> dict[str, set[str]]:
    """The distributions that the files of fedpriv import, with these files."""
    by_module, found = packages_distributions(), dict[str, set[str]]()
    for path in (ROOT / "fedpriv").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names = [node.module]
            for module in {name.split(".")[0] for name in names} - set(sys.stdlib_module_names) - {"fedpriv"}:
                assert module in by_module, f"{path} imports {module}, which is not installed"
                for distribution in by_module[module]:
                    found.setdefault(canonicalize_name(distribution), set()).add(
                        str(path.relative_to(ROOT / "fedpriv"))
                    )
    return found


def test_every_import_is_of_a_declared_dependency() -> None:
    for distribution, files in imported().items():
        if distribution in OPTIONAL:
            assert files == OPTIONAL[distribution]
            assert distribution in EXTRAS
        else:
            assert THROUGH.get(distribution, distribution) in DECLARED, f"{distribution} of {sorted(files)}"


@pytest.mark.parametrize("distribution", THROUGH)
def test_a_dependency_of_a_dependency_is_one(distribution: str) -> None:
    needed = [Requirement(line) for line in requires(THROUGH[distribution]) or []]
    extras = DECLARED[THROUGH[distribution]].extras or {""}
    there = [
        each
        for each in needed
        if canonicalize_name(each.name) == distribution
        and (each.marker is None or any(each.marker.evaluate({"extra": extra}) for extra in extras))
    ]
    assert there


def test_the_lock_file_pins_every_dependency_with_its_hashes() -> None:
    pinned = {
        canonicalize_name(name): version
        for name, version in re.findall(r"^([\w.-]+)==(\S+)(?: ; [^\\]+)? \\$", LOCK, re.M)
    }
    for name, requirement in {**DECLARED, **EXTRAS}.items():
        if name != "torch":  # its builds differ by platform and hardware
            assert pinned[name] in requirement.specifier
    entries = re.split(r"\n(?=[\w.-]+==)", LOCK)[1:]
    assert len(entries) == len(pinned) > 100
    assert all("--hash=sha256:" in entry for entry in entries)
    assert "torch" not in pinned


def test_the_lock_file_names_no_place_to_install_from() -> None:
    code = [line for line in LOCK.splitlines() if not line.lstrip().startswith("#")]
    assert not [line for line in code if re.match(r"\s*-(?!-hash)", line) or "://" in line or " @ " in line]
    assert "://" not in LOCK
