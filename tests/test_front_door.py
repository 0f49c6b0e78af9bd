"""What ``import fedpriv`` offers."""

from __future__ import annotations

import importlib
import pickle
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, TensorDataset

import fedpriv
from fedpriv._internal.user_code import content_digest

GENERATOR = np.random.default_rng(0)
X = GENERATOR.standard_normal((1700, 20)).astype(np.float32)
Y = (X[:, 0] + X[:, 1] > 0).astype(np.int64)
PARTS = (X[:1500], Y[:1500], X[1500:], Y[1500:])


def mine() -> fedpriv.data.Arrays:
    return fedpriv.data.Arrays("mine", *PARTS, classes=2)


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(20, 8), nn.Tanh(), nn.Linear(8, 2))


class Halving(fedpriv.optimizers.BaseOptimizer):
    """Clipped gradient steps whose length halves every 20 releases."""

    def update(self, state, answer):
        rate = 4.0 * 0.5 ** (state.step // 20)
        return state.advanced(state.params - rate * answer[0], state.slots)


def in_a_new_process(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_importing_it_imports_nothing_heavy() -> None:
    heavy = "torch", "numpy", "scipy", "ray", "flwr", "pydantic", "matplotlib"
    code = f"import fedpriv, sys; dir(fedpriv); print([m for m in {heavy} if m in sys.modules])"
    assert in_a_new_process(code).strip() == "[]"


def test_every_name_is_there_first_and_last() -> None:
    code = "import fedpriv\nfor name in fedpriv.__all__: print(name, getattr(fedpriv, name) is not None)"
    assert in_a_new_process(code).split("\n")[:-1] == [f"{name} True" for name in fedpriv.__all__]
    assert set(fedpriv.__all__) <= set(dir(fedpriv))
    for name in ("simulate", "train", "compare", "audit", "account", "calibrate"):
        assert getattr(fedpriv, name).__name__ == name
    importlib.import_module("fedpriv.auditing.auditor")
    assert callable(fedpriv.audit)  # whatever was imported in between
    with pytest.raises(AttributeError, match="no attribute 'simluate'"):
        _ = fedpriv.simluate


def test_errors_have_the_name_that_they_are_imported_by() -> None:
    error = fedpriv.ArgumentError("no")
    assert f"{type(error).__module__}.{type(error).__qualname__}" == "fedpriv.ArgumentError"
    for package, names in {"data": ["DataError", "MissingDataError"], "accounting": ["LedgerError"]}.items():
        for name in names:
            found = getattr(getattr(fedpriv, package), name)
            assert f"{found.__module__}.{found.__qualname__}" == f"fedpriv.{package}.{name}"
    assert type(pickle.loads(pickle.dumps(error))) is fedpriv.ArgumentError  # as Ray sends it


def test_a_federation_by_settings() -> None:
    result = fedpriv.simulate(
        dataset="infinite-digits", model="logistic", clients=2_000, optimizer="dp-srm", epsilon=1,
        sampling_rate=0.1, rounds=4, engine="in-process",
    )  # fmt: skip
    assert result.epsilon <= 1
    assert result.report["optimizer"] == "dp-srm"
    config = fedpriv.Config.parse({"model": "logistic", "clients": 500, "engine": "in-process"})
    again = fedpriv.simulate(config, sampling_rate=np.float64(0.1), rounds=np.int64(2), clients=600, seed=1)
    assert (again.config.clients, again.config.rounds, again.config.seed) == (600, 2, 1)


def test_a_federation_of_objects() -> None:
    module = net()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    state = torch.get_rng_state()
    result = fedpriv.simulate(
        dataset=mine(),
        model=module,
        optimizer=Halving(),
        clients=1500,
        sampling_rate=0.1,
        epsilon=5,
        rounds=40,
    )
    assert result.score > 0.8
    assert result.epsilon <= 5
    assert result.report["optimizer"] == f"{__name__}:Halving"
    assert result.report["data set"] == "in-memory:mine"
    assert all(torch.equal(before[name], tensor) for name, tensor in module.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)
    trained = result.model()
    assert isinstance(trained, nn.Sequential)
    score = float((trained(torch.from_numpy(PARTS[2])).argmax(1).numpy() == PARTS[3]).mean())
    assert score == pytest.approx(result.score, abs=1e-6)


def test_training_on_objects() -> None:
    optimizer = fedpriv.optimizers.dp_adam(3e-2, clip_norm=1)
    result = fedpriv.train(
        net(), mine(), optimizer=optimizer, epsilon=3, delta=1e-5, sampling_rate=0.05, rounds=40
    )
    assert result.score > 0.8
    assert result.report["privacy"]["unit"].startswith("example")
    assert (result.delta, result.config.units) == (1e-5, 1500)
    assert result.report["optimizer"] == "dp-adam"
    settings = result.report["optimizer settings"]
    assert (settings["learning_rate"], settings["clip_norm"]) == (0.03, 1)
    assert "beta1=0.9" in settings["rule"]
    assert "dp-adam, rule=Adam(beta1=0.9" in result._repr_html_()


@dataclass(frozen=True)
class Steps(Halving):
    """It has settings, and a part that cannot be written down."""

    rate: float = 0.25
    _cache: object = None
    layer: object = nn.ReLU


def test_a_report_names_your_own_class_and_its_settings() -> None:
    few = {"model": "logistic", "clients": 300, "sampling_rate": 0.1, "rounds": 1, "averaging": 0.5}
    for optimizer in (Steps(), Steps):
        report = fedpriv.simulate(few, optimizer=optimizer).report
        assert report["optimizer"] == f"{__name__}:Steps"
        assert report["optimizer settings"] == {"rate": 0.25}
    local = type("Local", (Halving,), {})  # in no module, as in a function or a notebook
    assert fedpriv.simulate(few, optimizer=local()).report["optimizer"] == "Local"


class Pairs(Dataset):
    def __init__(self, x: np.ndarray, y: np.ndarray) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.from_numpy(self.x[index]), int(self.y[index])


TENSORS = [torch.from_numpy(part) for part in PARTS]
FORMS = {
    "arrays": PARTS,
    "pairs of arrays": (PARTS[:2], PARTS[2:]),
    "tensors": tuple(TENSORS),
    "lists": tuple(part.tolist() for part in PARTS),
    "float64": (PARTS[0].astype(np.float64), PARTS[1] > 0, PARTS[2], PARTS[3].astype(np.uint8)),
    "tensor data sets": (TensorDataset(*TENSORS[:2]), TensorDataset(*TENSORS[2:])),
    "data sets": (Pairs(*PARTS[:2]), Pairs(*PARTS[2:])),
}


@pytest.mark.parametrize("form", FORMS)
def test_any_form_of_the_same_data_gives_the_same_run(form: str) -> None:
    few = {"model": "logistic", "sampling_rate": 0.1, "rounds": 2, "seed": 1, "epsilon": 5}
    expected = fedpriv.simulate(few, dataset=mine())
    result = fedpriv.simulate(few, dataset=FORMS[form])
    assert torch.equal(result.params, expected.params)
    assert result.config.clients == 1500


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        (PARTS[:2], "without a test part; give (x, y, test_x, test_y)"),
        (Pairs(*PARTS[:2]), "without a test part; give a pair (train, test)"),
        (PARTS[:3], "dataset has 3 parts"),
        (3, "dataset is a int"),
        ({"x": X}, "dataset is a dict"),
        (([[1.0], [2.0, 3.0]], [0, 1], [[1.0]], [0]), "x must have rows of one length"),
        ((X, np.array(["no", "yes"])[Y]) * 2, "it holds text. numpy.searchsorted(names, y) numbers texts"),
    ],
)
def test_objects_that_are_not_data_are_refused(dataset: object, message: str) -> None:
    with pytest.raises(fedpriv.FedprivError) as caught:
        fedpriv.simulate(dataset=dataset, model="logistic")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sampling_rate": 7}, "sampling_rate is 7; it must be at most 1"),
        ({"sampling_rat": 0.1}, "there is no argument 'sampling_rat'; did you mean 'sampling_rate'?"),
        ({"optimizer": "dp-sdg"}, "did you mean 'dp-sgd'?"),
        ({"optimizer": "dp-sgd", "srm_gamma": 0.7}, "srm_gamma is 0.7, which needs optimizer=dp-srm"),
        ({"local_steps": 2}, "local_steps is 2, which needs work=local-steps"),
        ({"work": "local_steps"}, "did you mean 'local-steps'?"),
        ({"max_participations": 3}, "max_participations is 3, which needs placement=local"),
        (
            {"model": net(), "engine": "ray"},
            "engine is 'ray'; it must be in-process where model is an object",
        ),
        ({"optimizer": 3}, "optimizer is 'in-memory:int'; it must have the methods"),
        ({"model": 5}, "model is 5; it must be a name, a torch module or a function that makes one"),
        ({"model": {"rounds": 5}}, "or a function that makes one (give settings by name, as in rounds=100)"),
        (
            {"model": PARTS},
            "model is a tuple of 4 entries, the first an ndarray of shape (1500, 20); it must be a name, a "
            "torch module or a function that makes one (the model comes first: train(model, dataset))",
        ),
        (
            {"dataset": mine(), "unit": "example"},
            "clients is missing: it is the number of silos that hold the 1,500 examples, such as 10 (unit=",
        ),
        (
            {"dataset": (PARTS[0], PARTS[1] + 1, PARTS[2], PARTS[3] + 1), "model": net()},
            "it must have 3 outputs for each example (one for each label of arrays, which begin at 0: the "
            "smallest one of the test examples is 1;",
        ),
        ({"loss": 0.5}, "loss is 0.5; it must be a name or a function"),
        (
            {"optimizer": Halving(), "learning_rate": 2.0},
            "learning_rate is 2.0, which needs an optimizer by name; set it where you make your own",
        ),
        (
            {"model": net(), "dataset": mine(), "engine": "ray"},
            "where dataset and model are objects in memory",
        ),
        ({"optimizer": torch.optim.SGD}, "optimizer is torch's SGD, which is not private; use one of"),
        ({"optimizer": torch.optim.Adam(net().parameters())}, "is torch's Adam, which is not private"),
        ({"out": "runs/mine"}, "there is no argument 'out'; did you mean 'folder'?"),
        ({"output_dir": "runs/mine"}, "there is no argument 'output_dir'; did you mean 'folder'?"),
        ({"folder": __file__}, "folder is"),
        ({"folder": 1}, "folder is 1; it must be the path of a folder"),
        ({"callbacks": print}, "callbacks is <built-in function print>; it must be fedpriv.Callback objects"),
        (
            {"dataset": mine(), "model": nn.Linear(20, 3)},
            "it must have 2 outputs for each example (one for each label of mine; the outputs of n examples "
            "are (n, 3))",
        ),
        (
            {"dataset": (PARTS[0], PARTS[1][:, None], PARTS[2], PARTS[3][:, None]), "model": net()},
            "it must have 1 output for each example (y of arrays holds rows of tags, (n, 1); labels are one "
            "number each, (n,); the outputs of n examples are (n, 2))",
        ),
        (
            {"dataset": (PARTS[0], PARTS[1] * 1.0, PARTS[2], PARTS[3] * 1.0), "model": net()},
            "labels are whole numbers, without a decimal point",
        ),
    ],
)
def test_errors_name_pythons_arguments(settings: dict[str, object], message: str) -> None:
    with pytest.raises(fedpriv.ArgumentError) as caught:
        fedpriv.simulate(**settings)
    assert message in str(caught.value)


