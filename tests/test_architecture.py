"""What holds the package together: who imports whom, and that no randomness is global."""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Callable, Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from types import FrameType

import pytest
from typer.testing import CliRunner

from fedpriv.cli.app import app

PACKAGE = Path(__file__).parent.parent / "fedpriv"

# The rooms of the house, from the ground up: the packages, and the modules that lie directly in fedpriv/.
# A room imports only from rooms above it in this list, and not from its neighbours in the same line.
LAYERS = [
    {"_internal"},
    {"rng", "parameters", "scattering", "accounting", "secure_aggregation"},
    {"mechanism", "models", "data"},
    {"optimizers", "clipping"},
    {"tasks"},
    {"federated"},
    {"config", "contrib"},
    {"node", "report"},
    {"runs"},
    {"auditing", "flower"},
    {"bench", "deployment", "simulation"},
    {"cli"},
    {"__init__", "__main__"},
]
MOST_ROOMS, MOST_LAYERS, MOST_FILES_OF_A_CLIP_NORM = 30, 15, 12
LAYER_OF = {room: layer for layer, rooms in enumerate(LAYERS) for room in rooms}
MODULES = sorted(PACKAGE.rglob("*.py"))


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")


NAMES = {module_of(path) for path in MODULES}


def imported_modules(path: Path) -> set[str]:
    """The modules of fedpriv that a file imports, at its top, inside functions, or for types alone."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "fedpriv":
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                found.add(whole if whole in NAMES else str(node.module))
        elif isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names if alias.name.split(".")[0] == "fedpriv")
    return found


def imported_rooms(path: Path) -> set[str]:
    return {name.split(".")[1] for name in imported_modules(path) if "." in name}


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_a_room_imports_only_from_the_rooms_above_it(path: Path) -> None:
    room = room_of(path)
    assert room in LAYER_OF, f"give {room} a line in LAYERS"
    others = imported_rooms(path) - {room}
    assert not {other for other in others if LAYER_OF[other] >= LAYER_OF[room]}


def longest_chain(edges: dict[str, set[str]]) -> int:
    """How many rooms the longest chain of imports passes. Raises CycleError where there is a circle."""
    depth: dict[str, int] = {}
    for room in TopologicalSorter(edges).static_order():
        depth[room] = 1 + max((depth[other] for other in edges.get(room, ())), default=0)
    return max(depth.values())


def test_the_house_has_few_rooms_and_few_layers(capsys: pytest.CaptureFixture[str]) -> None:
    edges: dict[str, set[str]] = {}
    for path in MODULES:
        room = room_of(path)
        edges.setdefault(room, set()).update(imported_rooms(path) - {room})
    layers = longest_chain(edges)
    with capsys.disabled():
        print(f"\nfedpriv has {len(edges)} rooms in {layers} layers, without circles")
    assert len(edges) <= MOST_ROOMS
    assert layers <= MOST_LAYERS


def test_a_circle_of_rooms_is_found() -> None:
    with pytest.raises(CycleError):
        longest_chain({"a": {"b"}, "b": {"c"}, "c": {"a"}})


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Imports in functions and for types count, too: they hide a circle, and do not open it."""
    longest_chain({module_of(path): imported_modules(path) for path in MODULES})


def test_imports_in_functions_and_for_types_are_found(tmp_path: Path) -> None:
    file = tmp_path / "module.py"
    file.write_text(
        "from fedpriv import rng\n"
        "if TYPE_CHECKING:\n    from fedpriv.config.schema import Config\n"
        "def use():\n    import fedpriv.parameters\n"
    )
    assert imported_modules(file) == {"fedpriv.rng", "fedpriv.config.schema", "fedpriv.parameters"}


def test_tasks_do_not_know_how_they_are_clipped() -> None:
    tasks = [path for path in MODULES if room_of(path) == "tasks"]
    assert not {name for path in tasks for name in imported_modules(path) if ".ghost" in name}


# Settings whose words are types with behaviour, or a property of the configuration.
WORDS = {"level", "unit", "partition", "work", "engine", "placement", "sampler", "accounting"}
# The places that give those words their meaning.
MEANINGS = {
    ("config/schema.py", "work"),
    ("config/schema.py", "engine"),
    ("config/settings.py", "engine"),
    ("simulation/api.py", "engine"),  # before a configuration is read: objects stay in their process
}


