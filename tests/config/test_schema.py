"""The flat configuration: what it accepts, and that it refuses everything else in one line."""

from __future__ import annotations

import math
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpriv._internal.settings import Scalar, is_filled, toml_value
from fedpriv._internal.validation import ArgumentError
from fedpriv.config.reading import read_assignment, read_file
from fedpriv.config.schema import Config, unused

ROOT = Path(__file__).parents[2]


def refusal(values: dict[str, object]) -> str:
    with pytest.raises(ArgumentError) as caught:
        Config.parse(values)
    return str(caught.value)


def test_a_mistyped_key_is_named_with_the_nearest_one() -> None:
    assert refusal({"cliping-norm": 1.0}) == "unknown key 'cliping-norm'; did you mean 'clip-norm'?"
    assert "fedpriv simulate --help" in refusal({"zzz": 1})


def test_a_mistyped_word_gets_the_nearest_one_as_a_hint() -> None:
    assert refusal({"optimizer": "dp-sdg"}) == "optimizer is 'dp-sdg'; did you mean 'dp-sgd'?"
    assert "did you mean" not in refusal({"optimizer": "zzz"})
    assert "did you mean" not in refusal({"rounds": "dp-sgd"})


IMPOSSIBLE: list[tuple[str, object]] = [
    ("image-size", -1),
    ("devices", -1),
    ("test-part", "best"),
    ("vocabulary", -1),
    ("sequence-length", -1),
    ("input-mean", math.inf),
    ("input-std", 0.0),
    ("clients", 0),
    ("clients", 10**12 + 1),
    ("clients", 2.5),
    ("clients", 1e300),
    ("partition", "random"),
    ("examples-per-client", 0),
    ("client-sizes", "zipf"),
    ("dirichlet-alpha", 0.0),
    ("labels-per-client", 0),
    ("partition-seed", -1),
    ("level", "server"),
    ("silo-steps", 0),
    ("silo-sampling", "same"),
    ("noise-bands", -1),
    ("noise-cohort", -1),
    ("lora-rank", -1),
    ("lora-alpha", -1),
    ("noise-population", 10**12 + 1),
    ("unit", "user"),
    ("sampler", "shuffle"),
    ("sampling-rate", 0.0),
    ("sampling-rate", 1.1),
    ("sampling-rate", "a tenth"),
    ("relation", "swap"),
    ("rounds", 0),
    ("rounds", True),
    ("rounds", "10"),
    ("optimizer", "zzz"),
    ("learning-rate", -1.0),
    ("learning-rate", math.inf),
    ("learning-rate-schedule", "cosin"),
    ("learning-rate-end", 1.5),
    ("warmup-steps", -1),
    ("momentum", 1.0),
    ("beta1", 1.0),
    ("beta2", -0.1),
    ("adam-epsilon", -1.0),
    ("clip-norm", 0.0),
    ("clipping", "by-layer"),
    ("precision", "float16"),
    ("clip-norm", math.nan),
    ("rho-c", -2.0),
    ("rho-mu", math.inf),
    ("noise-schedule", "linear"),
    ("relative-noise-file", 3),
    ("adaptive-quantile", 1.0),
    ("adaptive-step", 0.0),
    ("adaptive-share", 1.0),
    ("adp-a", -1.0),
    ("adp-c", math.inf),
    ("adp-noise", "none"),
    ("adp-nu", 0.0),
    ("adp-beta", -1.0),
    ("adp-period", 0),
    ("dp2-variant", "both"),
    ("dp2-sgd-steps", 0),
    ("dp2-adaptive-steps", 0),
    ("dp2-adaptive-learning-rate", -1.0),
    ("dp2-adaptive-clip-norm", -1.0),
    ("dp2-epsilon", 0.0),
    ("dp2-beta", 1.0),
    ("dp2-noise-correction", 1),
    ("adadp-tolerance", -1.0),
    ("adadp-alpha-min", 1.1),
    ("adadp-alpha-max", 0.9),
    ("adadp-discard", "no"),
    ("adadp-decay-after", -2),
    ("adadp-epoch", 0),
    ("adadp-decay", -0.1),
    ("adadp-variant", "authors"),
    ("srm-gamma", 0.0),
    ("srm-gamma", 1.1),
    ("srm-difference-clip-norm", math.nan),
    ("srm-first-cohort", 0.0),
    ("srm-step", "adaptive"),
    ("srm-zeta", 0.0),
    ("srm-smoothness", 0.0),
    ("srm-n0", 0.0),
    ("srm-random-iterate", 1),
    ("clip-gamma", 0.0),
    ("augmentation-copies", -1),
    ("augmentation-shift", -1),
    ("augmentation-flip", 1),
    ("augmentation-deform", -0.1),
    ("regulariser", "l1"),
    ("regularisation", 0.0),
    ("averaging", 1.0),
    ("noise-decay", -1.0),
    ("noise-epoch", 0),
    ("noise-period", -1),
    ("noise-end", 1.0),
    ("public-examples", -1),
    ("public-batch", -1),
    ("adadps-epsilon", 0.0),
    ("adadps-beta", 1.0),
    ("pda-horizon", -1),
    ("adaclip-min-variance", 0.0),
    ("adaclip-max-variance", 1e25),
    ("adaclip-mean-decay", 1.0),
    ("adaclip-variance-decay", -0.1),
    ("spiderboost-phase", 0),
    ("spiderboost-full-cohort", 0.0),
    ("spiderboost-smoothness", 0.0),
    ("spiderboost-difference-clip-norm", -1.0),
    ("noisy-adagrad-clip-norm", -1.0),
    ("noisy-adagrad-rank", -1),
    ("noisy-adagrad-epsilon", 0.0),
    ("features", "fourier"),
    ("work", "epochs"),
    ("local-steps", 0),
    ("local-learning-rate", math.inf),
    ("local-batch-size", -1),
    ("placement", "centre"),
    ("epsilon", 0.0),
    ("epsilon", math.nan),
    ("epsilon", True),
    ("delta", 1.0),
    ("delta", -1e-9),
    ("accounting", "moments"),
    ("max-participations", -1),
    ("min-replies", -1),
    ("colluding-parties", -1),
    ("noise-draws", "discrete"),
    ("seed", -2),
    ("nodes-own-data", 1),
    ("min-nodes", -1),
    ("start-timeout", 0.0),
    ("secure-aggregation", 1),
    ("engine", "spark"),
    ("actors", -1),
    ("cpus-per-actor", 0.0),
    ("gpus-per-actor", -0.5),
    ("chunk-size", -1),
    ("memory-budget", 0),
    ("reply-timeout", 0.0),
    ("round-deadline", -1.0),
    ("audit", "yes"),
    ("planted-canaries", -1),
    ("continues", 7),
    ("evaluate-every", 0),
    ("out", {"a": 1}),
    ("overwrite", "yes"),
]