def test_a_loss_that_is_none_is_not_taken_for_a_misplaced_model() -> None:
    with pytest.raises(fedpriv.ArgumentError) as caught:
        fedpriv.simulate(loss=[0.5])
    assert str(caught.value) == "loss is [0.5]; it must be a name or a function"


def broken(inputs: object) -> nn.Module:
    return nn.Linear("three", 2)


def test_an_error_in_a_users_own_code_says_where() -> None:
    with pytest.raises(fedpriv.UserCodeError) as caught:
        fedpriv.simulate(dataset=mine(), model=broken)
    line = broken.__code__.co_firstlineno + 1
    assert f"at {__file__}, line {line}, in broken" in str(caught.value)
    assert isinstance(caught.value.__cause__, TypeError)


class Failing(Halving):
    def update(self, state, answer):
        raise ZeroDivisionError("of the user's own")


def test_an_error_in_a_users_optimizer_is_the_users() -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        fedpriv.simulate(dataset=mine(), model=net(), optimizer=Failing(), sampling_rate=0.1, rounds=2)
    assert any(
        entry.name == "update" and entry.path.name == "test_front_door.py" for entry in caught.traceback
    )


def test_every_way_to_ask_for_ray_with_an_object_is_refused() -> None:
    with pytest.raises(fedpriv.ArgumentError, match="engine is 'ray'; it must be in-process"):
        fedpriv.simulate({"engine": "ray"}, dataset=mine())
    assert fedpriv.Config.parse({}).engine == "ray"  # by default, which gives way


