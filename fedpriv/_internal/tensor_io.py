"""Tensors and public words about them in the safetensors format, byte for byte the same for the same content.

>>> import torch
>>> content = packed({"w": torch.zeros(2)}, {"round": "3", "fedpriv": "1"})
>>> content[8:].split(b'"w"')[0]
b'{"__metadata__":{"fedpriv":"1","round":"3"},'
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from safetensors.torch import save
from torch import Tensor

_ALIGNED = 8  # bytes: where tensors begin


def packed(tensors: Mapping[str, Tensor], about: Mapping[str, str]) -> bytes:
    """The file's content; tensors come from any device and may share memory.

    The library writes ``about`` in an order of chance, so that files of one seed would differ.
    """
    content = save({name: t.detach().cpu().contiguous().clone() for name, t in tensors.items()}, dict(about))
    end = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:end])
    header["__metadata__"] = dict(sorted(about.items()))
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNED)
    return len(text).to_bytes(8, "little") + text + content[end:]
