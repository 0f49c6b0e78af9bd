"""The groups of settings that every run has, whatever its optimizer and its data set."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from fedpriv._internal.settings import Needs, Settings, joined, needs, own_settings, setting
from fedpriv.accounting import METHODS
from fedpriv.config.federation import Partitioning
from fedpriv.data import loaders
from fedpriv.data.features import FEATURES, Features
from fedpriv.data.loaders import DATA_SETS
from fedpriv.data.partitioning.client_sizes import SizeKind
from fedpriv.mechanism.placement import PLACEMENTS
from fedpriv.mechanism.sampling import SAMPLERS
from fedpriv.mechanism.settings import PartySettings, chosen
from fedpriv.mechanism.units import PrivacyUnit
from fedpriv.models import MODELS

_OWN_DATA = Needs("nodes-own-data=true", lambda run: bool(run["nodes-own-data"]))
_IN_RAY = Needs("engine=ray", lambda run: run["engine"] == "ray")
# Not strict: placement=none takes a configuration as it is, so that runs can be compared.
_NOISE = Needs("noise", lambda run: chosen(run).adds_noise, strict=False)
_SILOS = Needs("unit=example", lambda run: PrivacyUnit(run["unit"]).in_silos, strict=False)
_PARTITION = "a partition other than one-example and natural"
_ASSIGNED = Needs(_PARTITION, lambda run: Partitioning(run["partition"]).assigned)
_SEVERAL = Needs(_PARTITION, lambda run: _ASSIGNED.holds(run) or _SILOS.holds(run))
_AUGMENTED = Needs("augmentation-copies of at least 1", lambda run: bool(run["augmentation-copies"]))
_WHOLE = Needs("lora-rank=0, since adapters freeze all else", lambda run: not run["lora-rank"])
_ADAPTED = Needs("lora-rank of at least 1", lambda run: bool(run["lora-rank"]))
_LOCAL_STEPS = needs(work="local-steps")
_BY_SILO = needs(level="client")
_UNEQUAL = Needs(
    "level=client and client-sizes other than equal",
    lambda run: _BY_SILO.holds(run) and _ASSIGNED.holds(run) and run["client-sizes"] != "equal",
)


class DataSetSettings(Settings):
    """The data set; its own settings are declared in its file."""

    dataset: str = setting(
        "infinite-digits", "data set: see `fedpriv data list`; or your own, as module:name", words=DATA_SETS
    )
    data_folder: str = setting("", "where data files are; empty: $FEDPRIV_DATA, else ~/.cache/fedpriv")
    features: Features = setting(
        "none",
        "fixed features in place of images; scattering: second order, 2 scales, 8 angles; scattering-pca: "
        "their 500 principal components on public digits; patches: likeness to patches of made-up images; "
        "patches-mirrored: the same of an image and its mirror image",
    )
    features_folder: str = setting(
        "",
        "where features are kept, so that they are computed once; they are as private as the data; empty: "
        "nowhere",
        needs=needs(features=FEATURES[1:]),
    )


class ModelSettings(Settings):
    """The model, and how data is assigned to clients."""

    model: str = setting("cnn", "the model; or your own, as module:name", words=MODELS)
    loss: str = setting(
        "", "your own loss, as module:name; empty: the loss of the data's target (labels, values or tags)"
    )
    initial_weights: str = setting(
        "", "a .safetensors file with the model's initial parameters; empty: random initialisation"
    )
    frozen: str = setting(
        "", "parameters that are not trained: names with *, separated by spaces; empty: none", needs=_WHOLE
    )
    lora_rank: int = setting(
        0, "rank of LoRA adapters, which alone are trained, with peft; 0: no adapters", ge=0
    )
    lora_alpha: int = setting(
        0, "adapters are scaled by lora-alpha / lora-rank; 0: lora-alpha is lora-rank", ge=0, needs=_ADAPTED
    )
    lora_layers: str = setting(
        "*",
        "linear, embedding and convolution layers that get adapters: names with *, separated by spaces",
        needs=_ADAPTED,
    )
    lora_beside: str = setting(
        "",
        "layers that are trained as a whole beside adapters, such as a new head: names with *; empty: none",
        needs=_ADAPTED,
    )
    input_mean: float = setting(0.0, "public constant: inputs are normalised to (x - mean) / std")
    input_std: float = setting(
        1.0, "public constant, see input-mean; the papers use 0.1307 and 0.3081 for MNIST", gt=0
    )
    partition: Literal["one-example", "iid", "dirichlet", "shards", "natural"] = setting(
        "one-example", "how examples are split among clients; natural: a client is a user of the data set"
    )
    examples_per_client: int = setting(
        1,
        "mean number of examples of a client; of a silo the public number of examples that it may use",
        ge=1,
        needs=_SEVERAL,
    )
    client_sizes: SizeKind = setting(
        "equal",
        "distribution of client sizes in a partition",
        needs=_ASSIGNED,
    )
    dirichlet_alpha: float = setting(
        0.5, "label skew of the dirichlet partition", gt=0, needs=needs(partition="dirichlet")
    )
    labels_per_client: int = setting(
        2, "labels per client in the shards partition", ge=1, needs=needs(partition="shards")
    )
    partition_seed: int = setting(
        0,
        "seed of the (public) partition",
        ge=0,
        needs=_ASSIGNED,
    )


class ClientSettings(Settings):
    """Clients, sampling, rounds, and the computation of a client."""

    clients: int = setting(100_000, "N, the number of (virtual) clients", ge=1, le=10**12)
    level: Literal["aggregation", "client"] = setting(
        "aggregation",
        "where private steps run: at the server, or (client) in each silo on its examples",
        needs=_SILOS,
    )
    silo_steps: int = setting(
        1, "level client: K, private steps per silo and round", ge=1, needs=needs(level="client")
    )
    silo_sampling: Literal["same-rate", "same-size"] = setting(
        "same-rate",
        "level client: every silo samples at sampling-rate; or (same-size) as many examples a step as a silo "
        "of the mean size",
        needs=_UNEQUAL,
    )
    sampler: str = setting("poisson", "how units are sampled for a release", words=SAMPLERS)
    sampling_rate: float = setting(0.01, "q, the expected fraction of sampled units", gt=0, le=1)
    rounds: int = setting(
        150, "rounds that share the budget: one release each (level client: silo-steps)", ge=1
    )
    work: Literal["gradient", "local-steps"] = setting(
        "gradient", "computation of a client: one gradient, or local SGD steps"
    )
    local_steps: int = setting(1, "local SGD steps per client and round", ge=1, needs=_LOCAL_STEPS)
    local_learning_rate: float = setting(0.1, "step size of the local steps", gt=0, needs=_LOCAL_STEPS)
    local_batch_size: int = setting(
        0, "examples per local step; 0: all of the client's", ge=0, needs=_LOCAL_STEPS
    )
    nodes_own_data: bool = setting(
        False, "deployment: node k is client (or silo) k and has its own data file"
    )
    min_nodes: int = setting(
        0, "nodes with which a run begins after start-timeout; 0: all of them", ge=0, needs=_OWN_DATA
    )
    start_timeout: float = setting(
        300.0, "seconds to wait for all nodes before round 1", gt=0, needs=_OWN_DATA
    )
    audit: bool = setting(
        False,
        "an audit: nodes leave out what their owners' audit files name, and the model is not for use",
        needs=_OWN_DATA,
    )
    planted_canaries: int = setting(
        0,
        "an audit (`fedpriv audit` with --own-data or --deployment): canaries, each in place of two of the "
        "run's units; the model is not for use",
        ge=0,
    )
    continues: str = setting(
        "", "the number of the Flower run that this run continues, in its folder out", needs=_OWN_DATA
    )


class AugmentationSettings(Settings):
    """Random variants of a client's images."""

    augmentation_copies: int = setting(
        0,
        "K: a client's vector is the mean over K random variants of each of its images, before the clip; 0: "
        "no augmentation",
        ge=0,
        needs=needs(work="gradient"),
    )
    augmentation_shift: int = setting(
        2, "the most pixels that a variant is moved along each side", ge=0, needs=_AUGMENTED
    )
    augmentation_flip: bool = setting(
        False, "whether half of the variants are mirrored, left to right", needs=_AUGMENTED
    )
    augmentation_deform: float = setting(
        0.0,
        "strength of InfiniteMNIST's deformations of a variant, for grey images of 28x28 pixels; 0: none",
        ge=0,
        needs=_AUGMENTED,
    )


