"""The result of a run, and the same result loaded from its folder."""

from __future__ import annotations

import builtins
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

import fedpriv
from fedpriv.accounting import LedgerError
from fedpriv.accounting.head import head_path
from fedpriv.data import load
from fedpriv.models.weights import start_from
from fedpriv.node.policy import as_taken

FEW = {"model": "logistic", "clients": 500, "sampling_rate": 0.1, "rounds": 4, "engine": "in-process"}
FEW |= {"evaluate_every": 2}


class Net(nn.Module):
    """With a frozen layer, buffers, and a weight that has two names."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(5, 6).requires_grad_(False)
        self.first, self.tied = nn.Linear(6, 6), nn.Linear(6, 6)
        self.tied.weight = self.first.weight
        self.last = nn.Linear(6, 2)
        self.register_buffer("shift", torch.full((5,), 0.5))
        self.register_buffer("count", torch.tensor(3))

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.first(self.frozen(x + self.shift)))
        return self.last(torch.tanh(self.tied(hidden)))


def data() -> fedpriv.data.Arrays:
    x = np.random.default_rng(3).standard_normal((600, 5)).astype(np.float32)
    y = (x[:, 0] > 0).astype(np.int64)
    return fedpriv.data.Arrays("mine", x[:500], y[:500], x[500:], y[500:], classes=2)


def names(path: Path) -> tuple[set[str], dict[str, str]]:
    with safe_open(path, "pt") as file:
        return set(file.keys()), file.metadata()


@pytest.mark.usefixtures("rendered_pictures")
def test_a_result_reads_well() -> None:
    result = fedpriv.simulate(FEW)
    assert repr(result).startswith("Result(test accuracy ")
    assert "against anyone who sees the released models" in repr(result)
    table = result._repr_html_()
    for word in (
        "epsilon",
        "of 3",
        "an upper bound",
        "add or remove one unit",
        "client: a client",
        "dynamic-dp",
    ):
        assert word in table
    assert "http" not in table
    assert result.score == result.metrics[-1]["accuracy"]
    figure = result.plot()
    assert isinstance(figure, Figure)
    assert figure._repr_png_()[:4] == b"\x89PNG"
    frame = result.to_pandas()
    assert list(frame.index) == [2, 4]
    assert frame["accuracy"].iloc[-1] == result.score


def test_runs_that_are_not_private_are_marked() -> None:
    result = fedpriv.simulate(FEW, placement="none", seed=1)
    assert "not private" in repr(result)
    assert "not private" in result._repr_html_()
    assert result.epsilon == float("inf")
    assert result.delta is None


def test_values_are_escaped() -> None:
    source = data()
    source.name = "<script>"
    assert "<script>" not in fedpriv.simulate(FEW, dataset=source, clients=500)._repr_html_()


def test_without_pandas_a_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    result, ours = fedpriv.simulate(FEW, rounds=1), builtins.__import__

    def without(name: str, *arguments: Any) -> Any:
        if name == "pandas":
            raise ImportError(name)
        return ours(name, *arguments)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match=r"pip install 'fedpriv\[pandas\]'"):
        result.to_pandas()


@pytest.mark.parametrize("how", ["folder", "save"])
def test_a_folder_gives_the_result_back(tmp_path: Path, how: str) -> None:
    settings = {**FEW, "dataset": "digits", "input_mean": 0.13, "input_std": 0.31, "optimizer": "dp-adam"}
    folder = tmp_path / "run"
    result = fedpriv.simulate(settings, folder=folder if how == "folder" else None)
    if how == "save":
        assert result.folder is None
        result.save(folder)
        with pytest.raises(fedpriv.ArgumentError, match="new or empty folder"):
            result.save(folder)
    again = fedpriv.load_result(folder)
    assert again.report == json.loads(json.dumps(result.report))
    assert (again.metrics, again.stopped, again.config) == (result.metrics, result.stopped, result.config)
    assert torch.equal(again.params, result.params)
    assert again.ledger == result.ledger == (folder / "ledger.jsonl").read_bytes()
    assert again.epsilon == result.epsilon
    x, y = load("digits").test()
    for model in (result.model(), again.model()):
        assert not model.training
        assert float((model(x).argmax(1) == y).float().mean()) == pytest.approx(result.score)
    assert isinstance(again.plot(), Figure)


def test_a_model_with_frozen_parts_is_whole(tmp_path: Path) -> None:
    net = Net()
    few = {**FEW, "dataset": data(), "model": net, "clients": 500}
    result = fedpriv.simulate(few, folder=tmp_path / "run")
    there, about = names(tmp_path / "run" / "model.safetensors")
    assert there == set(net.state_dict())
    trained = json.loads(about["trained"])
    assert trained == [name for name, p in net.named_parameters() if p.requires_grad]
    model = result.model()
    assert type(model) is Net
    assert torch.equal(model.first.weight, model.tied.weight)
    assert not torch.equal(model.first.weight, net.first.weight)
    assert torch.equal(model.frozen.weight, net.frozen.weight)
    again = fedpriv.load_result(tmp_path / "run")
    with pytest.raises(fedpriv.ArgumentError, match=r"give it here again, model\(my_module\)"):
        again.model()
    x = torch.ones(3, 5)
    assert torch.equal(again.model(Net())(x), model(x))
    with pytest.raises(fedpriv.ArgumentError, match=r"module is 'Linear'; it must be the model"):
        again.model(nn.Linear(2, 2))


@pytest.mark.parametrize("name", ["config.toml", "report.json", "metrics.jsonl", "model.safetensors"])
def test_a_folder_that_is_damaged_is_refused(tmp_path: Path, name: str) -> None:
    folder = fedpriv.simulate(FEW, rounds=1).save(tmp_path / "run")
    (folder / name).unlink()
    with pytest.raises(fedpriv.ArgumentError, match=r"^folder is "):
        fedpriv.load_result(folder)


def test_a_folder_that_is_not_there_is_said_to_be_missing(tmp_path: Path) -> None:
    with pytest.raises(fedpriv.ArgumentError, match="output folder of a run \\(there is no such folder\\)"):
        fedpriv.load_result(tmp_path / "run")
    (tmp_path / "run").write_text("a file")
    with pytest.raises(fedpriv.ArgumentError, match="output folder of a run \\(it is a file\\)"):
        fedpriv.load_result(tmp_path / "run")


def test_a_folder_with_something_in_it_is_refused_in_pythons_words(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("dear")
    result, said = fedpriv.simulate(FEW, rounds=1), r"^folder is .*empty folder \(or give overwrite=True\)$"
    with pytest.raises(fedpriv.ArgumentError, match=said):
        result.save(tmp_path)


@pytest.mark.parametrize("how", ["cut", "edited", "replaced", "cut with its head"])
def test_a_result_whose_ledger_is_not_the_runs_is_refused(tmp_path: Path, how: str) -> None:
    """Its epsilon would be that of a report which nothing supports."""
    folder = fedpriv.simulate(FEW).save(tmp_path / "run")
    ledger, other = (
        folder / "ledger.jsonl",
        fedpriv.simulate({**FEW, "epsilon": 1}).save(tmp_path / "other") / "ledger.jsonl",
    )
    lines = ledger.read_bytes().splitlines(keepends=True)
    if how.startswith("cut"):
        ledger.write_bytes(b"".join(lines[:-1]))
    elif how == "edited":
        ledger.write_bytes(b"".join([lines[0], lines[1].replace(b"noise", b"noose"), *lines[2:]]))
    else:
        ledger.write_bytes(other.read_bytes())
    if how in ("replaced", "cut with its head"):
        head_path(ledger).unlink()
    with pytest.raises(LedgerError, match=r"ledger\.jsonl"):
        fedpriv.load_result(folder)


def weights(path: Path, **changes: Tensor | None) -> Path:
    """A file of starting weights for logistic on digits."""
    tensors = {"1.weight": torch.zeros(10, 784), "1.bias": torch.ones(10)}
    tensors |= {name.replace("_", "."): value for name, value in changes.items() if value is not None}
    for name in [name.replace("_", ".") for name, value in changes.items() if value is None]:
        del tensors[name]
    save_file(tensors, path)
    return path


def test_training_starts_from_a_file(tmp_path: Path) -> None:
    path = weights(tmp_path / "start.safetensors")
    still = {**FEW, "rounds": 1, "learning_rate": 1e-30, "optimizer": "dp-sgd"}
    result = fedpriv.simulate(still, initial_weights=path)
    tensors = result.trained.tensors
    assert torch.equal(tensors["1.bias"], torch.ones(10))
    assert result.report["initial weights"] == str(path)
    folder = fedpriv.simulate(FEW).save(tmp_path / "run")
    trained = fedpriv.simulate(still, initial_weights=folder / "model.safetensors")  # of an earlier run
    assert torch.equal(trained.params, fedpriv.load_result(folder).params)
    assert "starting weights" in (trained.save(tmp_path / "more") / "report.md").read_text()


def test_frozen_parameters_of_the_file_are_loaded_too(tmp_path: Path) -> None:
    other = Net()
    with torch.no_grad():
        other.frozen.weight.fill_(0.25)
    path = tmp_path / "start.safetensors"
    save_file({name: t.clone() for name, t in other.state_dict().items()}, path)
    few = {**FEW, "dataset": data(), "model": Net(), "clients": 500, "rounds": 1}
    assert float(fedpriv.simulate(few, initial_weights=path).model().frozen.weight[0, 0]) == 0.25


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"1_bias": None}, r"1\.bias is missing; it has 1\.weight"),
        ({"1_bias": torch.ones(3)}, r"1\.bias has the shape \(3,\), but \(10,\) in the model"),
        ({"2_bias": torch.ones(3)}, r"the model has no 2\.bias"),
        ({"1_bias": torch.full((10,), torch.nan)}, r"contain finite numbers \(1\.bias has NaN or infinity\)"),
    ],
)
def test_weights_that_do_not_fit_are_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    path = weights(tmp_path / "start.safetensors", **changes)
    with pytest.raises(fedpriv.ArgumentError, match=rf"^initial_weights is .*{message}"):
        fedpriv.simulate(FEW, initial_weights=path, folder=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_file_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(fedpriv.ArgumentError, match=r"be an existing \.safetensors file"):
        fedpriv.simulate(FEW, initial_weights=tmp_path / "no.safetensors")
    (tmp_path / "bad.safetensors").write_bytes(b"no tensors")
    with pytest.raises(fedpriv.ArgumentError, match="be a file in the safetensors format"):
        fedpriv.simulate(FEW, initial_weights=tmp_path / "bad.safetensors")


def test_a_report_names_a_replaced_optimizer() -> None:
    from dataclasses import replace

    from fedpriv.config.plan import make_plan
    from fedpriv.optimizers import dp_adam
    from fedpriv.simulation.run import simulate

    plan = make_plan(fedpriv.Config.parse({**FEW, "rounds": 1}))
    assert simulate(plan.config, plan=plan).report["optimizer"] == "dynamic-dp-sgd"
    other = replace(plan, mechanism=replace(plan.mechanism, optimizer=dp_adam(0.01, 1.0)))
    assert simulate(plan.config, plan=other).report["optimizer"] == "dp-adam"


def test_a_node_that_owns_its_data_reads_no_file_of_weights(tmp_path: Path) -> None:
    """The server sends only trained parameters; frozen ones would differ on the nodes."""
    run = {"nodes-own-data": True, "initial-weights": "/etc/weights.safetensors"}
    assert as_taken(run, {"data-file": "mine.npz"})["initial-weights"] == ""
    net, path = Net(), tmp_path / "start.safetensors"
    save_file({name: t.clone() for name, t in net.state_dict().items()}, path)
    with pytest.raises(fedpriv.ArgumentError, match="contain trained parameters only"):
        start_from(net, str(path), trained_only=True)


STORED = Path(__file__).parents[1] / "fixtures" / "v0_1_0"


def test_a_folder_of_0_1_0_opens() -> None:
    result = fedpriv.load_result(STORED / "finished")
    assert result.epsilon == json.loads((STORED / "expected.json").read_text())["results"][0]["epsilon"]
    source = load(result.config.dataset)
    x, y = source.test()
    score = float((result.model()(x).argmax(1) == y).float().mean())
    assert score == pytest.approx(result.score, abs=2e-3)
    assert result.params.shape == (7850,)
    assert "epsilon" in repr(result)
    with pytest.raises(fedpriv.ArgumentError, match=r"`fedpriv resume .*` continues an interrupted run"):
        fedpriv.load_result(STORED / "interrupted")