@pytest.mark.parametrize(("key", "value"), IMPOSSIBLE)
def test_an_impossible_value_is_refused_in_one_line_that_names_it(key: str, value: object) -> None:
    message = refusal({key: value})
    assert message.startswith(f"{key} is {value!r}; it must ")
    assert "\n" not in message


def test_every_key_is_described_and_every_bounded_key_has_an_impossible_value() -> None:
    assert all(field.description for field in Config.all_fields().values())
    # These are checked where they are used.
    free = {
        "dataset",
        "data-folder",
        "model",
        "loss",
        "initial-weights",
        "clip-norm-file",
        "device",
        "frozen",
        "lora-layers",
        "lora-beside",
    }
    free |= {"features-folder", "ledger-anchor", "ledger-anchor-command"}
    assert {key for key, _ in IMPOSSIBLE} | free == set(Config.keys())


def test_keys_may_be_written_as_python_writes_names() -> None:
    assert Config.parse({"learning_rate": 0.5, "clip-norm": 2}) == Config.parse(
        {"learning-rate": 0.5, "clip_norm": 2}
    )
    assert (
        refusal({"clip_norm": 1, "clip-norm": 2})
        == "clip-norm is given twice, with hyphens and with underscores"
    )
    assert refusal({"cliping_norm": 1.0}) == "unknown key 'cliping-norm'; did you mean 'clip-norm'?"
    assert refusal({"clip_norm": -1.0}).startswith("clip-norm is -1.0; it must ")


