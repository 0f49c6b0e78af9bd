"""Where the files of a node are that other processes look for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any


def ledger_path(node: Mapping[str, Any]) -> Path:
    """Where the ledger of a node with this configuration is."""
    return Path(str(node.get("ledger-file") or f"{node['data-file']}.ledger.jsonl"))


def contact_path(ledger: Path) -> Path:
    """The file beside the ledger that :class:`fedpriv.node.contact.Contact` writes."""
    return Path(f"{ledger}.contact")
