"""The configuration of a run: one flat table of scalars, the same keys everywhere.

The keys are those of Flower's run-config, of ``fedpriv simulate``'s TOML file and of its ``--set``
flags. Every key has a default and a description; unknown keys and impossible values are refused in one
line before any work starts. What the keys mean together is decided in :mod:`fedpriv.config.plan`.

Inside, settings are groups (:mod:`fedpriv.config.settings`), and each optimizer has its own, which its file
declares (:mod:`fedpriv.optimizers.registry`).

>>> Config.parse({"sampling-rate": 0.02}).sampling_rate
0.02
>>> Config.parse({"sampling-rat": 0.02})
Traceback (most recent call last):
    ...
fedpriv.ArgumentError: unknown key 'sampling-rat'; did you mean 'sampling-rate'?
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, Self, TypeVar

from pydantic.fields import FieldInfo

from fedpriv._internal import hints, user_code, validation
from fedpriv._internal.lazy import numpy as np
from fedpriv._internal.settings import (
    Needs,
    Scalar,
    Settings,
    by_key,
    choices,
    condition,
    is_filled,
    own_settings,
    setting,
    snake,
    toml_value,
)
from fedpriv.config.federation import Partitioning, silo_sizes
from fedpriv.config.settings import DataSettings, FederationSettings, MachineSettings, PrivacySettings
from fedpriv.data.readers import hugging_face
from fedpriv.mechanism import settings as mechanism
from fedpriv.mechanism.placement import PLACEMENTS, DistributedSettings
from fedpriv.mechanism.units import Level, PrivacyUnit
from fedpriv.optimizers import METHODS, Method, OptimizerSettings, PrivateOptimizer, given_method, user_method
from fedpriv.optimizers.local_step_defaults import first_decay
from fedpriv.optimizers.public_data import PublicSettings
from fedpriv.optimizers.registry import BuildContext, users_of
from fedpriv.optimizers.settings import WRAPPER_KEYS, CommonSettings
from fedpriv.optimizers.user import own_defaults

if TYPE_CHECKING:
    from fedpriv.data import Indices

_Group = TypeVar("_Group", bound=Settings)

# The groups that every run has, by title; each method's own settings stand after the optimizers'.
GROUPS: dict[str, type[Settings]] = {
    "Data and model": DataSettings,
    "Federation": FederationSettings,
    "Privacy": PrivacySettings,
    "Optimizer: common": OptimizerSettings,
    "Machine": MachineSettings,
}


class _Parsed(type(Settings)):  # type: ignore[misc]  # Pydantic's own type of models
    """The type of :class:`Config`: calling it checks all settings, those of optimizers among them."""

    def __call__(cls, **settings: Any) -> Any:
        with validation.python_names(cls.keys(), values_of_settings()):
            return cls.parse(settings)


class Config(
    MachineSettings, OptimizerSettings, PrivacySettings, FederationSettings, DataSettings, metaclass=_Parsed
):
    """All settings of a run. Attributes are the keys with underscores for hyphens.

    ``Config(epsilon=1, optimizer="dp-srm", srm_gamma=0.3)`` takes every setting by its name, as
    ``fedpriv.simulate`` does, and raises ArgumentError on the first thing wrong; :meth:`parse` takes a
    mapping.

    Attributes:
        own: the settings of the chosen optimizer alone.
        given: the optimizer, where it was handed over as an object (:meth:`with_optimizer`).
    """

    own: Settings = setting(Settings(), "the chosen optimizer's own settings")
    given: Any = None

    @classmethod
    def parse(cls, values: Mapping[str, Any]) -> Self:
        """The checked configuration. Keys may be written with underscores, as Python's names are.

        Settings of optimizers that are not chosen may be given where they are at their defaults, as Flower's
        run-config lists all. Raises ArgumentError, one line, on the first thing wrong.
        """
        values = by_key(values)
        known = cls.all_fields()
        for key, value in values.items():
            if key not in known:
                raise validation.ArgumentError(
                    f"unknown key {validation.shown(key)}; {_hint(key, value, known)}"
                )
        parts = {
            kind: {k: v for k, v in values.items() if k in kind.fields()} for kind in own_settings(METHODS)
        }
        parts = {kind: part for kind, part in parts.items() if part}
        taken = {key for part in parts.values() for key in part}
        config = cls.read({key: value for key, value in values.items() if key not in taken})
        if defaults := _defaults_of_a_class(config, values):
            return cls.parse({**values, **defaults})
        chosen = Settings if user_code.named(config.optimizer) else METHODS[config.optimizer].settings
        given = {kind: kind.read(part) for kind, part in parts.items()}
        own = given[chosen] if chosen in given else chosen()
        for kind, settings in given.items():
            _require_unset(settings, set(chosen.fields()), config.optimizer, kind)
        return config.model_copy(update={"own": own})

    @classmethod
    def fields(cls) -> dict[str, FieldInfo]:
        """The settings that every run has, by key, in the order of the groups."""
        return {key: field for group in GROUPS.values() for key, field in group.fields().items()}

    @classmethod
    def groups(cls) -> dict[str, dict[str, FieldInfo]]:
        """All settings by group and key; each kind of optimizer that has settings is a group of its own."""
        found: dict[str, dict[str, FieldInfo]] = {}
        for title, group in GROUPS.items():
            found[title] = group.fields()
            if title == "Optimizer: common":
                for kind, methods in own_settings(METHODS).items():
                    found[f"Optimizer: {', '.join(methods)}"] = kind.fields()
        return found

    @classmethod
    def all_fields(cls) -> dict[str, FieldInfo]:
        """All settings, those of every optimizer among them, by key."""
        return {key: field for fields in cls.groups().values() for key, field in fields.items()}

    @classmethod
    def keys(cls) -> list[str]:
        """All keys, in the order of their groups."""
        return list(cls.all_fields())

    @property
    def method(self) -> Method:
        """The chosen optimizer. Raises UserCodeError where it is your own and cannot be imported."""
        if (given := self.optimizer_object) is not None:
            return given_method(self.optimizer, given)
        return user_method(self.optimizer) if user_code.named(self.optimizer) else METHODS[self.optimizer]

    @property
    def optimizer_object(self) -> PrivateOptimizer | None:
        """The optimizer where it was handed over as an object. Raises UserCodeError where it is gone."""
        if self.given is None and user_code.in_memory(self.optimizer):
            found: PrivateOptimizer | type = user_code.object_in_memory("optimizer", self.optimizer)
            return None if isinstance(found, type) else found
        given: PrivateOptimizer | None = self.given
        return given

    @property
    def user_code(self) -> dict[str, str]:
        """The settings that name code of the user's own as module:name, by key."""
        named = {key: getattr(self, key) for key in user_code.SETTINGS}
        other = (user_code.in_memory, hugging_face.is_path)
        return {k: v for k, v in named.items() if user_code.named(v) and not any(is_(v) for is_ in other)}

    def part(self, kind: type[_Group]) -> _Group:
        """The settings of one type: those that a placement, a sampler or a data set has of its own."""
        return kind(**{name: getattr(self, name) for name in kind.model_fields})

    @property
    def public(self) -> PublicSettings:
        """The optimizer's settings of public examples; none are used where it has no such settings."""
        return self.own if isinstance(self.own, PublicSettings) else PublicSettings()

    @property
    def public_examples(self) -> int:
        """How many public examples the optimizer learns from."""
        return self.public.public_examples

    @property
    def units(self) -> int:
        """The public number of privacy units: clients, or the slots for examples of all silos."""
        return self.units_of_parties(self.clients)

    @property
    def privacy_unit(self) -> PrivacyUnit:
        """What neighbouring data sets differ in."""
        return PrivacyUnit(self.unit)

    def units_of_parties(self, parties: int) -> int:
        """How many privacy units so many clients or silos hold at most."""
        if self.unequal_silos:
            return int(np.sort(self.silo_sizes)[self.clients - parties :].sum())
        return parties * self.privacy_unit.of_party(self.examples_per_client)

    @property
    def unequal_silos(self) -> bool:
        """Whether silos have unequal public sizes."""
        return self.privacy_unit.in_silos and self.partitioning.assigned and self.client_sizes != "equal"

    @property
    def silo_sizes(self) -> Indices:
        """The public number of slots for examples of each silo, (clients,)."""
        kind = self.client_sizes if self.unequal_silos else "equal"
        return silo_sizes(kind, self.examples_per_client, self.partition_seed, self.clients)

    @property
    def partitioning(self) -> Partitioning:
        """How examples are divided among clients, where these are the privacy units."""
        return Partitioning(self.partition)

    @property
    def divided(self) -> bool:
        """Whether clients are the privacy units, and may hold several examples."""
        return self.partitioning.several and not self.privacy_unit.in_silos

    @property
    def by_silo(self) -> bool:
        """Whether each silo makes private steps of its own (the client level)."""
        return Level(self.level).by_silo

    @property
    def in_process(self) -> bool:
        """Whether virtual clients run in this process, and not in Ray's actors."""
        return self.engine == "in-process"

    @property
    def trains_locally(self) -> bool:
        """Whether clients make SGD steps of their own, and not one gradient."""
        return self.work == "local-steps"

    @property
    def centralised(self) -> bool:
        """Whether one silo holds all examples: no federation (see :mod:`fedpriv.config.centralised`)."""
        return self.privacy_unit.in_silos and self.clients == 1 and not self.nodes_own_data

    @property
    def aggregates_securely(self) -> bool:
        """Whether the server sees the sum of the parties' messages, and no message."""
        placed = PLACEMENTS[self.placement].settings is DistributedSettings
        return placed and self.part(DistributedSettings).secure_aggregation

    @property
    def simulates_noise(self) -> bool:
        """Whether the noise is that of cohorts larger than the run's own (``noise-cohort``): not private."""
        return self.noise_cohort > 0 and PLACEMENTS[self.placement].adds_noise

    @property
    def noise_units(self) -> int:
        """The number of units that noise and delta are for: the run's own, or those of ``noise-cohort``."""
        if not self.simulates_noise:
            return self.units
        return self.noise_population or round(self.noise_cohort / self.sampling_rate)

    @property
    def exact_noise(self) -> bool:
        """Whether noise is drawn exactly."""
        return self.noise_draws == "exact"

    @property
    def asked_seed(self) -> int | None:
        """The seed that was asked for; None is OS entropy."""
        return None if self.seed < 0 else self.seed

    def context(self) -> BuildContext:
        """The run that the optimizer is for; at the client level a silo's, over all its releases.

        :func:`fedpriv.config.context.build_context` adds what reads data.
        """
        return BuildContext(
            common=self,
            rounds=self.rounds * self.silo_steps,
            by_silo=self.by_silo,
            silo_steps=self.silo_steps,
            local_steps=self.trains_locally,
            sampler=self.sampler,
            placement=self.placement,
            draw=self._generator,
        )

    def _generator(self, purpose: str) -> np.random.Generator:
        from fedpriv.rng import Key

        return Key.of(self.asked_seed).generator(purpose)

    def resolved(self) -> Self:
        """The configuration with what 0 (here and there -1) stands for filled in, as config.toml has it."""
        method = self.method
        filled = self.filled_in(delta=1 / (10 * self.noise_units), **method.defaults)
        if self.simulates_noise:
            filled = filled.model_copy(update={"noise_population": self.noise_units})
        if self.averaging == -1:
            filled = filled.model_copy(update={"averaging": 0.0 if self.by_silo else method.averaging})
        if self.beta1 == -1:
            filled = filled.model_copy(update={"beta1": first_decay(filled.context())})
        filled = filled.model_copy(update={"own": method.resolve(self.own, filled.context())})
        if not self.learning_rate:
            return filled.with_default_rate(filled.context())
        return filled.model_copy(update={"own": method.resolve_with_rate(filled.own, filled.context())})

    def with_default_rate(self, context: BuildContext) -> Self:
        """A copy with the optimizer's own step size in this run, and settings that are 0 for one by it."""
        step = self.method.default_rate(self.own, context) * (1 - self.momentum)
        changed = self.model_copy(update={"learning_rate": step})
        own = self.method.resolve_with_rate(self.own, changed.context())
        return changed.model_copy(update={"own": own})

    def derived(self) -> dict[str, Scalar]:
        """What the settings that are filled in are where they are left at their defaults."""
        own = {key: field.default for key, field in type(self.own).fields().items() if is_filled(field)}
        common = {key: field.default for key, field in self.fields().items() if is_filled(field)}
        own_unset = self.own.model_copy(update={snake(key): value for key, value in own.items()})
        unset = self.model_copy(update={"own": own_unset, **{snake(k): v for k, v in common.items()}})
        table = unset.resolved().table()
        return {key: table[key] for key in (*common, *own)}

    def table(self) -> dict[str, Scalar]:
        """All settings by key, as they are here; those of optimizers that are not chosen at their defaults.

        What 0 stands for is filled in by :meth:`resolved`.
        """
        values = {key: field.default for key, field in self.all_fields().items()}
        return values | {key: getattr(self, snake(key)) for key in self.fields()} | self.own.table()

    def changed(self, **changes: Any) -> Self:
        """A copy with these attributes changed, checked anew."""
        changed = type(self).parse({**self.table(), **by_key(changes)})
        same = changed.optimizer == self.optimizer
        return changed.model_copy(update={"given": self.given}) if same else changed

    def with_optimizer(self, optimizer: PrivateOptimizer) -> Self:
        """A copy whose optimizer is this object: one of your own, or one that was made in Python."""
        name = user_code.reference(optimizer)
        return self.model_copy(update={"optimizer": name, "given": optimizer, "own": Settings()})

    def toml(self) -> str:
        """All settings as TOML text, as :meth:`table` has them."""
        return "".join(f"{key} = {toml_value(value)}\n" for key, value in self.table().items())

    def without_effect(self) -> dict[str, Needs]:
        """The settings that have no effect in this run, whatever their values, with what they need."""
        return dict(self._without_effect())

    def _without_effect(self) -> Iterator[tuple[str, Needs]]:
        table, common, optimizers = self.table(), self.fields(), OptimizerSettings.fields()
        used, owned = {"optimizer", *self.method.uses, *WRAPPER_KEYS}, mechanism.owned()
        for key, field in self.all_fields().items():
            own = key not in common
            if key in type(self.own).fields() or (not own and (key not in optimizers or key in used)):
                needs = (owned.get(key), self.method.needs.get(key) or condition(field))
                if unmet := [need for need in needs if need is not None and not need.holds(table)]:
                    yield key, unmet[0]
            else:
                yield key, Needs(users_of(key, self.optimizer), lambda run: False)