def test_objects_end_with_the_run() -> None:
    config = fedpriv.simulate(dataset=mine(), model="logistic", sampling_rate=0.1, rounds=1).config
    with pytest.raises(fedpriv.ArgumentError, match="it was an object in memory; pass it again from Python"):
        fedpriv.simulate(config)


def test_progress_is_shown_where_it_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    few = {"model": "logistic", "clients": 500, "sampling_rate": 0.1, "rounds": 2, "engine": "in-process"}
    fedpriv.simulate(few)
    assert capsys.readouterr() == ("", "")
    fedpriv.simulate(few, progress=True)
    assert "round 2/2  test accuracy" in capsys.readouterr().err
    seen = []
    fedpriv.simulate(few, progress=seen.append)
    assert [status.round for status in seen] == [1, 2]


def test_data_in_memory_is_shown_without_its_values() -> None:
    assert (
        repr(mine())
        == f"Arrays('mine': 1,500 examples of shape (20,) and {len(X) - 1500} for tests, 2 labels)"
    )


def test_examples_that_no_client_has_are_told() -> None:
    few = {"model": "logistic", "sampling_rate": 0.1, "rounds": 1}
    left = fedpriv.simulate(few, dataset=mine(), clients=100)
    note = "100 of the 1,500 training examples of mine are used: clients=100 times examples_per_client=1; "
    assert any(text.startswith(note) for text in left.notes)
    for whole in ({}, {"clients": 100, "partition": "iid"}):
        assert not any("are used" in text for text in fedpriv.simulate(few, dataset=mine(), **whole).notes)


