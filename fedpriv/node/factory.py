"""Builds a node's worker from the run's configuration and the node's own configuration."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fedpriv import data
from fedpriv._internal import validation
from fedpriv.config.builders import (
    choose_device,
    make_augmentation,
    make_source,
    make_task,
    make_view,
    make_work,
)
from fedpriv.config.schema import Config
from fedpriv.data.client_files import ClientFile, FileView
from fedpriv.data.features import FeatureSource
from fedpriv.federated.worker import Units, Worker
from fedpriv.mechanism.placement import PLACEMENTS
from fedpriv.node.audit_file import AuditedFile, audited
from fedpriv.node.planted import planted
from fedpriv.rng import Key

_COPIES = 8  # the memory for creating an example, in multiples of its size


@dataclass(frozen=True)
class SiloFile:
    """The examples of one silo's own file, addressed by the federation's unit numbers."""

    file: FileView
    silos: data.Silos

    def batch(self, client_ids: data.Indices, device: torch.device | str = "cpu") -> data.Batch:
        """See :class:`Units`. A unit of another silo, or beyond the end of the file, has no examples."""
        return self.file.units(self.silos, client_ids, device)


@dataclass(frozen=True)
class FeatureView:
    """Units whose images are replaced by their features."""

    units: Units
    source: FeatureSource

    def batch(self, client_ids: data.Indices, device: torch.device | str = "cpu") -> data.Batch:
        """See :class:`Units`."""
        x, y, owner = self.units.batch(client_ids, device)
        return data.Batch(self.source.transformed(x), y, owner)


def make_worker(run_config: Mapping[str, Any], node_config: Mapping[str, Any] | None = None) -> Worker:
    """The worker of a node.

    Args:
        run_config: the run's flat, public configuration.
        node_config: the node's own configuration: ``partition-id``, and ``data-file`` if the node owns its
            data. Such a node uses the run's seed only with ``accept-seed=true``: the server chose the seed,
            and anyone who knows it can subtract the noise.

    Raises ArgumentError for invalid settings and DataError for an unreadable data file.
    """
    config = Config.parse(dict(run_config))
    node = dict(node_config or {})
    source = make_source(config)
    own = _own_partition(config, node)
    file = None if own is None else FileView(_own_rows(config, source, node), own)
    seeded = config.seed >= 0 and (own is None or node.get("accept-seed") is True)
    worker = Worker(
        task=make_task(config, source),
        work=make_work(config),
        view=make_view(config, source) if file is None else _own_view(config, source, file),
        key=Key.of(config.seed if seeded else None),
        device=choose_device(config.device),
        own=own,
        memory=config.memory_budget * 2**20,
        unit_memory=_unit_memory(config, source),
        noisy=PLACEMENTS[config.placement].adds_noise,
        exact=config.exact_noise,
        augmentation=make_augmentation(config, source),
    )
    if not config.planted_canaries:
        return worker
    return planted(worker, config, source, None if file is None else _places(file, config))


def _unit_memory(config: Config, source: data.Source) -> int:
    """The average number of bytes needed to create one unit's examples: _COPIES of each example."""
    each = 1
    if config.divided:  # a finite source is divided completely
        each = -(-source.size // config.clients) if source.size else config.examples_per_client
    each *= max(1, config.augmentation_copies)
    return _COPIES * each * math.prod(source.shape) * (8 if source.tokens else 4)


def _own_partition(config: Config, node: Mapping[str, Any]) -> int | None:
    if not config.nodes_own_data:
        return None
    for name in ("partition-id", "data-file"):
        if name not in node:
            raise validation.ArgumentError(
                f"This node has no {name}. Start the SuperNode with --node-config "
                "'partition-id=0 num-partitions=2 data-file=\"/path/to/file.npz\"'"
            )
    return validation.integer("partition-id", node["partition-id"])


def _own_rows(config: Config, source: data.Source, node: Mapping[str, Any]) -> ClientFile | AuditedFile:
    rows = ClientFile(node["data-file"], source.images if isinstance(source, FeatureSource) else source)
    # Without an audit file a node refuses audits (node.policy): only an auditor's own view has none.
    named = config.audit and node.get("audit-file")
    return audited(rows, str(node["audit-file"])) if named else rows


def _places(file: FileView, config: Config) -> data.Indices:
    """The unit numbers of the examples in one silo's own file."""
    most = config.examples_per_client
    return np.asarray(file.client * most + np.flatnonzero(file.file.valid[:most]))


def _own_view(config: Config, source: data.Source, file: FileView) -> Units:
    view: Units = file
    if config.privacy_unit.in_silos:
        view = SiloFile(file, data.Silos(config.clients, config.examples_per_client))
    if isinstance(source, FeatureSource) and not config.augmentation_copies:
        return FeatureView(view, source)
    return view
