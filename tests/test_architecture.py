"""What holds the package together: who imports whom, and that no randomness is global."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "fedpriv"

# A module imports only from lines above its own; modules on one line may import each other.
LAYERS = [
    {"_check", "cores", "rng"},
    {"memory", "noise", "residuals", "stopwatch", "tensor_files", "user_code"},
    {"vectors"},
    {"schedules"},
    {"query"},
    {"exact"},
    {"clipping"},
    {"optimizers"},
    {"accounting"},
    {"sampling"},
    {"release"},
    {"data"},
    {"measures", "models", "tasks"},
    {"clients"},
    {"round"},
    {"baselines"},
    {"config", "plan", "recipes", "node", "node_books", "refusals", "silos"},
    {"books", "checkpoints", "report", "results", "runs", "views"},
    {"flower"},
    {"centralised", "compare", "simulate"},
    {"audit", "bench"},
    {"cli", "__main__"},
]
LEVEL = {room: level for level, rooms in enumerate(LAYERS) for room in rooms}
MODULES = sorted(PACKAGE.rglob("*.py"))


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported_rooms(path: Path) -> set[str]:
    rooms: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module == "fedpriv":
            rooms.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("fedpriv."):
            rooms.add((node.module or "").split(".")[1])
        elif isinstance(node, ast.Import):
            rooms.update(a.name.split(".")[1] for a in node.names if a.name.startswith("fedpriv."))
    return rooms - {"__version__"}


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_only_from_above(path: Path) -> None:
    room = room_of(path)
    if room == "__init__":
        assert not imported_rooms(path)
        return
    assert room in LEVEL, f"give {room} a line in LAYERS"
    below = {other for other in imported_rooms(path) if LEVEL[other] > LEVEL[room]}
    assert not below, f"{path.name} imports {below}, which lie below it"


GLOBAL_DRAWS = {"rand", "randn", "randint", "randperm", "normal", "manual_seed", "seed", "bernoulli"}


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_no_global_randomness(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            assert all(alias.name != "random" for alias in node.names), f"{path.name} imports random"
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        owner = ast.unparse(node.func.value)
        if owner == "np.random":
            assert node.func.attr in {"Generator", "Philox", "SFC64", "default_rng"}, ast.unparse(node)
            assert node.args or node.keywords, f"{ast.unparse(node)} has no seed of its own"
        if owner == "torch" and node.func.attr in GLOBAL_DRAWS:
            assert any(k.arg == "generator" for k in node.keywords), f"{path.name}: {ast.unparse(node)}"


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_nothing_is_unpickled(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            assert all(alias.name not in {"pickle", "cloudpickle", "dill"} for alias in node.names)
        if isinstance(node, ast.Call):
            for keyword in node.keywords:
                if keyword.arg == "allow_pickle":
                    assert ast.unparse(keyword.value) == "False"
            assert ast.unparse(node.func) != "torch.load", f"{path.name} unpickles"
