"""The public configuration of a run: one flat table of scalars, the same keys everywhere.

The keys are those of Flower's run-config, of ``fedpriv simulate``'s TOML file and of its ``--set``
flags. Every key has a default and a description; unknown keys and impossible values are refused in one
line before any work starts. What the keys mean together is decided in :mod:`fedpriv.config.plan`.

>>> Config.parse({"sampling-rate": 0.02}).sampling_rate
0.02
>>> Config.parse({"sampling-rat": 0.02})
Traceback (most recent call last):
    ...
fedpriv._internal.validation.ArgumentError: unknown key 'sampling-rat'; did you mean 'sampling-rate'?
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from fedpriv._internal import validation
from fedpriv.config import hints

Scalar = str | int | float | bool


def by_key(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values by their keys, which may be written with underscores. Raises ArgumentError for a key that is
    given in both ways."""
    found = {_kebab(key): value for key, value in values.items()}
    for key in values:
        if len(found) < len(values) and _kebab(key) in values and _kebab(key) != key:
            raise validation.ArgumentError(f"{_kebab(key)} is given twice, as {key} too")
    return found


def _kebab(name: str) -> str:
    return name.replace("_", "-")


def _snake(key: str) -> str:
    return key.replace("-", "_")


def _whole(value: Any, field: FieldInfo) -> Any:
    """The value, as an int where the field wants one and a whole number is written as 1e6 is."""
    floats = field.annotation is int and isinstance(value, float)
    return int(value) if floats and value.is_integer() and abs(value) < 2**53 else value


def _refusal(key: str, value: Any, error: ErrorDetails, field: FieldInfo) -> validation.ArgumentError:
    """What pydantic found wrong with a setting, in our words and with what was most likely meant."""
    kind = error["type"]
    if kind == "literal_error":
        words = get_args(field.annotation)
        return validation.not_among(key, value, words, hints.of_value(key, value, words))
    if kind == "int_type" and isinstance(value, float) and value.is_integer():  # too large for _whole
        most = next((limit.le for limit in field.metadata if hasattr(limit, "le")), 2**53)
        return validation.fail(key, value, f"be at most {most:,}")
    allowed = {
        "bool_type": "be true or false",
        "finite_number": "be finite",
        "float_type": "be a number",
        "greater_than": "be greater than {gt:g}",
        "greater_than_equal": "be at least {ge:g}",
        "int_type": "be a whole number",
        "less_than": "be less than {lt:g}",
        "less_than_equal": "be at most {le:g}",
        "string_type": "be a text",
    }.get(kind, error["msg"])
    allowed = allowed.format(**error.get("ctx", {}))
    return validation.fail(key, value, allowed, hints.of_number(key, value))