def test_comparison_and_audit() -> None:
    few = {"model": "logistic", "sampling_rate": 0.1, "rounds": 3, "epsilon": 8}
    found = fedpriv.compare(few, dataset=mine(), optimizer=Halving(), placements=["none", "central"])
    assert found["central"].report["optimizer"] == f"{__name__}:Halving"
    assert "epsilon against the server" in repr(found)
    assert "<table>" in found._repr_html_()
    assert len(found.plot().axes) == 1
    finding = fedpriv.audit(optimizer=Halving(), clients=500, sampling_rate=0.2, rounds=4, confidence=0.9999)
    assert not finding.violated
    assert repr(finding).startswith(
        "Finding(consistent with its ledger, at 0.9999 confidence; claimed epsilon "
    )
    with pytest.raises(fedpriv.ArgumentError, match="sampling_rate is 3"):
        fedpriv.audit(sampling_rate=3)
    assert list(fedpriv.compare(few, dataset=mine(), placements="none").results) == ["none"]
    with pytest.raises(fedpriv.ArgumentError, match=r"placements is \[\]"):
        fedpriv.compare(few, dataset=mine(), placements=[])
    with pytest.raises(fedpriv.ArgumentError, match=r"settings is 'x\.toml'; it must be a fedpriv"):
        fedpriv.simulate("x.toml")