def test_whole_numbers_are_numbers_however_they_are_written() -> None:
    assert Config.parse({"epsilon": 2}).epsilon == 2.0
    million = Config.parse(dict([read_assignment("clients=1e6"), ("seed", -1.0)]))
    assert (repr(million.clients), repr(million.seed)) == ("1000000", "-1")
    assert Config.parse(tomllib.loads(million.toml())) == million


def test_a_nested_table_of_settings_gets_a_hint(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text("[privacy]\nepsilon = 1\n")
    assert "'privacy'; all keys stand at the top, in no table" in refusal(read_file(tmp_path / "c.toml"))


def test_a_text_without_quotes_gets_a_hint(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text("model = cnn\n")
    with pytest.raises(ArgumentError, match=r'line 1.*texts stand in quotes, as in model = "cnn"$'):
        read_file(tmp_path / "c.toml")


def test_resolved_fills_in_what_zero_stands_for() -> None:
    dynamic = Config.parse({"clients": 500}).resolved()
    assert (dynamic.own.rho_c, dynamic.own.rho_mu, dynamic.learning_rate) == (2.0, 2.0, 5.0)
    assert dynamic.delta == 1 / 5000
    static = Config.parse({"optimizer": "dp-adam"}).resolved()
    assert (static.learning_rate, static.beta2, static.adam_epsilon) == (0.01, 0.999, 1e-8)
    steps = {"dp-yogi": 0.02, "dynamic-dp-adagrad": 0.1, "adp-sgd": 60.0, "adaptive-adp-sgd": 20.0}
    for name, step in {**steps, "dp2-adam": 4.0, "adadp": 8.0, "dp-srm": 4.0}.items():
        assert Config.parse({"optimizer": name}).resolved().learning_rate == step
    local = {"work": "local-steps", "local-steps": 10}
    for name, step in {"dp-sgd": 1.0, "dp-srm": 1.0, "dp2-adam": 1.0, "adadp": 2.0, "dp-adam": 0.01}.items():
        assert Config.parse({"optimizer": name, **local}).resolved().learning_rate == step
    srm = Config.parse({"optimizer": "dp-srm", "clip-norm": 3.0}).resolved().own
    assert (srm.srm_gamma, srm.srm_difference_clip_norm) == (0.5, pytest.approx(0.3))
    dp2 = Config.parse({"optimizer": "dp2-yogi", "clip-norm": 3.0, "learning-rate": 2}).resolved().own
    assert (dp2.dp2_adaptive_clip_norm, dp2.dp2_adaptive_learning_rate) == (3000.0, 0.002)
    assert Config.parse({"optimizer": "adp-sgd", "rounds": 9}).resolved().own.adp_a == 9.0
    decay = Config.parse({"noise-schedule": "polynomial", "rounds": 9, "noise-epoch": 2}).resolved()
    assert (decay.own.noise_decay, decay.own.noise_period) == (3.0, 5)
    assert (decay.own.rho_c, decay.own.rho_mu) == (1.0, 1.0)
    momentum = Config.parse({"optimizer": "dp-sgd", "momentum": 0.75}).resolved()
    assert momentum.learning_rate == 1.0
    silos = Config.parse({"unit": "example", "clients": 4, "examples-per-client": 25}).resolved()
    assert silos.units == 100
    assert silos.delta == 1 / 1000


@pytest.mark.parametrize("optimizer", ["dynamic-dp-adam", "dp-srm", "pda-dpmd"])
def test_resolved_changes_the_filled_keys_alone(optimizer: str) -> None:
    """Each filled key changes in at least one of these runs."""
    schedule = {"noise-schedule": "step"} if optimizer.startswith("dynamic-") else {}
    config = Config.parse({"optimizer": optimizer, **schedule})
    before, after = config.table(), config.resolved().table()
    filled = [
        key for key, field in {**Config.fields(), **type(config.own).fields()}.items() if is_filled(field)
    ]
    assert {key for key in before if before[key] != after[key]} <= set(filled)
    assert config.derived() == config.resolved().derived() == {key: after[key] for key in filled}
    unused = config.without_effect()
    assert all(after[key] != config.all_fields()[key].default for key in filled if key not in unused)


def test_resolved_keeps_what_was_given_and_is_idempotent() -> None:
    given_values = {"rho-c": 3.0, "rho-mu": 1.0, "learning-rate": 0.5, "delta": 1e-9}
    resolved = Config.parse(given_values).resolved()
    assert {key: resolved.table()[key] for key in given_values} == given_values
    assert resolved.resolved() == resolved


def test_toml_reads_back() -> None:
    config = Config.parse({"clip-norm": math.inf, "out": 'a "b"\\c', "overwrite": True, "epsilon": 1e-7})
    assert Config.parse(tomllib.loads(config.toml())) == config


@given(st.one_of(st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False), st.text()))
def test_every_scalar_survives_toml(value: Scalar) -> None:
    if isinstance(value, str):
        value = value.encode("utf-8", "ignore").decode()  # TOML has no lone surrogates
    assert tomllib.loads(f"x = {toml_value(value)}") == {"x": value}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("epsilon=2", ("epsilon", 2)),
        ("epsilon = 2.5", ("epsilon", 2.5)),
        ("clip-norm=inf", ("clip-norm", math.inf)),
        ("overwrite=true", ("overwrite", True)),
        ("optimizer=dp-sgd", ("optimizer", "dp-sgd")),
        ('optimizer="dp-sgd"', ("optimizer", "dp-sgd")),
        ("out=a=b", ("out", "a=b")),
        ("out=", ("out", "")),
        ("dataset= mnist ", ("dataset", "mnist")),
        ("out=x\ny = 2", ("out", "x\ny = 2")),
    ],
)
def test_assignments(text: str, expected: tuple[str, Scalar]) -> None:
    assert read_assignment(text) == expected