def compared_words(source: str) -> set[str]:
    """The settings among WORDS, as attributes or keys, that are compared with texts written there."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Compare):
            continue
        sides = [node.left, *node.comparators]
        inner = [part for side in sides for part in getattr(side, "elts", [side])]
        if not any(isinstance(part, ast.Constant) and isinstance(part.value, str) for part in inner):
            continue
        for side in sides:
            if isinstance(side, ast.Attribute):
                found.add(side.attr)
            elif isinstance(side, ast.Subscript) and isinstance(side.slice, ast.Constant):
                found.add(str(side.slice.value))
            elif isinstance(side, ast.Call) and side.args and isinstance(side.args[0], ast.Constant):
                found.add(str(side.args[0].value))
    return found & WORDS


def test_words_of_settings_are_compared_where_they_get_their_meaning() -> None:
    found = {
        (str(path.relative_to(PACKAGE)), word)
        for path in MODULES
        for word in compared_words(path.read_text())
    }
    assert found == MEANINGS


@pytest.mark.parametrize(
    "source",
    [
        "config.level == 'client'",
        "plan.config.partition not in ('one-example', 'natural')",
        "'example' != config.unit",
        "run['work'] == 'local-steps'",
        "run.get('engine') == 'ray'",
    ],
)
def test_a_compared_word_is_found(source: str) -> None:
    assert compared_words(source)


def files_that_name(names: set[str], work: Callable[[], object]) -> set[str]:
    """The files of fedpriv whose functions run in ``work`` and name one of these, class bodies aside."""
    found: set[str] = set()

    def look(frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        is_function = code.co_flags & inspect.CO_OPTIMIZED
        if event == "call" and is_function and code.co_filename.startswith(str(PACKAGE)):
            texts = {constant for constant in code.co_consts if isinstance(constant, str)}
            if names & {*code.co_names, *code.co_varnames, *texts}:
                found.add(str(Path(code.co_filename).relative_to(PACKAGE)))

    sys.setprofile(look)
    try:
        work()
    finally:
        sys.setprofile(None)
    return found


def test_a_clip_norm_passes_few_files_from_the_command_line_to_the_clip(tmp_path: Path) -> None:
    settings = {"dataset": "digits", "model": "logistic", "clients": 400, "rounds": 2, "optimizer": "dp-sgd"}
    settings |= {"engine": "in-process", "sampling-rate": 0.1, "clip-norm": 0.5}
    options = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
    command = ["simulate", *options, "--out", str(tmp_path / "run")]
    passed = files_that_name(
        {"clip_norm", "clip_norms", "clip-norm"}, lambda: CliRunner().invoke(app, command)
    )
    assert (tmp_path / "run" / "report.json").exists()
    assert 3 <= len(passed) <= MOST_FILES_OF_A_CLIP_NORM, sorted(passed)


# Two guards read what a file imports, names and calls; attributes by their name, whoever they are asked of.
# These places have a good reason:
ALLOWED = {
    # The name of a type.
    ("rng.py", "numpy.random.bit_generator.ISeedSequence"),
    # A user's model draws its own parameters from torch's generator, which is given back as it was.
    ("models/initializers.py", "torch.random.fork_rng"),
    ("models/initializers.py", "torch.default_generator"),
    ("models/initializers.py", "torch.default_generator.manual_seed"),
    # Whether a user's model draws from it is looked at, and it is given back as it was.
    ("simulation/run.py", "torch.random.fork_rng"),
    # Messages between processes of one run: Python's plain values, which run no code when they are read.
    ("flower/grids/wire_format.py", "marshal"),
    ("flower/grids/wire_format.py", "marshal.loads"),
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
        given = keywords_of(call).get("generator", "None") != "None"
        if draws and not given and not is_generator(node.value):
            found.add(ast.unparse(node))
    return found


UNPICKLERS = {"pickle", "_pickle", "cloudpickle", "dill", "marshal", "shelve", "joblib", "jsonpickle"}
# Modules whose load or loads reads no pickles; NumPy's needs allow_pickle=False.
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
            safe = keywords_of(call).get("allow_pickle") == "False"
            if ast.unparse(node.value) not in READERS and not safe:
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
def test_draws_from_an_own_generator_are_allowed(source: str) -> None:
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
