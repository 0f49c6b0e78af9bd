"""The cases of record.py: command lines on tiny problems that set every setting explicitly.

The defaults here are those of version 0.1.0 and stay as they are: a default that changes later changes no
case. A case names the settings that its run uses, and no others, since a run refuses what it does not use.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

Settings = dict[str, Any]

# All settings that a case may name, as 0.1.0 has them. Left out are those that no run here needs: folders,
# the seed, and the sizes of a data set that 0 leaves as they are.
DEFAULTS: Settings = {
    "dataset": "digits",
    "model": "logistic",
    "input-mean": 0.0,
    "input-std": 1.0,
    "clients": 100_000,
    "partition": "one-example",
    "examples-per-client": 1,
    "client-sizes": "equal",
    "dirichlet-alpha": 0.5,
    "labels-per-client": 2,
    "partition-seed": 0,
    "level": "aggregation",
    "silo-steps": 1,
    "unit": "client",
    "sampler": "poisson",
    "sampling-rate": 0.01,
    "relation": "auto",
    "rounds": 150,
    "optimizer": "dynamic-dp-sgd",
    "learning-rate": 0.0,
    "learning-rate-schedule": "constant",
    "learning-rate-end": 0.0,
    "warmup-steps": 0,
    "momentum": 0.0,
    "beta1": 0.9,
    "beta2": 0.999,
    "adam-epsilon": 1e-08,
    "clip-norm": 1.0,
    "clipping": "flat",
    "rho-c": 0.0,
    "rho-mu": 0.0,
    "noise-schedule": "geometric",
    "noise-decay": 0.0,
    "noise-epoch": 1,
    "noise-period": 0,
    "noise-end": 0.2,
    "adaptive-quantile": 0.0,
    "adaptive-step": 0.2,
    "adaptive-share": 0.05,
    "adp-a": 20.0,
    "adp-c": 1.0,
    "adp-noise": "fitted",
    "adp-nu": 1e-05,
    "adp-beta": 1.0,
    "adp-period": 1,
    "dp2-variant": "standard",
    "dp2-sgd-steps": 10,
    "dp2-adaptive-steps": 10,
    "dp2-adaptive-learning-rate": 0.05,
    "dp2-adaptive-clip-norm": 3.0,
    "dp2-epsilon": 0.001,
    "dp2-beta": 0.9,
    "dp2-noise-correction": False,
    "adadp-tolerance": 1.0,
    "adadp-alpha-min": 0.9,
    "adadp-alpha-max": 1.1,
    "adadp-discard": False,
    "adadp-decay-after": 0,
    "adadp-epoch": 1,
    "adadp-decay": 0.1,
    "adadp-variant": "paper",
    "srm-gamma": 0.1,
    "srm-difference-clip-norm": 0.1,
    "srm-first-cohort": 1.0,
    "srm-step": "constant",
    "srm-zeta": 0.1,
    "srm-smoothness": 1.0,
    "srm-n0": 1.0,
    "srm-random-iterate": False,
    "regulariser": "none",
    "regularisation": 0.001,
    "averaging": 0.0,
    "public-examples": 0,
    "public-batch": 0,
    "adadps-epsilon": 0.001,
    "adadps-beta": 0.9,
    "pda-horizon": 0,
    "work": "gradient",
    "local-steps": 1,
    "local-learning-rate": 0.1,
    "local-batch-size": 0,
    "placement": "central",
    "epsilon": 3.0,
    "delta": 0.0,
    "accounting": "pld",
    "max-participations": 0,
    "min-replies": 0,
    "colluding-parties": 1,
    "noise-draws": "fast",
    "nodes-own-data": False,
    "engine": "in-process",
    "actors": 2,
    "cpus-per-actor": 1.0,
    "gpus-per-actor": 0.0,
    "device": "cpu",
    "precision": "float32",
    "chunk-size": 16,
    "memory-budget": 512,
    "reply-timeout": 600.0,
    "evaluate-every": 10,
}

TEXTBOOK = ("sgd", "adam", "rmsprop", "adagrad", "yogi")
DP2 = ("dp2-rmsprop", "dp2-adagrad", "dp2-yogi", "dp2-adam")
OPTIMIZERS = (
    *(f"dp-{rule}" for rule in TEXTBOOK),
    *(f"dynamic-dp-{rule}" for rule in TEXTBOOK),
    *("adp-sgd", "adaptive-adp-sgd", *DP2, "adadp", "dp-srm", "dp-gd", "rrpsgd", "adadps", "pda-dpmd"),
)
PLACEMENTS = ("none", "central", "local", "distributed")

# What 0 stood for in 0.1.0.
_RATES = {"sgd": 4.0, "adagrad": 0.05, "adadp": 0.1, "srm": 1.0, "gd": 4.0, "rrpsgd": 0.1, "dpmd": 4.0}
_DECAYS = {"time-based": 0.05, "exponential": 0.01, "step": 0.6, "polynomial": 3.0}


def named(given: Settings) -> Settings:
    """The settings of a run that are used, each by name: those given, the others as 0.1.0 left them."""
    s = _filled({**DEFAULTS, **given})
    unused = {key for used, keys in _uses(s) if not used for key in keys}
    if s["placement"] == "none":
        given = {key: value for key, value in given.items() if key != "epsilon"}
    return {key: value for key, value in s.items() if key in given or key not in unused}


def _filled(s: Settings) -> Settings:
    """With a value where 0 stands for one that follows from the other settings."""
    dynamic = s["optimizer"].startswith("dynamic-")
    geometric = dynamic and s["noise-schedule"] == "geometric"
    decays = dynamic and s["noise-schedule"] in ("geometric", "sqrt-clip") and not s["adaptive-quantile"]
    units = s["clients"] * (s["examples-per-client"] if s["unit"] == "example" else 1)
    releases = s["rounds"] * s["silo-steps"]
    period = {"step": 10, "polynomial": -(-releases // s["noise-epoch"])}.get(s["noise-schedule"], 0)
    filled = {
        "learning-rate": _rate(s["optimizer"]) * (1 - s["momentum"]),
        "rho-c": 2.0 if decays else 1.0,
        "rho-mu": 2.0 if geometric else 1.0,
        "delta": 1 / (10 * units),
        "noise-decay": _DECAYS.get(s["noise-schedule"], 0.0),
        "noise-period": period,
        "pda-horizon": releases if s["optimizer"] == "pda-dpmd" else 0,
    }
    return {**s, **{key: s[key] or value for key, value in filled.items()}}


def _rate(optimizer: str) -> float:
    if optimizer.startswith("dp2-"):
        return _RATES["sgd"]
    return 20.0 if optimizer.endswith("adp-sgd") else _RATES.get(optimizer.rpartition("-")[2], 0.005)


def _uses(s: Settings) -> Iterator[tuple[bool, tuple[str, ...]]]:
    """Settings with whether this run uses them."""
    yield from _uses_of_federation(s)
    yield from _uses_of_optimizer(s)


def _uses_of_federation(s: Settings) -> Iterator[tuple[bool, tuple[str, ...]]]:
    example = s["unit"] == "example"
    several = s["partition"] not in ("one-example", "natural")
    alone = s["placement"] == "none" or s["level"] == "client" or s["clients"] == 1
    yield example, ("level",)
    yield s["level"] == "client", ("silo-steps",)
    yield several or example, ("examples-per-client",)
    yield several, ("client-sizes", "partition-seed")
    yield s["partition"] == "dirichlet", ("dirichlet-alpha",)
    yield s["partition"] == "shards", ("labels-per-client",)
    yield s["placement"] != "none", ("epsilon", "delta", "relation", "accounting", "noise-draws")
    yield s["placement"] == "local", ("max-participations",)
    yield s["placement"] in ("local", "distributed"), ("min-replies",)
    colluding = not alone and (s["placement"] != "central" or s["sampler"] == "fixed-size")
    yield colluding, ("colluding-parties",)
    yield s["work"] == "local-steps", ("local-steps", "local-learning-rate", "local-batch-size")
    yield s["engine"] == "ray", ("actors", "cpus-per-actor", "gpus-per-actor", "reply-timeout")


def _uses_of_optimizer(s: Settings) -> Iterator[tuple[bool, tuple[str, ...]]]:
    name, schedule = s["optimizer"], s["noise-schedule"]
    dynamic, dp2 = name.startswith("dynamic-"), name.startswith("dp2-")
    rule = name.rpartition("-")[2]
    textbook = name in OPTIMIZERS[:10]
    plain = rule if textbook else ""
    adp = name in ("adp-sgd", "adaptive-adp-sgd")
    variant, normalised = s["dp2-variant"], s["srm-step"] == "normalised"
    yield plain in ("adam", "yogi") or name == "dp2-adam", ("beta1",)
    yield plain in ("adam", "rmsprop", "yogi"), ("beta2",)
    yield plain in ("adam", "rmsprop", "adagrad", "yogi"), ("adam-epsilon",)
    yield plain == "sgd", ("momentum",)
    yield textbook, ("learning-rate-schedule", "warmup-steps")
    yield s["learning-rate-schedule"] != "constant", ("learning-rate-end",)
    yield dynamic, ("rho-c", "rho-mu", "noise-schedule")
    yield schedule in _DECAYS, ("noise-decay",)
    yield schedule in ("geometric", *_DECAYS), ("noise-epoch",)
    yield schedule in ("step", "polynomial"), ("noise-period",)
    yield schedule == "polynomial", ("noise-end",)
    yield s["adaptive-quantile"] > 0, ("adaptive-step", "adaptive-share")
    yield adp, ("adp-a", "adp-noise")
    yield name == "adp-sgd" or (adp and s["adp-noise"] == "fitted"), ("adp-c",)
    yield name == "adaptive-adp-sgd", ("adp-nu", "adp-beta", "adp-period")
    yield dp2, _keys("dp2-")
    yield variant != "extra-query", ("dp2-adaptive-steps", "dp2-noise-correction")
    yield variant != "noise-first", ("dp2-adaptive-clip-norm",)
    yield name == "adadp", _keys("adadp-")
    yield s["adadp-decay-after"] > 0, ("adadp-epoch", "adadp-decay")
    yield name == "dp-srm", _keys("srm-")
    yield normalised, ("srm-zeta", "srm-smoothness", "srm-n0")
    yield not normalised, ("learning-rate",)
    yield s["srm-gamma"] < 1, ("srm-difference-clip-norm",)
    yield s["regulariser"] != "none", ("regularisation",)
    yield name in ("adadps", "pda-dpmd"), _keys("public-")
    yield name == "adadps", _keys("adadps-")
    yield name == "pda-dpmd", _keys("pda-")


def _keys(prefix: str) -> tuple[str, ...]:
    return tuple(key for key in DEFAULTS if key.startswith(prefix))


@dataclass(frozen=True)
class Case:
    """Command lines that are run one after the other in an empty folder.

    Attributes:
        name: its name, unique.
        commands: the arguments of each.
        files: texts by name, written to the folder first.
        runs: the run folders that the commands leave, which are recorded.
        fixture: a folder beside the tests that is copied to "run" first, or "".
        interrupt: after so many charges of the first command it gets SIGINT; 0: never.
        needs: the data set under FEDPRIV_DATA without which the case is left out, or "".
        whole: whether the report is recorded in full, not by its digest.
    """

    name: str
    commands: tuple[tuple[str, ...], ...]
    files: dict[str, str] = field(default_factory=dict)
    runs: tuple[str, ...] = ()
    fixture: str = ""
    interrupt: int = 0
    needs: str = ""
    whole: bool = False


def toml(settings: Settings) -> str:
    """The settings as a TOML file."""
    return "".join(f"{key} = {_toml(value)}\n" for key, value in settings.items())


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else repr(value)


def run(name: str, given: Settings, command: str = "simulate", **about: Any) -> Case:
    """A case of one run."""
    settings = named(given)
    if command == "train" and "examples-per-client" not in given:
        del settings["examples-per-client"]
    files = {"config.toml": toml(settings), **about.pop("files", {})}
    line = (command, "config.toml", "--seed", "7", "--out", "run", "--json")
    return Case(name, (line,), files, ("run",), **about)


SMALL: Settings = {"clients": 120, "sampling-rate": 0.25, "rounds": 4, "epsilon": 8.0, "evaluate-every": 2}
_SILOS: Settings = {**SMALL, "unit": "example", "clients": 4, "examples-per-client": 30}
# Level -> command and settings.
LEVELS: dict[str, tuple[str, Settings]] = {
    "clients": ("simulate", SMALL),
    "silos": ("simulate", _SILOS),
    "each-silo": ("simulate", {**_SILOS, "level": "client", "silo-steps": 2, "rounds": 2}),
    "centralised": ("train", {**_SILOS, "clients": 1, "examples-per-client": 120}),
}
# What lets a few rounds reach all of a method's parts.
SHORT: dict[str, Settings] = {
    **{name: {"dp2-sgd-steps": 1, "dp2-adaptive-steps": 2} for name in DP2},
    "adadps": {"public-examples": 40},
    "pda-dpmd": {"public-examples": 40},
    "dp-gd": {"sampler": "everyone", "sampling-rate": 1.0},
}
# Methods that hold the budget; every report has pld, rdp and gdp-clt, too. Some are slow for some cohorts.
_OF_OTHERS = ("pld", "zcdp")
_OF_POISSON = ("pld", "gdp-clt", "tcdp", "rdp")


def grid() -> Iterator[Case]:
    """Every optimizer at every level with noise at every place; samplers and methods take turns."""
    for i, optimizer in enumerate(OPTIMIZERS):
        for j, (level, (command, settings)) in enumerate(LEVELS.items()):
            for k, placement in enumerate(PLACEMENTS):
                turn = i + j + k
                at_parties = placement in ("local", "distributed")
                # Of noise that changes, RDP takes a second a release.
                changes = optimizer.startswith(("dynamic-", "adp-", "adaptive-"))
                fixed = turn % 4 == 1 and optimizer != "dp-gd" and not changes
                methods = _OF_OTHERS if fixed or at_parties or changes else _OF_POISSON
                given = {**settings, "optimizer": optimizer, "placement": placement}
                given |= {"sampler": "fixed-size"} if fixed else {}
                given |= {"accounting": methods[turn // 2 % len(methods)]} if placement != "none" else {}
                given |= SHORT.get(optimizer, {})
                whole = optimizer in ("dp-sgd", "dp-srm") and placement != "none" and k == 1 + j % 2
                yield run(f"grid/{optimizer}/{level}/{placement}", given, command, whole=whole)


def more() -> Iterator[Case]:
    """Variants of methods, schedules, wrappers, work, models and engines."""

    def small(name: str, optimizer: str = "dp-sgd", whole: bool = False, **changes: Any) -> Case:
        own: Settings = {"whole": whole}
        own |= {key: changes.pop(key) for key in ("files", "needs") if key in changes}
        given = {key.replace("_", "-"): value for key, value in changes.items()}
        given = {**SMALL, "optimizer": optimizer, **SHORT.get(optimizer, {}), **given}
        if given.get("dp2-variant") == "extra-query":
            del given["dp2-adaptive-steps"]
        return run(f"more/{name}", given, **own)

    yield small("momentum", momentum=0.5)
    yield small("linear rate with warm-up", learning_rate_schedule="linear", warmup_steps=2)
    yield small("cosine rate", "dp-adam", learning_rate_schedule="cosine", learning_rate_end=0.1)
    for schedule in _DECAYS:
        decay: Settings = {"noise_period": 2} if schedule == "step" else {}
        yield small(f"noise {schedule}", "dynamic-dp-sgd", noise_schedule=schedule, noise_epoch=2, **decay)
    yield small("noise sqrt-clip", "dynamic-dp-adam", noise_schedule="sqrt-clip")
    csv = {"r.csv": "1.5\n1.4\n1.2\n1.0\n", "c.csv": "2\n1.8\n1.4\n1\n"}
    given: Settings = {"noise_schedule": "given", "relative_noise_file": "r.csv"}
    yield small("noise given", "dynamic-dp-sgd", files=csv, **given)
    yield small("noise and clips given", "dynamic-dp-adam", True, files=csv, clip_norm_file="c.csv", **given)
    yield small("rho", "dynamic-dp-sgd", rho_c=3.0, rho_mu=1.5, placement="distributed")
    yield small("rho, fixed-size", "dynamic-dp-sgd", rho_c=3.0, sampler="fixed-size", rounds=2)
    yield small("adaptive clipping", adaptive_quantile=0.5, whole=True)
    yield small("adaptive clipping, distributed", "dp-adam", adaptive_quantile=0.7, placement="distributed")
    yield small("adaptive clipping, local", "dynamic-dp-sgd", adaptive_quantile=0.3, placement="local")
    for optimizer in ("dp-sgd", "dp-srm", "adadp", "dp2-rmsprop"):
        yield small(f"per layer, {optimizer}", optimizer, clipping="per-layer")
    yield small("l2", regulariser="l2")
    yield small("nonconvex, dp-srm", "dp-srm", regulariser="nonconvex", regularisation=0.01)
    yield small("l2, dp2-adam", "dp2-adam", regulariser="l2")
    yield small("averaging, dp-adam", "dp-adam", averaging=0.9)
    yield small("averaging, adadp", "adadp", averaging=0.5)
    yield small("adp constant noise", "adp-sgd", adp_noise="constant")
    yield small("adaptive adp, constant noise", "adaptive-adp-sgd", adp_noise="constant", adp_period=3)
    for variant in ("noise-first", "extra-query"):
        yield small(f"dp2 {variant}", "dp2-rmsprop", dp2_variant=variant, dp2_sgd_steps=2)
    yield small("dp2 noise correction", "dp2-yogi", dp2_noise_correction=True)
    yield small("adadp discards", "adadp", adadp_tolerance=0.05, adadp_discard=True)
    yield small("adadp decays", "adadp", adadp_decay_after=2, adadp_epoch=2)
    yield small("adadp of its authors", "adadp", adadp_variant="half-steps")
    yield small("adadp, tolerance from the weights", "adadp", adadp_tolerance=0.0)
    yield small("srm normalised", "dp-srm", srm_step="normalised")
    yield small("srm first cohort", "dp-srm", srm_first_cohort=2.0)
    yield small("srm random iterate", "dp-srm", srm_random_iterate=True)
    yield small("srm gamma 1", "dp-srm", srm_gamma=1.0)
    yield small("public batches", "adadps", public_batch=8)
    yield small("pda horizon", "pda-dpmd", pda_horizon=3, public_batch=8)
    yield small("no clipping", placement="none", clip_norm=float("inf"))
    yield small("participations", placement="local", max_participations=2, whole=True)
    yield small("colluding parties", placement="distributed", colluding_parties=3, sampler="fixed-size")
    yield small("fewest replies", placement="local", min_replies=5, sampler="fixed-size")
    yield small("replace-one", relation="replace-one")
    yield small("everyone", sampler="everyone", sampling_rate=1.0, accounting="zcdp", whole=True)
    yield small("a chunk of its own size", "dp-adam", chunk_size=0)
    yield small("standardised inputs", input_mean=0.1307, input_std=0.3081)
    for placement in ("central", "distributed", "local"):
        yield small(f"exact noise, {placement}", noise_draws="exact", placement=placement)
    parts: Settings = {"partition": "iid", "clients": 40, "work": "local-steps", "local_steps": 3}
    yield small("local steps", whole=True, **parts)
    yield small("local steps in batches", "dp-adam", **parts, local_batch_size=8)
    yield small("local steps, distributed", "adadp", **parts, placement="distributed", sampler="fixed-size")
    yield small("local steps, per layer", **parts, clipping="per-layer", averaging=0.9)
    for partition in ("iid", "dirichlet", "shards"):
        sizes = "lognormal" if partition == "iid" else "equal"
        yield small(f"partition {partition}", partition=partition, clients=40, client_sizes=sizes)
    # Digits without end.
    endless: Settings = {"dataset": "infinite-digits", "clients": 200, "sampling_rate": 0.1, "rounds": 4}
    for model in ("logistic", "mlp", "cnn"):
        yield small(f"infinite digits, {model}", "dynamic-dp-sgd", **endless, model=model)
    yield small("cnn, dp-srm, per layer", "dp-srm", **endless, model="cnn", clipping="per-layer")
    yield small("cnn, adaptive clipping", "dp-adam", **endless, model="cnn", adaptive_quantile=0.5)
    yield small("mlp, local steps", **{**endless, **parts}, model="mlp", examples_per_client=4)
    yield small("mlp in bf16", **endless, model="mlp", precision="bf16")
    # Data that has to be there.
    names: Settings = {"dataset": "names", "model": "lstm", "needs": "names", "clients": 200, "rounds": 2}
    yield small("names, lstm", "dp-srm", **names, sampling_rate=0.05)
    films: Settings = {"dataset": "movielens-100k", "model": "factors", "needs": "movielens-100k"}
    films |= {"sampling_rate": 0.02, "rounds": 4, "partition": "natural", "clients": 943}
    yield small("films, factors", **films)
    yield small("films, factors, dp2", "dp2-rmsprop", **{**films, "model": "factors-biases"})
    # Refused.
    yield small("refused: momentum of dp-adam", "dp-adam", momentum=0.5)
    yield small("refused: adaptive and two clips", "dp-srm", adaptive_quantile=0.5)
    yield small("refused: unused", srm_gamma=0.3)
    yield small("refused: model", model="lstm")


def interrupted() -> Iterator[Case]:
    """Runs that are interrupted and resumed, and the stored run."""
    resume = ("resume", "run", "--json")
    kept = ("dp-sgd", "dynamic-dp-adam", "adadp", "dp-srm", "dp2-rmsprop", "adaptive-adp-sgd", "adadps")
    for optimizer in kept:
        given = {**SMALL, "rounds": 8, "optimizer": optimizer, **SHORT.get(optimizer, {})}
        first = run(f"resume/{optimizer}", given)
        yield Case(first.name, (*first.commands, resume), first.files, ("run",), interrupt=5)
    yield Case("resume/stored", (resume,), runs=("run",), fixture="v0_1_0/interrupted")


def accounts() -> Iterator[Case]:
    """Answers of `fedpriv account` and `fedpriv calibrate`."""
    files = {"z.csv": "1.5\n1.4\n1.3\n1.2\n1.1\n", "r.csv": "2\n1.8\n1.6\n1.4\n1.2\n1\n"}

    def asked(command: str, options: str) -> Case:
        return Case(f"{command}/{options}", ((command, *options.split(), "--json"),), files)

    for options in (
        "--sampling-rate 0.01 --steps 1000 --noise-multiplier 1 --delta 1e-5",
        "--sampling-rate 0.1 --steps 50 --noise-multiplier 2 --delta 1e-6",
        "--sampling-rate 0.1 --steps 50 --noise-multiplier 2 --delta 1e-6 --relation replace-one",
        "--sampling-rate 0.05 --steps 100 --noise-multiplier 1.5 --delta 1e-5 --sampler fixed-size",
        "--sampling-rate 0.05 --steps 20 --noise-multiplier 3 --delta 1e-5 --sampler without-replacement",
        "--steps 10 --noise-multiplier 5 --delta 1e-5 --sampler everyone",
        "--steps 10 --noise-multiplier 5 --delta 1e-5 --sampler none --relation replace-one",
        "--sampling-rate 0.2 --noise-multiplier z.csv --delta 1e-5",
        "--noise-multiplier z.csv --delta 1e-5 --sampler everyone",
        "--sampling-rate 0.2 --noise-multiplier z.csv --delta 1e-5 --sampler fixed-size --method pld",
        "--sampling-rate 1 --steps 3 --noise-multiplier 0.7 --delta 1e-3",
        "--sampling-rate 0 --steps 3 --noise-multiplier 0.7 --delta 1e-3",
        *(
            f"--sampling-rate 0.02 --steps 200 --noise-multiplier 1.1 --delta 1e-5 --method {method}"
            for method in ("pld", "rdp", "gdp-clt", "tcdp", "zcdp", "advanced")
        ),
        "--sampling-rate 2 --steps 3 --noise-multiplier 1 --delta 1e-5",
        "--ledger absent.jsonl --delta 1e-5",
    ):
        yield asked("account", options)
    rate = "--epsilon 1 --delta 1e-5 --sampling-rate"
    for options in (
        *(
            f"{rate} 0.02 --steps 100 --method {method}"
            for method in ("pld", "rdp", "gdp-clt", "tcdp", "zcdp", "advanced")
        ),
        f"{rate} 0.05 --steps 50 --sampler fixed-size",
        f"{rate} 0.05 --steps 50 --relation replace-one",
        "--epsilon 2 --delta 1e-5 --steps 20 --sampler everyone",
        "--epsilon 2 --delta 1e-5 --sampling-rate 0.1 --relative-noise r.csv",
        "--epsilon 2 --delta 1e-5 --relative-noise r.csv --sampler everyone --method zcdp",
        f"--solve-for steps --noise-multiplier 1 {rate} 0.01",
        f"--solve-for steps --noise-multiplier 2 {rate} 0.05 --sampler fixed-size --method rdp",
        "--solve-for sampling-rate --noise-multiplier 1 --epsilon 1 --delta 1e-5 --steps 200",
        "--solve-for sampling-rate --noise-multiplier z.csv --epsilon 3 --delta 1e-5 --method pld",
    ):
        yield asked("calibrate", options)
    for name, optimizer, level in (
        ("of clients", "dp-srm", "clients"),
        ("of silos", "adadp", "each-silo"),
        ("of silos, fixed-size", "dp-sgd", "silos"),
    ):
        sampler = {"sampler": "fixed-size"} if "fixed" in name else {}
        first = run(f"account/ledger {name}", {**LEVELS[level][1], "optimizer": optimizer, **sampler})
        ask = ("account", "--ledger", "run/ledger.jsonl", "--delta", "1e-4", "--json")
        yield Case(first.name, (*first.commands, ask), first.files, ("run",))


def others() -> Iterator[Case]:
    """`results`, `compare`, `audit`, `data`, and the engine of several processes."""
    files: dict[str, str] = {}
    commands: list[tuple[str, ...]] = []
    for i, (optimizer, seed) in enumerate((("dp-sgd", "1"), ("dp-sgd", "2"), ("dp-adam", "1"))):
        files[f"{i}.toml"] = toml(named({**SMALL, "optimizer": optimizer}))
        commands.append(("simulate", f"{i}.toml", "--seed", seed, "--out", f"runs/{i}", "--json"))
    commands.append(("report", "runs", "--json"))
    yield Case("others/results", tuple(commands), files)
    for name, level, placements in (
        ("clients", "clients", "none,central,distributed,local"),
        ("silos", "silos", "none,central,client"),
    ):
        settings = named({**LEVELS[level][1], "optimizer": "dp-sgd", "sampler": "fixed-size"})
        files = {"config.toml": toml(settings)}
        compare = ("compare", "config.toml", "--placements", placements, "--seed", "3", "--out", "run")
        folders = tuple(f"run/{placement}" for placement in placements.split(","))
        yield Case(f"others/compare {name}", ((*compare, "--json"),), files, folders)
    for optimizer, placement in (("dp-sgd", "central"), ("dp-srm", "central"), ("dp-sgd", "distributed")):
        settings = named({**SMALL, "optimizer": optimizer, "placement": placement})
        line = ("audit", "config.toml", "--seed", "3", "--json")
        yield Case(f"others/audit {optimizer}, {placement}", (line,), {"config.toml": toml(settings)})
    ray = {**SMALL, "engine": "ray", "rounds": 2, "evaluate-every": 2, "optimizer": "dp-sgd"}
    yield run("others/ray", ray, whole=True)


GROUPS: tuple[Callable[[], Iterator[Case]], ...] = (grid, more, interrupted, accounts, others)


def cases() -> list[Case]:
    """All cases, in order."""
    return [case for group in GROUPS for case in group()]
