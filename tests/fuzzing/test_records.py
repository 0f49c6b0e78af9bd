"""A run's own files of any content: ledger, checkpoint, weights and results."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.fuzzing import Reader, amounts, check, for_all, outcome, run_hostile
from helpers.small import small
from hypothesis import strategies as st
from safetensors import safe_open

from fedpriv._internal import tensor_io
from fedpriv.accounting import Event, ledger
from fedpriv.config.plan import make_plan
from fedpriv.federated.engine import PartialSum, SumRequest
from fedpriv.models import weights
from fedpriv.node.factory import make_worker
from fedpriv.report import comparison
from fedpriv.runs import checkpoints
from fedpriv.runs.result import load_result
from fedpriv.runs.run_dir import RunFolder
from fedpriv.runs.runner import execute

words = st.sampled_from(["", "x", "none", "poisson", "\ud800", "x" * 5000])
leaves: st.SearchStrategy[Any] = (
    st.none() | st.booleans() | st.integers() | st.floats() | words | st.just(10**400)
)
anything = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=5,
)
FIELDS = [
    "noise_multiplier",
    "sampling",
    "relation",
    "rate",
    "population",
    "cohort",
    "truncation",
    "count",
    "mechanism",
]
events = (
    st.fixed_dictionaries(
        {
            "noise_multiplier": anything | st.just(1.0),
            "sampling": anything | st.just("poisson"),
            "relation": anything | st.just("add-remove"),
        },
        optional={name: anything | st.just(0.5) for name in FIELDS[3:]},
    )
    | anything
)
bodies = st.lists(
    st.fixed_dictionaries(
        {"event": events}, optional={"silos": anything | st.just([0, 1]), "round": anything}
    )
    | anything,
    max_size=3,
)
headers = st.fixed_dictionaries(
    {"ledger": st.just(2) | anything}, optional={"relation": anything, "remark": anything}
)


def chained(lines: list[Any]) -> bytes:
    """These bodies as the lines of a ledger whose chain is right, as one who edits it all would write it."""
    chain, text = "", ""
    for body in lines:
        plain = json.dumps(body, sort_keys=True, separators=(",", ":"))
        chain = hashlib.sha256((chain + plain).encode("utf-8", "surrogatepass")).hexdigest()
        text += json.dumps({**body, "chain": chain} if isinstance(body, dict) else body) + "\n"
    return text.encode()


def read_ledger(path: Path) -> object:
    record = ledger.read(path)
    return (
        record.by_silo() if record.labels and all("silos" in labels for labels in record.labels) else record
    )


EVENTS = [Event(1.0 + i, "poisson", "add-remove", rate=0.1).to_json() for i in range(3)]
LEDGER = chained([{"ledger": 2}, *({"event": event, "silos": [0]} for event in EVENTS)])
LEDGERS = Reader("ledger", "ledger.jsonl", read_ledger, (LEDGER,), times=300)


@amounts
def test_a_hostile_ledger_is_refused_in_a_sentence(tmp_path: Path, examples: int) -> None:
    run_hostile(LEDGERS, examples, tmp_path)


@amounts
def test_a_ledger_with_a_forged_chain_is_refused_in_a_sentence(tmp_path: Path, examples: int) -> None:
    reader = Reader("ledger, forged chain", "ledger.jsonl", read_ledger, (), times=300)
    for_all(
        examples,
        st.tuples(headers, bodies),
        lambda pair: check(reader, chained([pair[0], *pair[1]]), tmp_path),
    )


MODULE = torch.nn.Linear(3, 2)
WEIGHTS = tensor_io.packed(MODULE.state_dict(), {"trained": json.dumps(["weight", "bias"])})


def start(path: Path) -> object:
    return weights.start_from(torch.nn.Linear(3, 2), str(path))


@amounts
def test_hostile_weights_are_refused_in_a_sentence(tmp_path: Path, examples: int) -> None:
    run_hostile(Reader("initial weights", "w.safetensors", start, (WEIGHTS,)), examples, tmp_path)


forged_headers = st.tuples(
    st.sampled_from(
        [
            "F64",
            "F32",
            "F16",
            "BF16",
            "I64",
            "U8",
            "BOOL",
            "F8_E4M3",
            "F8_E5M2",
            "F4",
            "F8_E8M0",
            "C64",
            "U16",
            "X",
        ]
    ),
    st.lists(st.sampled_from([0, 1, 2, 3, 10**6, 10**12, 2**63, 2**64, -1]), max_size=3),
    st.lists(st.sampled_from([0, 8, 24, 10**12, 2**64, -1]), min_size=2, max_size=2),
)


@amounts
def test_weights_with_a_forged_header_are_refused_in_a_sentence(tmp_path: Path, examples: int) -> None:
    reader = Reader("initial weights, forged header", "w.safetensors", start, ())

    def read(parts: tuple[str, list[int], list[int]]) -> None:
        dtype, shape, ends = parts
        header = json.dumps({"weight": {"dtype": dtype, "shape": shape, "data_offsets": ends}}).encode()
        check(reader, len(header).to_bytes(8, "little") + header + bytes(24), tmp_path)

    for_all(examples, forged_headers, read)


class Engine:
    """The node in this process."""

    def __init__(self, config: Any) -> None:
        self.side = make_worker(config.table())

    def gather(self, request: SumRequest) -> PartialSum:
        return self.side.gather(request)

    def close(self) -> None:
        """Nothing to release."""


CONFIG = small(optimizer="dp-sgd", seed=5, rounds=2, accounting="rdp", dataset="digits")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of a finished run."""
    folder = tmp_path_factory.mktemp("run") / "run"
    execute(make_plan(CONFIG), Engine(CONFIG), RunFolder.create(folder))
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def resume(path: Path) -> object:
    return checkpoints.read(path.parent, make_plan(CONFIG))