class BudgetSettings(Settings):
    """The privacy unit and the budget."""

    unit: Literal["client", "example"] = setting(
        "client", "the privacy unit: a client with all its data, or an example of a silo"
    )
    placement: str = setting("central", "who adds the noise", words=PLACEMENTS)
    relation: Literal["auto", "add-remove", "replace-one"] = setting(
        "auto",
        "neighbouring relation; auto: replace-one for fixed-size cohorts and local noise, else add-remove",
        needs=_NOISE,
    )
    epsilon: float = setting(3.0, "the budget's epsilon", gt=0, allow_inf_nan=True, needs=_NOISE)
    delta: float = setting(
        0.0, "the budget's delta; 0: 1 / (10 units)", ge=0, lt=1, filled=True, needs=_NOISE
    )
    accounting: str = setting(
        "pld",
        "accounting method that enforces the budget",
        words=METHODS.only(lambda method: method.holds_budgets),
        needs=_NOISE,
    )


class NoiseSettings(Settings):
    """How noise is generated."""

    noise_draws: Literal["exact", "fast"] = setting(
        "exact",
        "exact: normal numbers from ChaCha20, rounded exactly, in sums on one grid; fast: floating-point, "
        "for simulations whose model nobody publishes",
        needs=_NOISE,
    )
    noise_cohort: int = setting(
        0,
        "simulations: the mean has the noise of a mean over a cohort of this size, and every output says "
        "'simulated, not private'; 0: the noise of the run's own cohorts",
        ge=0,
        le=10**12,
        needs=_NOISE,
    )
    noise_population: int = setting(
        0,
        "the population that the cohorts of noise-cohort are drawn from; 0: noise-cohort / sampling-rate",
        ge=0,
        le=10**12,
        filled=True,
        needs=Needs("noise-cohort", lambda run: bool(run["noise-cohort"])),
    )
    seed: int = setting(-1, "-1: OS entropy; otherwise the run is reproducible and NOT private", ge=-1)