def test_a_folder_that_is_in_use_is_named_as_python_names_it(tmp_path: Path) -> None:
    (tmp_path / "a file").touch()
    with pytest.raises(fedpriv.ArgumentError, match=r"^folder is .*\(or give overwrite=True\)$"):
        fedpriv.simulate(model="logistic", engine="in-process", folder=tmp_path)


def test_a_placement_that_an_error_names_is_one() -> None:
    with pytest.raises(fedpriv.ArgumentError, match="client, secure-aggregation"):
        fedpriv.compare(placements=["centrall"])


def test_a_configuration_takes_every_setting_by_its_name() -> None:
    config = fedpriv.Config(optimizer="dp-srm", srm_gamma=0.3, sampling_rate=0.02)
    assert config == fedpriv.Config.parse({"optimizer": "dp-srm", "srm-gamma": 0.3, "sampling-rate": 0.02})
    assert pickle.loads(pickle.dumps(config)) == config
    for settings, message in [
        ({"epsilon": -1}, "epsilon is -1; it must be greater than 0"),
        ({"sampling_rat": 0.1}, "did you mean 'sampling_rate'?"),
        ({"srm_gamma": 0.3}, "srm_gamma is 0.3, which needs optimizer=dp-srm"),
    ]:
        with pytest.raises(fedpriv.ArgumentError) as caught:
            fedpriv.Config(**settings)
        assert message in str(caught.value)


def test_account_takes_one_method_and_one_multiplier_for_each_release() -> None:
    given = {"sampling_rate": 0.1, "delta": 1e-5}
    answer = fedpriv.account(noise_multiplier=[1.0, 1.0, 1.0], methods="rdp", **given)
    assert answer.epsilon == fedpriv.account(noise_multiplier=1.0, steps=3, methods=["rdp"], **given).epsilon
    with pytest.raises(fedpriv.ArgumentError, match=r"methods is 'pdl'; .*did you mean 'pld'"):
        fedpriv.account(noise_multiplier=1.0, steps=3, methods="pdl", **given)


def test_account_and_calibrate() -> None:
    answer = fedpriv.account(sampling_rate=0.01, steps=1000, noise_multiplier=1.0, delta=1e-5)
    assert answer.epsilon == pytest.approx(1.83, abs=0.01)
    assert "gdp-clt" in repr(answer)
    assert "<table>" in answer._repr_html_()
    found = fedpriv.calibrate(epsilon=1.0, delta=1e-5, sampling_rate=0.01, steps=1000)
    assert found.noise_multiplier == pytest.approx(1.42, abs=0.01)
    assert 0.9 < found.epsilon <= 1
    rate = fedpriv.calibrate(epsilon=1.0, delta=1e-5, noise_multiplier=1.42, steps=1000).sampling_rate
    assert rate == pytest.approx(0.01, rel=0.05)
    for arguments, message in [
        ({"noise_multiplier": -1.0}, "noise_multiplier is -1"),
        ({"sampler": "poison"}, "did you mean 'poisson'"),
        ({"sampling_rate": None}, "sampling_rate is None; it must be given"),
    ]:
        with pytest.raises(fedpriv.ArgumentError, match=message):
            fedpriv.account(
                **{"sampling_rate": 0.1, "steps": 3, "noise_multiplier": 1.0, "delta": 1e-5} | arguments
            )
    with pytest.raises(fedpriv.ArgumentError, match="give exactly two of steps, sampling_rate"):
        fedpriv.calibrate(epsilon=1.0, delta=1e-5)


