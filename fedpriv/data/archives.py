"""Reads tar and zip archives, and extracts the files that a data set card names, with their hashes verified.

An archive is not trusted. Only plain files are read, and they are written under their base names; links,
devices and sparse files are skipped. Memory and disk are limited by the archive's own size.

>>> import tempfile
>>> with tempfile.TemporaryDirectory() as folder:
...     path = Path(folder) / "toy.zip"
...     with zipfile.ZipFile(path, "w") as archive:
...         archive.writestr("deep/inner.bin", b"12345")
...     [found] = unpack(path, File("toy.zip", members=(Member("inner.bin", 5),)))
...     found.name, found.read_bytes()
('inner.bin', b'12345')
"""

from __future__ import annotations

import bz2
import gzip
import hashlib
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, cast

from fedpriv._internal.files import atomic
from fedpriv.data.catalogue import File, Member
from fedpriv.data.files import most_unpacked, too_large
from fedpriv.data.source import DataError

_CHUNK = 1 << 18
# What zipfile raises for damaged archives, and for kinds that it cannot read.
ZIP_DAMAGE = (
    zipfile.BadZipFile, zlib.error, struct.error, EOFError, NotImplementedError, RuntimeError, OverflowError,
)  # fmt: skip
# What tarfile raises for them: its headers are numbers in text, and may follow each other without end.
_TAR_DAMAGE = (
    tarfile.TarError, struct.error, EOFError, ValueError, OverflowError, KeyError, IndexError, RecursionError,
)  # fmt: skip


class FetchError(DataError):
    """The file could not be fetched from any mirror; the message has the reason for each mirror."""


class WrongHashError(FetchError):
    """A downloaded file does not have the expected hash; it was deleted."""


class DamagedArchiveError(DataError):
    """A file is not an intact tar or zip archive."""


def is_member(path: Path, member: Member) -> bool:
    """Whether ``path`` exists and has the member's size and hash, as far as they are known."""
    if not path.is_file() or member.size not in (None, path.stat().st_size):
        return False
    return member.sha256 is None or sha256_of(path) == member.sha256


def sha256_of(path: Path) -> str:
    """The hex SHA-256 of the file at ``path``."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def unpack(archive: Path, file: File) -> list[Path]:
    """Extracts the members of ``file`` from a tar or zip archive into the archive's folder.

    Raises WrongHashError for a damaged archive or a member with a wrong hash; the archive is then deleted.
    Raises FetchError if a member is missing.
    """
    try:
        return _unpack(archive, file)
    except DamagedArchiveError:
        archive.unlink()
        raise WrongHashError(f"{archive} is a damaged archive and was deleted; fetch it again") from None


def _unpack(archive: Path, file: File) -> list[Path]:
    wanted = {member.name: member for member in file.members}
    found: list[Path] = []
    for whole_name, size, stream in entries(archive):
        name = Path(whole_name).name
        member = wanted.get(name)
        if member is None or member.size not in (None, size):
            continue
        target, digest = archive.with_name(name), hashlib.sha256()
        with stream, atomic(target) as out:
            for block in blocks(archive, stream):
                digest.update(block)
                out.write(block)
            if member.sha256 not in (None, digest.hexdigest()):
                archive.unlink()
                raise WrongHashError(
                    f"{archive}: its member {name} has the wrong SHA-256, so the archive was deleted; fetch "
                    "it again"
                )
        found.append(target)
    missing = set(wanted) - {path.name for path in found}
    if missing:
        raise FetchError(
            f"{archive} has no member {', '.join(sorted(missing))} of the size that the data set card names"
        )
    return found


def entries(archive: Path) -> Iterator[tuple[str, int, IO[bytes]]]:
    """(name, size, open stream) of each plain file in a tar or zip archive; read streams by :func:`blocks`.

    Raises DamagedArchiveError, and DataError for an archive that unpacks to far more than its size.
    """
    with _refusing_damage(archive):
        if zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as folder:
                for item in folder.infolist():
                    if not item.is_dir():
                        yield item.filename, item.file_size, entry(folder, item)
            return
        with _opened(archive) as file:
            unpacked = cast("IO[bytes]", _Unpacked(file, archive))
            with tarfile.open(fileobj=unpacked, mode="r:") as tar:
                for member in tar:
                    stream = tar.extractfile(member) if member.isreg() and not member.issparse() else None
                    if stream is not None:
                        yield member.name, member.size, stream


def blocks(archive: Path, stream: IO[bytes]) -> Iterator[bytes]:
    """A member's content in blocks, no more than an archive of this size may unpack to. Raises as entries."""
    left = limit = most_unpacked(archive.stat().st_size)
    with _refusing_damage(archive):
        while block := stream.read(_CHUNK):
            left -= len(block)
            if left < 0:
                raise too_large(archive, limit)
            yield block


def entry(archive: zipfile.ZipFile, item: zipfile.ZipInfo) -> IO[bytes]:
    """A member of a zip archive, stored or deflated. Raises the errors of ZIP_DAMAGE."""
    if item.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise NotImplementedError  # the dictionary of LZMA may have 4 GiB, whatever the archive's size
    try:
        return archive.open(item)
    except OSError:  # it lies before the start of the file
        raise zipfile.BadZipFile from None


@contextmanager
def _refusing_damage(archive: Path) -> Iterator[None]:
    try:
        yield
    except DataError:
        raise
    except (*_TAR_DAMAGE, *ZIP_DAMAGE):
        raise DamagedArchiveError(f"{archive} is not an intact tar or zip archive") from None


def _opened(archive: Path) -> IO[bytes]:
    """The archive, decompressed if it is gzip or bzip2 data."""
    with archive.open("rb") as file:
        start = file.read(3)
    codec: Any = gzip if start[:2] == b"\x1f\x8b" else bz2 if start == b"BZh" else None
    found: IO[bytes] = archive.open("rb") if codec is None else codec.open(archive)
    return found


class _Unpacked:
    """A tar archive's bytes for tarfile, which asks for as many of them as a header claims.

    It gives as many as there are, and raises DataError beyond what an archive of this size may unpack to.
    """

    def __init__(self, file: IO[bytes], archive: Path) -> None:
        self._file, self._archive = file, archive
        self._limit = most_unpacked(archive.stat().st_size)

    def read(self, size: int = -1) -> bytes:
        """At most ``size`` bytes; all if it is negative."""
        found = bytearray()
        while size < 0 or len(found) < size:
            wanted = _CHUNK if size < 0 else min(_CHUNK, size - len(found))
            block = self._system(self._file.read, wanted)
            if not block:
                break
            found += block
            self._require(self.tell())
        return bytes(found)

    def seek(self, position: int) -> int:
        """Moves to a position from the start."""
        self._require(position)
        return int(self._system(self._file.seek, position))

    def tell(self) -> int:
        """The position."""
        return self._file.tell()

    def _require(self, position: int) -> None:
        if position > self._limit:
            raise too_large(self._archive, self._limit)

    @staticmethod
    def _system(act: Callable[[int], Any], number: int) -> Any:
        """What ``act`` gives. Raises ReadError where compressed data is damaged."""
        try:
            return act(number)
        except (OSError, EOFError, zlib.error) as error:
            raise tarfile.ReadError(str(error)) from None
