"""What holds the package together: who imports whom, and that no randomness is global."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "fedpriv"

# A module imports only from lines above its own; modules on one line may import each other.
LAYERS = [
    {"_check", "absences", "cores", "endings", "rng"},
    {"memory", "noise", "pictures", "residuals", "stopwatch", "tensor_files", "user_code"},
    {"vectors"},
    {"schedules"},
    {"query"},
    {"exact", "rounded"},
    {"clipping"},
    {"optimizers"},
    {"accounting"},
    {"sampling"},
    {"release"},
    {"data"},
    {"losses", "measures", "models", "tasks"},
    {"clients"},
    {"round"},
    {"baselines"},
    {"config", "plan", "recipes", "node", "node_books", "node_policy", "refusals", "silos", "uses"},
    {"promises", "remarks", "views"},
    {"report", "report_picture", "report_text"},
    {"books", "checkpoints", "folders", "results", "results_picture", "runs"},
    {"flower"},
    {"centralised", "compare", "simulate"},
    {"audit", "bench", "canaries", "one_run"},
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


# Two guards read what a file imports, names and calls; attributes by their name, whoever they are asked of.
# These places have a good reason:
ALLOWED = {
    # The name of a type.
    ("rng.py", "numpy.random.bit_generator.ISeedSequence"),
    # A user's model draws its own parameters from torch's generator, which is given back as it was.
    ("models/__init__.py", "torch.random.fork_rng"),
    ("models/__init__.py", "torch.default_generator"),
    ("models/__init__.py", "torch.default_generator.manual_seed"),
    # Whether a user's model draws from it is looked at, and it is given back as it was.
    ("simulate.py", "torch.random.fork_rng"),
    # Letters between processes of one run: Python's plain values, which run no code when they are read.
    ("flower/grids/letters.py", "marshal"),
    ("flower/grids/letters.py", "marshal.loads"),
}


def imports_of(tree: ast.AST) -> Iterator[str]:
    """The modules that are imported, and what is taken from them."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("__import__", "import_module")):
            yield from (str(name.value) for name in node.args[:1] if isinstance(name, ast.Constant))