@amounts
@pytest.mark.parametrize(
    "name", ["state.safetensors", "metrics.jsonl", "report.json", "ledger.jsonl", "config.toml"]
)
def test_a_run_with_a_hostile_file_is_not_resumed(
    run: dict[str, bytes], name: str, tmp_path: Path, examples: int
) -> None:
    beside = {other: data for other, data in run.items() if other != name}
    reader = Reader(
        f"resumed run, {name}",
        name,
        resume,
        (run[name],),
        beside=beside,
        names=("FOLDER", "ledger", "inner"),
        slack=1 << 25,
        times=300,
    )
    run_hostile(reader, examples, tmp_path)


ABOUT = ["step", "resumed", "releases", "link", "config", "model", "code", "untrained", "silos"]


@amounts
def test_a_checkpoint_with_forged_facts_is_not_resumed(
    run: dict[str, bytes], tmp_path: Path, examples: int
) -> None:
    for name, data in run.items():
        (tmp_path / name).write_bytes(data)
    with safe_open(tmp_path / "state.safetensors", "pt") as file:
        about = json.loads(file.metadata()["fedpriv"])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118

    def read(changes: Any) -> None:
        forged = json.dumps({**about, **changes} if isinstance(changes, dict) else changes)
        (tmp_path / "state.safetensors").write_bytes(tensor_io.packed(tensors, {"fedpriv": forged}))
        outcome(
            lambda: resume(tmp_path / "x"),
            ("FOLDER", "ledger", "model"),
            "resumed run, forged facts",
            1 << 25,
        )

    for_all(examples, st.dictionaries(st.sampled_from(ABOUT), anything, min_size=1) | anything, read)


@amounts
@pytest.mark.parametrize("name", ["model.safetensors", "metrics.jsonl", "report.json", "config.toml"])
@pytest.mark.parametrize("what", ["result", "comparison"])
def test_a_result_with_a_hostile_file_is_refused_in_a_sentence(
    run: dict[str, bytes], name: str, what: str, tmp_path: Path, examples: int
) -> None:
    beside = {other: data for other, data in run.items() if other != name}
    read = {
        "result": lambda path: load_result(path.parent),
        "comparison": lambda path: comparison.read_one(path.parent),
    }[what]
    reader = Reader(
        f"{what}, {name}",
        name,
        read,
        (run[name],),
        beside=beside,
        names=("folder", "FOLDER", "inner", "unknown key", *CONFIG.keys()),
        slack=1 << 25,
        times=300,
    )
    run_hostile(reader, examples, tmp_path)