def test_a_run_of_objects_is_resumed_with_them(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    few = {"model": net(), "optimizer": Halving(), "sampling_rate": 0.1, "evaluate_every": 1, "seed": 3}

    def stop(status: Any) -> None:
        if status.round == 2:
            raise KeyboardInterrupt

    begun = fedpriv.simulate(dataset=mine(), **few, rounds=4, folder=folder, progress=stop)
    assert begun.stopped == "interrupted"
    assert begun.epsilon == 3  # the budget's, since somebody ended it
    with pytest.raises(fedpriv.ArgumentError, match="it was an object in memory; pass it again"):
        fedpriv.resume(folder)
    objects = {"dataset": mine(), "model": few["model"], "optimizer": few["optimizer"]}
    x, y, test_x, test_y = PARTS
    others = fedpriv.data.Arrays("mine", x + 1, y, test_x + 1, test_y, classes=2)
    with pytest.raises(fedpriv.ArgumentError, match="it is another dataset than the run's"):
        fedpriv.resume(folder, **{**objects, "dataset": others})
    with pytest.raises(fedpriv.ArgumentError, match="it is another model than the run's"):
        fedpriv.resume(folder, **{**objects, "model": net()})
    result = fedpriv.resume(folder, **objects)
    assert (result.stopped, result.metrics[-1]["round"]) == ("rounds", 4)
    whole = fedpriv.simulate(dataset=mine(), **few, rounds=4)
    torch.testing.assert_close(result.params, whole.params)
    with pytest.raises(fedpriv.ArgumentError, match=r"^folder is .*all 4 were run"):
        fedpriv.resume(folder, **objects)
    with pytest.raises(fedpriv.ArgumentError, match=r"^folder is .*give the folder of one run"):
        fedpriv.resume(tmp_path)


def focal(outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Lin et al. 2017, with gamma 2."""
    p = outputs.softmax(1).gather(1, y[:, None])[:, 0]
    return -((1 - p) ** 2) * p.log()


def test_a_user_loss() -> None:
    few = {"dataset": mine(), "model": net(), "sampling_rate": 0.1, "rounds": 20, "epsilon": 8, "seed": 1}
    result = fedpriv.simulate(few, loss=focal)
    assert result.score > 0.75
    assert result.report["loss"] == "in-memory:focal"
    plain = fedpriv.simulate(few).params
    assert not torch.equal(result.params, plain)
    by_class = fedpriv.simulate(few, loss=nn.CrossEntropyLoss(reduction="none"))
    torch.testing.assert_close(by_class.params, plain)


def failing(outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return outputs[:, 7]


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (failing, r"IndexError: .*, at .*test_front_door\.py, line \d+, in failing"),
        (nn.CrossEntropyLoss(), r"reduction='none'"),
        (lambda outputs, y: outputs.sum(1) - outputs.mean(), "be of each example alone"),
        ("cross-entropy", "loss is 'cross-entropy'; it must be your own"),
    ],
)
def test_a_loss_that_is_none_is_refused(loss: Any, message: str) -> None:
    with pytest.raises(fedpriv.ArgumentError, match=message):
        fedpriv.simulate(dataset=mine(), model=net(), loss=loss)


def test_a_comparison_in_a_folder_is_of_the_same_objects(tmp_path: Path) -> None:
    run = {
        "model": net(),
        "sampling_rate": 0.1,
        "rounds": 2,
        "optimizer": "dp-sgd",
        "placements": ["central"],
    }
    first = fedpriv.compare(dataset=mine(), folder=tmp_path / "both", **run)
    again = fedpriv.compare(dataset=mine(), folder=tmp_path / "both", **run)
    torch.testing.assert_close(again["central"].params, first["central"].params)
    x, y, test_x, test_y = PARTS
    others = fedpriv.data.Arrays("mine", x + 1, y, test_x + 1, test_y, classes=2)
    with pytest.raises(fedpriv.ArgumentError, match="holds runs of another dataset"):
        fedpriv.compare(dataset=others, folder=tmp_path / "both", **run)


def test_no_file_of_a_run_can_confirm_a_guess_of_the_examples() -> None:
    """Data sets that differ in a training example alone leave the same marks in checkpoints and sweeps."""
    x, y, *test = PARTS
    other = np.array(x)
    other[0] += 1
    marks = [fedpriv.data.Arrays("mine", one, y, *test, classes=2) for one in (x, other)]
    assert content_digest(marks[0]) == content_digest(marks[1]) != ""
    assert marks[0].digest() != marks[1].digest()