def attributes_of(tree: ast.AST) -> Iterator[tuple[ast.Attribute, ast.Call | None]]:
    """Every attribute, with the call where it is called."""
    calls = {id(node.func): node for node in ast.walk(tree) if isinstance(node, ast.Call)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            yield node, calls.get(id(node))


def keywords_of(call: ast.Call | None) -> dict[str | None, str]:
    return {} if call is None else {k.arg: ast.unparse(k.value) for k in call.keywords}


DRAWS = {
    "rand", "randn", "randint", "randperm", "rand_like", "randn_like", "randint_like", "normal", "bernoulli",
    "poisson", "multinomial", "gumbel_softmax", "random_", "manual_seed", "manual_seed_all",
    "set_rng_state", "default_generator", "seed_all",
}  # fmt: skip
DRAWS_IN_PLACE = ("normal_", "uniform_", "bernoulli_", "exponential_", "geometric_", "cauchy_", "orthogonal_")
DRAWS_WHERE_CALLED = {"seed", "dropout"}  # else they are numbers
# Of numpy.random; each takes a seed, without which it draws one.
GENERATORS = {"Generator", "Philox", "SFC64", "default_rng"}


def is_generator(owner: ast.expr) -> bool:
    """Whether its name is so, as NumPy's are here: generator.normal, key.generator("noise").normal."""
    if isinstance(owner, ast.Call):
        owner = owner.func
    name = owner.attr if isinstance(owner, ast.Attribute) else ast.unparse(owner)
    return name == "generator"


def global_draws(source: str) -> set[str]:
    """What draws from a generator that others draw from, too, or seeds it, or seeds its own by chance."""
    tree, found = ast.parse(source), set[str]()
    for name in imports_of(tree):
        module, _, taken = name.rpartition(".")
        draws = taken in DRAWS or taken.endswith(DRAWS_IN_PLACE)
        if "random" in name.split(".") or (draws and not module.startswith("fedpriv")):
            found.add(name)
    for node, call in attributes_of(tree):
        owner = ast.unparse(node.value)
        if owner.endswith(".random"):
            seeded = call is None or bool(call.args or call.keywords)
            if node.attr not in GENERATORS or not seeded:
                found.add(ast.unparse(node))
            continue
        draws = node.attr in DRAWS or node.attr.endswith(DRAWS_IN_PLACE)
        draws |= call is not None and node.attr in DRAWS_WHERE_CALLED
        told = keywords_of(call).get("generator", "None") != "None"
        if draws and not told and not is_generator(node.value):
            found.add(ast.unparse(node))
    return found


UNPICKLERS = {"pickle", "_pickle", "cloudpickle", "dill", "marshal", "shelve", "joblib", "jsonpickle"}
# Who has a load or loads that reads no pickles; NumPy's has to be told.
READERS = {"json", "tomllib", "data", "self"}


def unpickled(source: str) -> set[str]:
    """What could read a pickle, or code in another form."""
    tree, found = ast.parse(source), set[str]()
    for name in imports_of(tree):
        parts = name.split(".")
        if unpicklers := UNPICKLERS.intersection(parts):
            found |= unpicklers
        elif parts[-1] in ("load", "loads", "Unpickler", "read_pickle") and parts[0] != "fedpriv":
            found.add(name)
    for node, call in attributes_of(tree):
        if node.attr in ("load", "loads"):
            told = keywords_of(call).get("allow_pickle") == "False"
            if ast.unparse(node.value) not in READERS and not told:
                found.add(ast.unparse(node))
        elif node.attr in ("Unpickler", "read_pickle"):
            found.add(ast.unparse(node))
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and keywords_of(node).get("allow_pickle", "False") != "False":
            found.add(ast.unparse(node.func))
    return found


def allowed(path: Path) -> set[str]:
    return {what for where, what in ALLOWED if where == str(path.relative_to(PACKAGE))}


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_no_global_randomness(path: Path) -> None:
    assert global_draws(path.read_text()) <= allowed(path)


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_nothing_is_unpickled(path: Path) -> None:
    assert unpickled(path.read_text()) <= allowed(path)


def test_nothing_is_allowed_that_is_not_there() -> None:
    sources = {where: (PACKAGE / where).read_text() for where, _ in ALLOWED}
    found = {(where, what) for where, text in sources.items() for what in global_draws(text)}
    found |= {(where, what) for where, text in sources.items() for what in unpickled(text)}
    assert found == ALLOWED


@pytest.mark.parametrize(
    "source",
    [
        "import random",
        "import random as chance",
        "from random import random",
        "from random import Random as Chance",
        "import numpy.random",
        "from numpy import random",
        "from numpy.random import rand",
        "from numpy.random import default_rng",
        "from torch import randn",
        "from torch.nn.init import xavier_normal_",
        "import importlib; importlib.import_module('random')",
        "np.random.rand(3)",
        "numpy.random.shuffle(x)",
        "np.random.seed(0)",
        "np.random.default_rng()",
        "torch.randn(3)",
        "torch.randn(3, generator=None)",
        "torch.randn_like(x)",
        "t.rand_like(x)",
        "torch.multinomial(p, 2)",
        "torch.bernoulli(p)",
        "torch.manual_seed(0)",
        "torch.cuda.manual_seed_all(0)",
        "torch.default_generator.manual_seed(0)",
        "torch.randn(3, generator=torch.default_generator)",
        "torch.random.manual_seed(0)",
        "torch.seed()",
        "draw = torch.randn",
        "tensor.normal_()",
        "torch.empty(3).uniform_(0, 1)",
        "x.bernoulli_(0.5)",
        "x.exponential_()",
        "x.log_normal_()",
        "x.random_()",
        "nn.init.kaiming_uniform_(x)",
        "F.dropout(x)",
    ],
)
def test_global_draws_are_found(source: str) -> None:
    assert global_draws(source)


@pytest.mark.parametrize(
    "source",
    [
        "def draw(generator: np.random.Generator) -> None: ...",
        "np.random.Generator(np.random.Philox(key))",
        "np.random.default_rng(0)",
        "generator.normal(0, 1, 3)",
        "key.generator('noise', 3).multinomial(5, p)",
        "self.generator.poisson(2)",
        "torch.randn(3, generator=generator)",
        "x.normal_(generator=self._generator)",
        "config.seed",
        "layer.dropout > 0",
        "from fedpriv.models.initializers import normal",
        "torch.zeros_like(x)",
    ],
)
def test_draws_of_ones_own_generator_are_not(source: str) -> None:
    assert not global_draws(source)


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "import pickle as p",
        "from pickle import loads",
        "import marshal",
        "from cloudpickle import loads as read",
        "import ray.cloudpickle",
        "from ray import cloudpickle",
        "import dill.source",
        "import shelve",
        "__import__('pickle')",
        "import importlib; importlib.import_module('marshal')",
        "torch.load(path)",
        "torch.load(path, weights_only=True)",
        "t.load(path)",
        "torch.jit.load(path)",
        "read = torch.load",
        "from torch import load",
        "np.load(path)",
        "np.load(path, allow_pickle=True)",
        "read(path, allow_pickle=allow)",
        "ray.cloudpickle.loads(content)",
        "pandas.read_pickle(path)",
    ],
)
def test_unpickling_is_found(source: str) -> None:
    assert unpickled(source)


@pytest.mark.parametrize(
    "source",
    [
        "np.load(path, allow_pickle=False)",
        "json.loads(text)",
        "tomllib.load(file)",
        "data.load('digits')",
        "from fedpriv.data import load",
        "safetensors.torch.load_file(path)",
    ],
)
def test_reading_without_pickles_is_not(source: str) -> None:
    assert not unpickled(source)
