"""Builds the objects that a configuration names: data source, model, task, view of the units, device."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedpriv import data, models
from fedpriv._internal import hints, kept_state, user_code, validation
from fedpriv.config.schema import Config
from fedpriv.data import View
from fedpriv.data.features import FeatureSource, with_features
from fedpriv.data.loaders import own_settings
from fedpriv.data.splits import shuffled
from fedpriv.federated.augmentation import Augmentation
from fedpriv.federated.client_update import LocalSteps, OneGradient, Work
from fedpriv.models import parts, weights
from fedpriv.models.initializers import keep
from fedpriv.models.layers import Standardised
from fedpriv.rng import Key
from fedpriv.tasks.losses import TARGETS, Loss
from fedpriv.tasks.public_gradient import PublicGradient, split
from fedpriv.tasks.task import Task

_PARTS = 5  # one of them is for choosing settings

# What a score was measured on, by test-part.
SCORED_ON = {
    "all": "public test set",
    "tuning": "the part of the public test set that is set aside for tuning",
    "rest": "public test set without the part that is set aside for tuning",
}


def make_task(config: Config, source: data.Source) -> Task:
    """The task that the configuration names, for what the source's examples are and its target is.

    Raises ArgumentError where the model does not suit them.
    """
    for key, default in (("input-mean", 0.0), ("input-std", 1.0)):
        if source.tokens and config.table()[key] != default:
            raise validation.fail(key, config.table()[key], f"be {default:g}: {source.name} is of tokens")
    model = make_model(config, models.Inputs(source.shape, source.classes, source.tokens))
    if not config.loss:
        task = Task(model, TARGETS[source.target])
        _check_outputs(config, source, task)
        return task
    task = Task(model, _own_loss(config))
    _check_loss(config, source, task)
    return task


def _own_loss(config: Config) -> Loss:
    """The user's loss. Raises ArgumentError where the setting names none."""
    if not user_code.named(config.loss):
        allowed = "be your own, as module:name, or empty, for the loss of the data's target"
        raise validation.fail("loss", config.loss, allowed)
    loss = user_code.found("loss", config.loss)
    return user_code.called("loss", config.loss) if isinstance(loss, type) else loss


def make_model(config: Config, inputs: models.Inputs, started: bool = True) -> nn.Module:
    """The model that the configuration names, with its standardisation of inputs, before training.

    Unless ``started`` is false it has the values of ``initial-weights``, where that names a file. Raises
    ArgumentError where the model or the file does not suit.
    """
    model = models.build(config.model, inputs.shape, inputs.classes, inputs.tokens, max(0, config.seed))
    if (config.input_mean, config.input_std) != (0.0, 1.0):
        model = Standardised(model, config.input_mean, config.input_std)
    if started and config.initial_weights:
        weights.start_from(model, config.initial_weights, trained_only=config.nodes_own_data)
        keep(model)
    if config.frozen:
        parts.freeze(model, config.frozen)
    if config.lora_rank:
        more = config.lora_alpha, config.lora_layers, config.lora_beside
        model = keep(parts.adapt(model, config.lora_rank, *more, seed=max(0, config.seed)))
    return model


def _outputs(config: Config, source: data.Source, task: Task) -> Tensor:
    """The model's outputs for one made-up example. Raises ArgumentError where it gives no tensor."""
    x = torch.zeros(1, *source.shape, dtype=torch.int64 if source.tokens else torch.float32)
    try:
        outputs = task.outputs(torch.zeros(task.dimension), x)
    except Exception as error:
        allowed = f"take inputs (n, {', '.join(map(str, source.shape))}), as {source.name} has them"
        raise user_code.fail("model", config.model, allowed, user_code.described(error)) from error
    if not isinstance(outputs, Tensor):
        hint = f"it gives {type(outputs).__name__}"
        raise user_code.fail("model", config.model, "give one tensor (n, ...)", hint)
    return outputs


def _check_loss(config: Config, source: data.Source, task: Task) -> None:
    """Raises ArgumentError unless the user's loss takes the model's outputs and a public test example's y."""
    _outputs(config, source, task)
    x, y = (part[:1] for part in source.test())
    try:
        task.losses(torch.zeros(task.dimension), x, y)
    except validation.ArgumentError:
        raise
    except Exception as error:
        allowed = "take the model's outputs (n, ...) and y (n, ...), and give a loss for each example, (n,)"
        raise user_code.fail("loss", config.loss, allowed, user_code.described(error)) from error
    before = kept_state.reachable(task.loss)  # the first call may have computed constants
    task.losses(torch.zeros(task.dimension), x, y)
    if (name := kept_state.changed(before, kept_state.reachable(task.loss))) is not None:
        hint = f"here {name} changes with each call, and would hold examples after the run"
        raise user_code.fail("loss", config.loss, "keep no tensors from call to call", hint)