class Config(BaseModel):
    """All settings of a run. Attributes are the keys with underscores for hyphens."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,  # neither "1" nor true is the number 1
        alias_generator=_kebab,
        populate_by_name=True,
        allow_inf_nan=False,
    )

    # Data and model
    dataset: str = Field(
        "infinite-digits", description="data set: see `fedpriv data list`; or of your own, as module:name"
    )
    data_folder: str = Field(
        "", description="where data files are; empty: $FEDPRIV_DATA, else ~/.cache/fedpriv"
    )
    image_size: int = Field(0, ge=0, description="pixels of a side, of pneumonia; 0: the data set's own")
    vocabulary: int = Field(
        0, ge=0, description="words told apart, of imdb, imdb-bag, stackoverflow-tags; 0: the data set's own"
    )
    sequence_length: int = Field(0, ge=0, description="words read of a text, of imdb; 0: the data set's own")
    model: str = Field(
        "cnn", description="a model of fedpriv.models: cnn, mlp, lstm, ...; or of your own, as module:name"
    )
    input_mean: float = Field(0.0, description="public constant: the model sees (x - mean) / std")
    input_std: float = Field(1.0, gt=0, description="public constant; the papers' MNIST has 0.1307, 0.3081")
    clients: int = Field(100_000, ge=1, le=10**12, description="N, the number of (virtual) clients")
    partition: Literal["one-example", "iid", "dirichlet", "shards", "natural"] = Field(
        "one-example",
        description="how examples are dealt to clients; natural: a client is a user of the data set",
    )
    examples_per_client: int = Field(1, ge=1, description="mean number of examples of a client or silo")
    client_sizes: Literal["equal", "lognormal", "uniform"] = Field(
        "equal", description="distribution of client sizes in a partition"
    )
    dirichlet_alpha: float = Field(0.5, gt=0, description="label skew of the dirichlet partition")
    labels_per_client: int = Field(2, ge=1, description="labels a client holds in the shards partition")
    partition_seed: int = Field(0, ge=0, description="seed of the (public) partition")

    # What is protected, and how it is sampled
    level: Literal["aggregation", "client"] = Field(
        "aggregation",
        description="where private steps are made: at the server, or (client) in each silo on its examples",
    )
    silo_steps: int = Field(1, ge=1, description="level client: K, private steps of a silo in a round")
    unit: Literal["client", "example"] = Field(
        "client", description="the privacy unit: a client with all its data, or an example of a silo"
    )
    sampler: Literal["poisson", "fixed-size", "everyone"] = Field(
        "poisson", description="how units are drawn for a release"
    )
    sampling_rate: float = Field(0.01, gt=0, le=1, description="q, the expected fraction of units drawn")
    relation: Literal["auto", "add-remove", "replace-one"] = Field(
        "auto",
        description="neighbours; auto: replace-one for fixed-size cohorts and local noise, else add-remove",
    )
    rounds: int = Field(
        150, ge=1, description="rounds the budget is spread over: one release each (level client: silo-steps)"
    )

    # Optimizer
    optimizer: Literal[
        "dp-sgd",
        "dp-adam",
        "dp-rmsprop",
        "dp-adagrad",
        "dp-yogi",
        "dynamic-dp-sgd",
        "dynamic-dp-adam",
        "dynamic-dp-rmsprop",
        "dynamic-dp-adagrad",
        "dynamic-dp-yogi",
        "adp-sgd",
        "adaptive-adp-sgd",
        "dp2-rmsprop",
        "dp2-adagrad",
        "dp2-yogi",
        "dp2-adam",
        "adadp",
        "dp-srm",
        "dp-gd",
        "rrpsgd",
        "adadps",
        "pda-dpmd",
    ] = Field("dynamic-dp-sgd", description="the private optimizer")
    learning_rate: float = Field(
        0.0,
        ge=0,
        description="step size eta; 0: 4 for SGD rules (less momentum), 0.005 for Adam's, or the method's",
    )
    learning_rate_schedule: Literal["constant", "linear", "cosine"] = Field(
        "constant", description="how the step size of a textbook rule falls over the run"
    )
    learning_rate_end: float = Field(
        0.0, ge=0, le=1, description="what it falls to, as a share of learning-rate"
    )
    warmup_steps: int = Field(0, ge=0, description="releases over which it first rises to learning-rate")
    momentum: float = Field(0.0, ge=0, lt=1, description="heavy-ball momentum of the SGD rules")
    beta1: float = Field(0.9, ge=0, lt=1, description="first decay of Adam and Yogi")
    beta2: float = Field(0.999, ge=0, lt=1, description="second decay of Adam, RMSProp and Yogi")
    adam_epsilon: float = Field(1e-8, gt=0, description="denominator offset of Adam and the like")
    clip_norm: float = Field(
        1.0, gt=0, allow_inf_nan=True, description="C (C_0 where it decays); inf: no clipping"
    )
    clipping: Literal["flat", "per-layer"] = Field(
        "flat", description="clip whole vectors to C, or each of the model's L layers to C / sqrt(L)"
    )
    rho_c: float = Field(
        0.0, ge=0, description="C_0 / C_T >= 1, sensitivity decay; 0: 2 for dynamic optimizers, else 1"
    )
    rho_mu: float = Field(
        0.0, ge=0, description="mu_T / mu_0 >= 1, growing mu; 0: 2 for dynamic optimizers, else 1"
    )
    noise_schedule: Literal[
        "geometric", "sqrt-clip", "given", "time-based", "exponential", "step", "polynomial"
    ] = Field(
        "geometric",
        description="dynamic noise: by rho-mu, sigma_t ~ sqrt(C_t), relative-noise-file, or a noise decay",
    )
    noise_decay: float = Field(
        0.0,
        ge=0,
        description="noise decay: k (rate, factor or power); 0: time-based 0.05, exponential 0.01, step 0.6, "
        "polynomial 3",
    )
    noise_epoch: int = Field(1, ge=1, description="noise decay: releases of an epoch")
    noise_period: int = Field(
        0,
        ge=0,
        description="noise decay: epochs of a step (0: 10), or to the polynomial's end (0: all)",
    )
    noise_end: float = Field(0.2, gt=0, lt=1, description="noise decay: the polynomial's sigma_end / sigma_0")
    relative_noise_file: str = Field("", description="CSV of r_t, one a line (noise-schedule given)")
    clip_norm_file: str = Field("", description="CSV of C_t, one a line (noise-schedule given)")
    adaptive_quantile: float = Field(
        0.0, ge=0, lt=1, description="quantile that the clip norm adapts to; 0: off"
    )
    adaptive_step: float = Field(0.2, gt=0, description="geometric step of the adaptive clip norm")
    adaptive_share: float = Field(
        0.05, gt=0, lt=1, description="part of each event's 1/z^2 that the norm bit takes"
    )

    adp_a: float = Field(20.0, gt=0, description="ADP-SGD: b_t^2 = a + c t; adaptive: b_0^2")
    adp_c: float = Field(
        1.0, gt=0, description="ADP-SGD: c; adaptive: growth of b^2 that the noise assumes, in [nu, C^2]"
    )
    adp_noise: Literal["fitted", "constant"] = Field(
        "fitted", description="ADP-SGD: noise fitted to the step sizes; constant: DP-SGD with those steps"
    )
    adp_nu: float = Field(1e-5, gt=0, description="adaptive ADP-SGD: least growth of b^2 in a step")
    adp_beta: float = Field(
        1.0, gt=0, description="adaptive ADP-SGD: beta_t = max(beta / (t mod period + 1), 1)"
    )
    adp_period: int = Field(1, ge=1, description="adaptive ADP-SGD: releases of an epoch")
    dp2_variant: Literal["standard", "noise-first", "extra-query"] = Field(
        "standard", description="DP2, or one of the paper's ablations"
    )
    dp2_sgd_steps: int = Field(10, ge=1, description="DP2: s1 (the delay s of extra-query)")
    dp2_adaptive_steps: int = Field(10, ge=1, description="DP2: s2")
    dp2_adaptive_learning_rate: float = Field(0.05, gt=0, description="DP2: step size of the adaptive phase")
    dp2_adaptive_clip_norm: float = Field(
        3.0, gt=0, allow_inf_nan=True, description="DP2: C_2, of preconditioned gradients"
    )
    dp2_epsilon: float = Field(1e-3, ge=1e-12, description="DP2: offset of the preconditioner")
    dp2_beta: float = Field(0.9, ge=0, lt=1, description="DP2: decay of the preconditioner")
    dp2_noise_correction: bool = Field(
        False, description="DP2: subtract the noise's variance from the preconditioner"
    )
    adadp_tolerance: float = Field(
        1.0, ge=0, description="ADADP: tau; 0: the largest starting weight times sqrt(d / 2T)"
    )
    adadp_alpha_min: float = Field(0.9, gt=0, le=1, description="ADADP: least change of the step size")
    adadp_alpha_max: float = Field(1.1, ge=1, description="ADADP: largest change of the step size")
    adadp_discard: bool = Field(False, description="ADADP: throw steps away whose error is above tau")
    adadp_decay_after: int = Field(
        0, ge=0, description="ADADP: releases (even) after which plain decaying steps begin; 0: never"
    )
    adadp_epoch: int = Field(1, ge=1, description="ADADP: releases of an epoch of the decay")
    adadp_decay: float = Field(0.1, ge=0, description="ADADP: rate of the decay by epoch")
    adadp_authors_code: bool = Field(False, description="ADADP: the variant of the authors' code")
    srm_gamma: float = Field(0.1, gt=0, le=1, description="DP-SRM: gamma; 1 is DP-SGD")
    srm_difference_clip_norm: float = Field(
        0.1, gt=0, allow_inf_nan=True, description="DP-SRM: C_2, of gradient differences"
    )
    srm_first_cohort: float = Field(
        1.0, gt=0, description="DP-SRM: b_0 / b, the first cohort as a multiple of the usual"
    )
    srm_step: Literal["constant", "normalised"] = Field(
        "constant", description="DP-SRM: learning-rate, or min(zeta / (n0 L norm(v)), 1 / (2 n0 L))"
    )
    srm_zeta: float = Field(0.1, gt=0, description="DP-SRM: zeta, the accuracy aimed at")
    srm_smoothness: float = Field(1.0, gt=0, description="DP-SRM: L, the gradients' Lipschitz constant")
    srm_n0: float = Field(1.0, gt=0, description="DP-SRM: n_0")
    srm_random_iterate: bool = Field(
        False, description="DP-SRM: hand out an iterate chosen uniformly before the run, not the last"
    )

    regulariser: Literal["none", "l2", "nonconvex"] = Field(
        "none", description="added to the loss outside the clip; nonconvex: sum of theta^2 / (1 + theta^2)"
    )
    regularisation: float = Field(0.001, gt=0, description="lambda, the weight of the regulariser")
    averaging: float = Field(
        0.0, ge=0, lt=1, description="decay of the average of models that is handed out; 0: the newest is"
    )
    public_examples: int = Field(
        0,
        ge=0,
        description="AdaDPS, PDA-DPMD: public examples, out of the test part and not evaluated on",
    )
    public_batch: int = Field(0, ge=0, description="AdaDPS, PDA-DPMD: public examples of a step; 0: all")
    adadps_epsilon: float = Field(1e-3, ge=1e-12, description="AdaDPS: offset of the preconditioner")
    adadps_beta: float = Field(0.9, ge=0, lt=1, description="AdaDPS: decay of the preconditioner")
    pda_horizon: int = Field(0, ge=0, description="PDA-DPMD: K, when only public steps are left; 0: rounds")

    # Client work
    work: Literal["gradient", "local-steps"] = Field(
        "gradient", description="what a client computes: one gradient, or local SGD steps"
    )
    local_steps: int = Field(1, ge=1, description="SGD steps a client makes (work local-steps)")
    local_learning_rate: float = Field(0.1, gt=0, description="step size of the local steps")
    local_batch_size: int = Field(0, ge=0, description="examples of a local step; 0: all of the client's")

    # Privacy
    placement: Literal["none", "central", "local", "distributed"] = Field(
        "central", description="where the noise enters"
    )
    epsilon: float = Field(3.0, gt=0, allow_inf_nan=True, description="the budget's epsilon")
    delta: float = Field(0.0, ge=0, lt=1, description="the budget's delta; 0: 1 / (10 units)")
    accounting: Literal["pld", "rdp", "gdp-clt", "zcdp", "tcdp"] = Field(
        "pld",
        description="method that holds the budget; gdp-clt is an estimate that can understate, zcdp and tcdp "
        "are loose bounds",
    )
    max_participations: int = Field(
        0, ge=0, description="local placement: releases that a client gives data to; 0: every one"
    )
    min_replies: int = Field(
        0, ge=0, description="fewest replies that are released; 0: as many as the placement needs"
    )
    colluding_parties: int = Field(
        1,
        ge=0,
        description="parties that may pool what they know: noise they added, and their part in cohorts "
        "of a fixed size; epsilon holds against them too. 0: against outsiders alone",
    )
    noise_draws: Literal["auto", "fast", "exact"] = Field(
        "auto",
        description="exact: normal numbers from ChaCha20, rounded exactly, in sums on one grid; fast: "
        "floating-point, for simulations; auto: exact where nodes own their data",
    )
    seed: int = Field(-1, ge=-1, description="-1: OS entropy; else reproducible and NOT private")

    # Engine
    nodes_own_data: bool = Field(
        False, description="deployment: node k is client (or silo) k and holds its own data file"
    )
    engine: Literal["ray", "in-process"] = Field("ray", description="where virtual clients run")
    actors: int = Field(
        0, ge=0, description="Ray actors; 0: one for each GPU, or share of one, else for each CPU"
    )
    cpus_per_actor: float = Field(1.0, gt=0, description="CPUs of a Ray actor")
    gpus_per_actor: float = Field(0.0, ge=0, description="GPUs of a Ray actor; 0: a share of those there")
    device: str = Field("auto", description="auto, cpu or cuda")
    precision: Literal["float32", "tf32", "bf16"] = Field(
        "float32", description="of forward and backward passes; norms and sums are float32 in any case"
    )
    chunk_size: int = Field(
        0,
        ge=0,
        description="expected clients of a chunk, computed at once; 0: an actor's share, or 128 where "
        "clients add noise, or with a seed a quarter of the cohort, within 16 and 512. Noisy runs of one "
        "chunk size agree to the last bit, on however many actors",
    )
    memory_budget: int = Field(
        512,
        ge=16,
        description="MiB that a node may use for examples and their gradients at once, but for 32 examples, "
        "which are always computed together",
    )
    reply_timeout: float = Field(600.0, gt=0, description="seconds to wait for a round's replies")

    # Evaluation (public test set only) and output
    evaluate_every: int = Field(10, ge=1, description="rounds between evaluations on the public test set")
    out: str = Field("", description="output folder; empty: runs/<date and time>")
    overwrite: bool = Field(False, description="replace an existing output folder")

    @classmethod
    def parse(cls, values: Mapping[str, Any]) -> Config:
        """The checked configuration. Keys may be written with underscores, as Python's names are.

        Raises ArgumentError, one line, on the first thing wrong, a key that is given in both ways among them.
        """
        known, values = cls.keys(), by_key(values)
        for key, value in values.items():
            if key not in known:
                hint = hints.of_key(key, known)
                if isinstance(value, dict):
                    hint = "all keys stand at the top, in no table"
                raise validation.ArgumentError(f"unknown key {key!r}; {hint}")
        try:
            return cls(**{key: _whole(value, cls.model_fields[_snake(key)]) for key, value in values.items()})
        except ValidationError as error:
            first = error.errors()[0]
            [key] = (str(part) for part in first["loc"])
            raise _refusal(key, values[key], first, cls.model_fields[_snake(key)]) from None

    @classmethod
    def keys(cls) -> list[str]:
        """All keys, in the order of their groups."""
        return [_kebab(name) for name in cls.model_fields]

    @property
    def units(self) -> int:
        """The public number of privacy units: clients, or the examples of all silos."""
        return self.clients * (self.examples_per_client if self.unit == "example" else 1)

    @property
    def centralised(self) -> bool:
        """Whether one silo holds all examples: no federation (see :mod:`fedpriv.config.centralised`)."""
        return self.unit == "example" and self.clients == 1 and not self.nodes_own_data

    @property
    def exact_noise(self) -> bool:
        """Whether noise is drawn exactly."""
        return self.noise_draws == "exact" or (self.noise_draws == "auto" and self.nodes_own_data)

    @property
    def asked_seed(self) -> int | None:
        """The seed that was asked for; None is OS entropy."""
        return None if self.seed < 0 else self.seed

    def resolved(self) -> Config:
        """The configuration with what 0 stands for filled in (keys of FILLED); what config.toml records."""
        geometric = self.optimizer.startswith("dynamic-") and self.noise_schedule == "geometric"
        decays = self.optimizer.startswith("dynamic-") and self.noise_schedule in ("geometric", "sqrt-clip")
        adaptive = self.adaptive_quantile > 0
        return self.changed(
            learning_rate=self.learning_rate or _default_step(self.optimizer) * (1 - self.momentum),
            rho_c=self.rho_c or (2.0 if decays and not adaptive else 1.0),
            rho_mu=self.rho_mu or (2.0 if geometric else 1.0),
            delta=self.delta or 1 / (10 * self.units),
            noise_decay=self.noise_decay or DECAYS.get(self.noise_schedule, 0.0),
            noise_period=self.noise_period or _default_period(self),
            pda_horizon=self.pda_horizon
            or (self.rounds * self.silo_steps if self.optimizer == "pda-dpmd" else 0),
        )

    def derived(self) -> dict[str, Scalar]:
        """What the keys of FILLED are where they are left at 0: it follows from the other settings."""
        table = self.changed(**dict.fromkeys(map(_snake, FILLED), 0)).resolved().table()
        return {key: table[key] for key in FILLED}

    def table(self) -> dict[str, Scalar]:
        """All settings by key, as they are here: what 0 stands for is filled in by :meth:`resolved`."""
        return dict(self.model_dump(by_alias=True))

    def changed(self, **changes: Any) -> Config:
        """A copy with these attributes changed, checked anew."""
        values = {**self.table(), **{_kebab(k): v for k, v in changes.items()}}
        return Config.parse(values)

    def toml(self) -> str:
        """All settings as TOML text, as :meth:`table` has them."""
        return "".join(f"{key} = {_toml_value(value)}\n" for key, value in self.table().items())


# All clip norms.
CLIP_NORMS = ("clip-norm", "dp2-adaptive-clip-norm", "srm-difference-clip-norm")

# The keys whose 0 stands for a value that follows from the other settings.
FILLED = ("learning-rate", "rho-c", "rho-mu", "delta", "noise-decay", "noise-period", "pda-horizon")

# Step sizes that learning-rate 0 stands for, by the last word of the optimizer's name.
_STEPS = {"sgd": 4.0, "adagrad": 0.05, "adadp": 0.1, "srm": 1.0, "gd": 4.0, "rrpsgd": 0.1, "dpmd": 4.0}

# The noise decays, with what noise-decay 0 stands for.
DECAYS = {"time-based": 0.05, "exponential": 0.01, "step": 0.6, "polynomial": 3.0}


def _default_period(config: Config) -> int:
    epochs = -(-config.rounds * config.silo_steps // config.noise_epoch)
    return {"step": 10, "polynomial": epochs}.get(config.noise_schedule, 0)


def _default_step(optimizer: str) -> float:
    if optimizer.startswith("dp2-"):
        return _STEPS["sgd"]  # of its SGD phase
    if optimizer.endswith("adp-sgd"):
        return 20.0  # over b, which is 4.6 at the start
    return _STEPS.get(optimizer.rpartition("-")[2], 0.005)


def read_file(path: str | Path) -> dict[str, Any]:
    """The table of a TOML configuration file. Raises ArgumentError if it is missing or malformed."""
    try:
        with Path(path).open("rb") as file:
            return tomllib.load(file)
    except OSError:
        raise validation.fail("CONFIG", str(path), "be an existing TOML file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        text = f'CONFIG {path} is not valid TOML: {error}; texts stand in quotes, as in model = "cnn"'
        raise validation.ArgumentError(text) from None


def read_assignment(text: str) -> tuple[str, Scalar]:
    """``key=value`` as it is typed after --set; the value is read as TOML, else as a plain string."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise validation.fail("--set", text, "be written key=value")
    value = value.strip()
    try:
        table = tomllib.loads(f"value = {value}")
    except tomllib.TOMLDecodeError:
        return key.strip(), value
    return key.strip(), table["value"] if len(table) == 1 else value


def _toml_value(value: Scalar) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        # JSON's escapes are TOML's, but for DEL, which JSON leaves as it is.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return repr(value)