@pytest.mark.parametrize("text", ["epsilon", "=3", " = 3", ""])
def test_malformed_assignments_are_refused(text: str) -> None:
    with pytest.raises(ArgumentError, match="key=value"):
        read_assignment(text)


def test_files_are_read_or_refused(tmp_path: Path) -> None:
    good, bad, binary = (tmp_path / name for name in ("good.toml", "bad.toml", "binary.toml"))
    good.write_text("epsilon = 2.0\nplacement = 'local'\n")
    assert Config.parse(read_file(good)).placement == "local"
    bad.write_text("epsilon 2")
    binary.write_bytes(b"\xff\xfe\x00")
    for path in (bad, binary, tmp_path / "none.toml", tmp_path):
        with pytest.raises(ArgumentError, match=str(path)):
            read_file(path)


def test_flower_knows_every_key_with_the_same_default() -> None:
    table = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    assert table == Config().table()
    assert all(type(table[key]) is type(value) for key, value in Config().table().items())


@pytest.mark.parametrize("dataset", ["digits", "imdb-bag", "mine:data"])
def test_a_setting_of_other_data_sets_is_refused(dataset: str) -> None:
    config = Config.parse({"dataset": dataset, "sequence-length": 64})
    found = unused(Config.parse({"dataset": "imdb", "sequence-length": 64}))
    assert found is None
    assert unused(config) == ("sequence-length", "a data set with this choice; see `fedpriv data info NAME`")


def test_a_data_sets_number_is_0_or_large_enough() -> None:
    with pytest.raises(ArgumentError, match="image-size is 7; it must be 0 or at least 8"):
        Config.parse({"dataset": "pneumonia", "image-size": 7})