def _check_outputs(config: Config, source: data.Source, task: Task) -> None:
    """Raises ArgumentError unless the model's outputs are what the loss of the target takes."""
    outputs = _outputs(config, source, task)
    suited: dict[str, set[tuple[int, ...]]] = {
        "label": {(source.classes,), (1,)} if source.classes == 2 else {(source.classes,)},
        "value": {(), (1,)},
        "tags": {(source.classes,)},
    }
    if tuple(outputs.shape[1:]) not in suited[source.target]:
        number = 1 if source.target == "value" else source.classes
        wanted = f"{number} output{'s' if number > 1 else ''} for each example"
        what = {
            "label": f"one for each label of {source.name}",
            "value": f"y of {source.name} holds values; labels are whole numbers, without a decimal point",
            "tags": f"y of {source.name} holds rows of tags, (n, {number}); labels are one number each, (n,)",
        }
        if source.target == "label" and (least := int(source.test()[1].min())) > 0:
            what["label"] += f", which begin at 0: the smallest one of the test examples is {least}"
        shape = f"({', '.join(map(str, ('n', *outputs.shape[1:])))}{'' if outputs.ndim > 1 else ','})"
        hint = f"{what[source.target]}; the outputs of n examples are {shape}"
        raise validation.fail("model", config.model, f"have {wanted}", hint)


def make_work(config: Config) -> Work:
    """What a client computes."""
    if not config.trains_locally:
        return OneGradient(config.precision)
    if config.precision != "float32":
        raise validation.fail("precision", config.precision, f"be float32 with work {config.work}")
    return LocalSteps(config.local_steps, config.local_learning_rate, config.local_batch_size or None)


def make_source(config: Config) -> data.Source:
    """The data set with its features. Raises ArgumentError or DataError where it is not to be had."""
    own = {name: value for kind in own_settings() for name, value in config.part(kind)}
    source = data.load(config.dataset, config.data_folder or None, **own)
    return with_features(source, config.features, config.features_folder)


def make_public(config: Config) -> PublicGradient:
    """The gradient on the configured public examples. Raises ArgumentError, or as ``make_source``."""
    source = make_source(config)
    examples, _ = split(source.test(), config.public_examples)
    return PublicGradient(make_task(config, source), examples, config.public.public_batch)


def make_test(config: Config, source: data.Source, device: torch.device) -> data.Pair:
    """The test examples that the model is evaluated on: not those that the optimizer learns from.

    Raises ArgumentError where there are too few for a part of them.
    """
    test = source.test(device)
    rest = split(test, config.public_examples)[1] if config.public_examples else test
    return rest if config.test_part == "all" else _part(rest, config.test_part)


def _part(test: data.Pair, name: str) -> data.Pair:
    """A fifth of the test examples, or the others. The order of the data plays no part in it."""
    size = len(test.y)
    if size < _PARTS:
        hint = f"the data set has {size} test examples, too few for two parts"
        raise validation.fail("test-part", name, "be all", hint)
    rows = torch.as_tensor(shuffled(size), device=test.y.device)
    chosen = rows[: size // _PARTS] if name == "tuning" else rows[size // _PARTS :]
    return data.Pair(test.x[chosen], test.y[chosen])


def make_view(config: Config, source: data.Source) -> View:
    """Unit numbers -> examples, for the configured unit and partition: images, where variants of them have
    features.

    Raises ArgumentError where the source has fewer examples than the clients need.
    """
    silos = config.privacy_unit.in_silos
    population = data.population(
        config.partition if config.partitioning.several or not silos else "silos",
        source.images if isinstance(source, FeatureSource) else source,
        clients=config.clients,
        examples_per_client=config.examples_per_client,
        sizes=config.client_sizes,
        alpha=config.dirichlet_alpha,
        labels_per_client=config.labels_per_client,
        seed=config.partition_seed,
    )
    if config.augmentation_copies and isinstance(source, FeatureSource):
        source = source.images
    if isinstance(population, data.Silos):
        return View(source, population.units())
    return View(source, data.SiloSlots(population, config.silo_sizes) if silos else population)


def make_augmentation(config: Config, source: data.Source) -> Augmentation | None:
    """The variants of a client's images; None where there are none.

    Raises ArgumentError unless the source has images.
    """
    if not config.augmentation_copies:
        return None
    images = source.images if isinstance(source, FeatureSource) else source
    if images.tokens or len(images.shape) != 3:
        hint = f"{source.name} has no images (channels, height, width)"
        raise validation.fail("augmentation-copies", config.augmentation_copies, "be 0", hint)
    return Augmentation(
        config.augmentation_copies,
        config.augmentation_shift,
        config.augmentation_flip,
        config.augmentation_deform,
        source.transformed if isinstance(source, FeatureSource) else None,
    )


def choose_device(name: str) -> torch.device:
    """``auto`` is the GPU where there is one. Raises ArgumentError for a device that is not there."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    devices = ("auto", "cpu", "cuda")
    validation.choice("device", name, devices, hints.of_value("device", name, devices))
    if name == "cuda" and not torch.cuda.is_available():
        raise validation.fail("device", name, "be cpu or auto here", "torch finds no GPU")
    return torch.device(name)


def initial_params(task: Task, key: Key) -> Tensor:
    """The first parameter vector (d,), from the server's key."""
    return task.initial(key.generator("initial-params"))
