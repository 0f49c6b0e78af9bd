"""The state of a silo between rounds, and its file on a node that owns its data.

The file is beside the node's ledger, one for each run, so a silo goes on with its optimizer's state when the
node, or the run, was killed and started again (the client level, :mod:`fedpriv.node.silo`).

Order: a round is charged to the ledger, then trained, then its state is written, then it is answered. Each is
on disk before the next begins. So a crash leaves the state at most one round behind the ledger, and an answer
that was sent has its state.

The ledger, not this file, decides which rounds may be answered. So:

- A file that is missing, or of an earlier round, costs accuracy and no privacy. The silo goes on with the
  optimizer's first state, or with the earlier one. It uses noise for the new round only.
- A ledger that ends before the charge that the file names was put back, and is refused: it would forget what
  was answered.
- A damaged file is refused, and so is one of another model or optimizer. Its owner restores it or deletes it.

Content: the optimizer's tensors, which follow from the silo's noisy answers alone, the number of the round,
and where the ledger ended. No data, noise, key or cohort is in it. Who reads it learns what the charged
releases reveal, which the ledger's epsilon covers. It never leaves the node, and only the owner can read it.

>>> import tempfile, torch
>>> file = SiloStateFile(Path(tempfile.mkdtemp()) / "ledger.jsonl", 7)
>>> file.write(SiloState(3, {"velocity": torch.ones(2)}, Head(12, "a hash")))
>>> file.read().round, file.read().charged, oct(file.path.stat().st_mode)[-3:]
(3, Head(length=12, link='a hash'), '600')
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError, safe_open
from torch import Tensor

from fedpriv._internal import tensor_io
from fedpriv._internal.files import atomic, read_json, sync_folder
from fedpriv.accounting import LedgerError
from fedpriv.accounting.head import Head

_MOST_RUNS = 8  # that did not reach their last round and whose states are kept


@dataclass
class SiloState:
    """The state of a silo that a node keeps between rounds. It contains no data.

    Attributes:
        round: the first round that the silo may still answer.
        slots: the optimizer's tensors, or None before the first round.
        charged: where the node's ledger ended, at the latest, when this round was charged; None without one.
    """

    round: int = 0
    slots: Mapping[str, Tensor] | None = None
    charged: Head | None = None


@dataclass(frozen=True)
class SiloStateFile:
    """The file with the state of a node's silo in one run.

    Attributes:
        ledger: the path of the node's ledger.
        run: the run's number; of a continued run, the first one's.
    """

    ledger: Path
    run: int

    @property
    def path(self) -> Path:
        """Where the file is."""
        return Path(f"{self.ledger}.silo") / f"{self.run}.safetensors"

    def read(self) -> SiloState:
        """The state; that before the first round if there is no file. Raises LedgerError if it is damaged."""
        try:
            with safe_open(self.path, "pt") as file:
                about = read_json(file.metadata()["fedpriv"])
                slots = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            number, length, link = about["round"], about["charged"]["length"], about["charged"]["link"]
            if about["tensors"] != tensor_io.digest(slots) or not (
                type(number) is type(length) is int and min(number, length) >= 1 and isinstance(link, str)
            ):
                raise ValueError("not what was written")
        except FileNotFoundError:
            return SiloState()
        except (SafetensorError, KeyError, TypeError, ValueError, RuntimeError, OSError):
            raise LedgerError(
                f"{self.path}, the state of this node's silo, cannot be read or is damaged: restore a copy, "
                "or delete it, and the silo's optimizer begins afresh under what is left of its budget"
            ) from None
        return SiloState(number, slots, Head(length, link))

    def write(self, state: SiloState) -> None:
        """Writes the state of a round that was charged, and returns once it is on disk.

        Of earlier runs, the newest files are kept. Raises LedgerError if the disk refuses it.
        """
        assert state.charged is not None
        assert state.slots is not None
        charged = {"length": state.charged.length, "link": state.charged.link}
        about = {"round": state.round, "charged": charged, "tensors": tensor_io.digest(state.slots)}
        try:
            self.path.parent.mkdir(mode=0o700, exist_ok=True)
            with atomic(self.path, private=True) as file:
                file.write(tensor_io.packed(state.slots, {"fedpriv": json.dumps(about)}))
            sync_folder(self.path.parent)
            sync_folder(self.ledger.parent)
            self._drop_others()
        except OSError as error:
            raise LedgerError(
                f"{self.path}, the state of this node's silo, cannot be written ({error.strerror}): free the "
                "disk; the round stays charged, and the silo goes on with the next"
            ) from None

    def delete(self) -> None:
        """Deletes the file, after the run's last round."""
        self.path.unlink(missing_ok=True)

    def _drop_others(self) -> None:
        """Deletes the oldest files beyond :data:`_MOST_RUNS`."""
        files = sorted(self.path.parent.glob("*.safetensors"), key=lambda file: file.stat().st_mtime_ns)
        for file in files[:-_MOST_RUNS]:
            file.unlink(missing_ok=True)