if TYPE_CHECKING:

    class DataSettings(ModelSettings, DataSetSettings):
        """Data and model."""

    class FederationSettings(AugmentationSettings, ClientSettings):
        """Clients, sampling, rounds, and the computation of a client."""

    class PrivacySettings(NoiseSettings, PartySettings, BudgetSettings):
        """The privacy unit, the adversary, the budget and the noise."""

else:  # with the settings that data sets, samplers and placements have of their own
    DataSettings = joined(
        "DataSettings", "Data and model.", DataSetSettings, *loaders.own_settings(), ModelSettings
    )
    FederationSettings = joined(
        "FederationSettings",
        ClientSettings.__doc__,
        ClientSettings,
        AugmentationSettings,
        *own_settings(SAMPLERS),
    )
    PrivacySettings = joined(
        "PrivacySettings",
        "The privacy unit, the adversary, the budget and the noise.",
        BudgetSettings,
        *own_settings(PLACEMENTS),
        PartySettings,
        NoiseSettings,
    )


class MachineSettings(Settings):
    """Hardware, memory and output. A run's privacy does not depend on these settings."""

    engine: Literal["ray", "in-process"] = setting("ray", "where virtual clients run")
    actors: int = setting(
        0, "Ray actors; 0: one per GPU or GPU share, or one per CPU without GPUs", ge=0, needs=_IN_RAY
    )
    cpus_per_actor: float = setting(1.0, "CPUs per Ray actor", gt=0, needs=_IN_RAY)
    gpus_per_actor: float = setting(
        0.0, "GPUs per Ray actor; 0: an equal share of all GPUs", ge=0, needs=_IN_RAY
    )
    device: str = setting("auto", "auto, cpu or cuda")
    precision: Literal["float32", "tf32", "bf16"] = setting(
        "float32", "precision of forward and backward passes; norms and sums are always float32"
    )
    chunk_size: int = setting(
        0,
        "expected clients per chunk, which are computed at once; 0: an actor's share; 128 where clients add "
        "noise; with a seed a quarter of the cohort, between 16 and 512. Noisy runs with one chunk size "
        "agree bit for bit on any number of actors",
        ge=0,
    )
    memory_budget: int = setting(
        512,
        "MiB that a node may use at once for examples and their gradients; at least 32 examples are always "
        "computed together",
        ge=16,
    )
    reply_timeout: float = setting(
        600.0, "the most seconds to wait for a round's replies", gt=0, needs=_IN_RAY
    )
    round_deadline: float = setting(
        0.0,
        "seconds after which a deployment's round goes on without the nodes that have not answered, and asks "
        "them again in the next; 0: ten times the slowest of recent complete rounds, at least 30",
        ge=0,
        needs=_IN_RAY,
    )
    evaluate_every: int = setting(10, "rounds between evaluations on the public test set", ge=1)
    test_part: Literal["all", "tuning", "rest"] = setting(
        "all",
        "the public test examples that are scored on: all; tuning, a fixed fifth by which settings are "
        "chosen; or the rest",
    )
    ledger_anchor: str = setting(
        "",
        "file outside the output folder that keeps the ledger's head, so that an older ledger put back with "
        "its head is refused; empty: none",
    )
    ledger_anchor_command: str = setting(
        "", "command that is given the ledger's head on its standard input before each release; empty: none"
    )
    out: str = setting("", "output folder; empty: runs/<date and time>")
    overwrite: bool = setting(False, "replace an existing output folder")