@cache
def values_of_settings() -> tuple[str, ...]:
    """All words that settings have as values."""
    return tuple(word for field in Config.all_fields().values() for word in choices(field))


def _hint(key: str, value: object, known: Mapping[str, object]) -> str:
    """What to do about an unknown key."""
    if isinstance(value, dict):
        return "all keys stand at the top, in no table"
    return hints.of_key(key, known)


def _require_unset(settings: Settings, used: set[str], optimizer: str, kind: type[Settings]) -> None:
    """Refuse a setting of another optimizer that is not at its default. Raises ArgumentError."""
    for key, value in settings.table().items():
        unset = (kind.fields()[key].default, kind.UNSET.get(key))
        if key not in used and value not in unset:
            raise validation.ArgumentError(f"{key} is {value!r}, which needs {users_of(key, optimizer)}")


def unused(config: Config) -> tuple[str, str] | None:
    """The first key that was changed and has no effect in this run, and what it needs; or None.

    What 0 stands for is no change, whether or not it was filled in.

    >>> unused(Config.parse({"dirichlet-alpha": 0.1}))
    ('dirichlet-alpha', 'partition=dirichlet')
    """
    table, derived, fields = config.table(), config.derived(), config.all_fields()
    for key, needed in config.without_effect().items():
        unset = (fields[key].default, derived.get(key), config.UNSET.get(key), config.own.UNSET.get(key))
        if needed.strict and table[key] not in unset:
            return key, needed.text
    return None


def _defaults_of_a_class(config: Config, given: Mapping[str, Any]) -> dict[str, Scalar]:
    """What the constructor of your own optimizer has for common settings that were not given.

    Where all are given, as in what a server sends, no code is imported.
    """
    unset = CommonSettings.fields().keys() - given.keys()
    if not unset or not user_code.named(config.optimizer):
        return {}
    try:
        found = {} if config.optimizer_object is not None else own_defaults(config.optimizer)
    except user_code.UserCodeError:
        return {}  # it is refused where the optimizer is built
    return {key: value for key, value in found.items() if key in unset}
