"""Deterministic safetensors files: equal tensors and metadata give equal bytes.

>>> import torch
>>> content = packed({"w": torch.zeros(2)}, {"round": "3", "fedpriv": "1"})
>>> content[8:].split(b'"w"')[0]
b'{"__metadata__":{"fedpriv":"1","round":"3"},'
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

import torch
from safetensors.torch import save
from torch import Tensor

_ALIGNMENT = 8  # bytes; the header is padded to a multiple of it


def packed(tensors: Mapping[str, Tensor], about: Mapping[str, str]) -> bytes:
    """The bytes of a safetensors file with the metadata ``about``.

    Tensors may be on any device and may share memory. The metadata is sorted here, because the library writes
    it in random order and files of the same seed would differ.
    """
    content = save({name: t.detach().cpu().contiguous().clone() for name, t in tensors.items()}, dict(about))
    end = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:end])
    header["__metadata__"] = dict(sorted(about.items()))
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    return len(text).to_bytes(8, "little") + text + content[end:]


def digest(tensors: Mapping[str, Tensor]) -> str:
    """The SHA-256 hash, in hex, of the tensors' names, types, shapes and bytes."""
    mark = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        mark.update(f"{name} {tensor.dtype} {tuple(tensor.shape)} ".encode())
        mark.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return mark.hexdigest()
