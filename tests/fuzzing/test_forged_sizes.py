"""Headers that claim 10^12 numbers, read by a process that could not hold a thousandth of them.

tracemalloc, which the other tests here use, sees Python's and NumPy's memory alone; this limit holds for all.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import resource
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord
from helpers import tally

from fedpriv._internal.validation import FedprivError
from fedpriv.data import Arrays, idx
from fedpriv.data.client_files import ClientFile
from fedpriv.data.datasets import pneumonia
from fedpriv.flower.serialization import read_vector
from fedpriv.models import weights

CLAIM = 10**12
MORE = 1 << 28  # bytes beyond what the process has: 256 MiB
IMAGES = np.zeros((2, 28, 28), np.uint8)
LIKE = Arrays("like", IMAGES, np.zeros(2, np.uint8), IMAGES, np.zeros(2, np.uint8), classes=2)


def npy(shape: tuple[int, ...], dtype: str = "|u1") -> bytes:
    """An .npy file that claims this shape and has 64 bytes."""
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": dtype, "fortran_order": False, "shape": shape})
    return file.getvalue() + bytes(64)


def npz(x: bytes, claimed: int | None = None) -> bytes:
    """An .npz archive with this x, whose directory may claim another size of it."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", x)
        archive.writestr("y.npy", npy((2,))[:-62])
        if claimed is not None:
            archive.getinfo("x.npy").file_size = claimed
    return file.getvalue()


def png(width: int, height: int) -> bytes:
    """A PNG that claims this many pixels and has none."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(bytes(64))) + chunk(b"IEND", b"")


def idx_file(*shape: int) -> bytes:
    """An IDX file that claims this shape and has 64 bytes."""
    return bytes([0, 0, 8, len(shape)]) + b"".join(n.to_bytes(4, "big") for n in shape) + bytes(64)


def tensors(shape: list[int]) -> bytes:
    """A safetensors file that claims this shape and has 64 bytes."""
    ends = [0, 4 * int(np.prod(shape, dtype=object))]
    header = json.dumps({"weight": {"dtype": "F32", "shape": shape, "data_offsets": ends}}).encode()
    return len(header).to_bytes(8, "little") + header + bytes(64)


def client_file(path: Path) -> object:
    return ClientFile(path, LIKE)


def message(path: Path) -> object:
    array = Array("float32", (CLAIM,), "numpy.ndarray", path.read_bytes())
    return read_vector(ArrayRecord({"sum-0": array}), "sum-0")


def start(path: Path) -> object:
    return weights.start_from(torch.nn.Linear(3, 2), str(path))


def pictures(path: Path) -> object:
    return pneumonia._images(path.parent, 28)


# The file's name, its content, and what reads it.
FORGED: dict[str, tuple[str, bytes, Callable[[Path], object]]] = {
    "IDX": ("a.idx", idx_file(10**6, 10**6), idx.read),
    "IDX, gzipped": ("a.idx.gz", gzip.compress(idx_file(10**6, 10**6)), idx.read),
    "IDX, empty": ("a-images-idx3", idx_file(0, 10**6, 10**6)[:-64], client_file),
    "NPZ": ("a.npz", npz(npy((CLAIM,))), client_file),
    "NPZ, empty": ("a.npz", npz(npy((0, CLAIM))[:-64]), client_file),
    "NPZ, of texts": ("a.npz", npz(npy((1,), f"<U{10**9}")), client_file),
    "NPZ, its directory": ("a.npz", npz(npy((CLAIM,)), CLAIM), client_file),
    "message": ("a", npy((CLAIM,), "<f4"), message),
    "weights": ("a.safetensors", tensors([CLAIM]), start),
    "weights, their header": ("a.safetensors", CLAIM.to_bytes(8, "little") + b"{}", start),
    "PNG": ("a.png", png(10**6, 10**6), pictures),
    "PNG, of fewer pixels": ("a.png", png(13_000, 13_000), pictures),
}


def status(read: Callable[[], object]) -> int:
    """0 where a process with little memory left is refused in a sentence; 1 where anything else happens."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            has = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
            resource.setrlimit(resource.RLIMIT_AS, (has + MORE, has + MORE))
            read()
        except FedprivError:
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


needs_linux = pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux's /proc")


@needs_linux
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # a fork beside threads; the child starts none
@pytest.mark.parametrize("name", FORGED)
def test_a_claim_of_terabytes_is_refused_without_memory(name: str, tmp_path: Path) -> None:
    file, content, read = FORGED[name]
    (tmp_path / file).write_bytes(content)
    (tmp_path / file.replace("images-idx3", "labels-idx1")).write_bytes(content)
    assert status(lambda: read(tmp_path / file)) == 0
    tally.count(f"inputs/forged sizes, {name}/refused")


@needs_linux
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_limit_on_memory_holds() -> None:
    assert status(lambda: np.ones(MORE // 4)) == 1  # 8 bytes each
