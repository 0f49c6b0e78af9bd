"""Extracts the files that a data set card names from a tar or zip archive, and verifies their hashes.

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

import hashlib
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from fedpriv._internal.files import atomic
from fedpriv.data.catalogue import File, Member
from fedpriv.data.source import DataError

_CHUNK = 1 << 18


class FetchError(DataError):
    """The file could not be fetched from any mirror; the message has the reason for each mirror."""


class WrongHashError(FetchError):
    """A downloaded file does not have the expected hash; it was deleted."""


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
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, zlib.error):
        archive.unlink()
        raise WrongHashError(f"{archive} is a damaged archive and was deleted; fetch it again") from None


def _unpack(archive: Path, file: File) -> list[Path]:
    wanted = {member.name: member for member in file.members}
    found: list[Path] = []
    for name, size, stream in _entries(archive):
        member = wanted.get(name)
        if member is None or member.size not in (None, size):
            continue
        target, digest = archive.with_name(name), hashlib.sha256()
        with stream, atomic(target) as out:
            while block := stream.read(_CHUNK):
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


def _entries(archive: Path) -> Iterator[tuple[str, int, IO[bytes]]]:
    """(base name, size, open stream) of each file in a tar or zip archive."""
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as folder:
            for entry in folder.infolist():
                if not entry.is_dir():
                    yield Path(entry.filename).name, entry.file_size, folder.open(entry)
        return
    with tarfile.open(archive) as tar:
        for item in tar:
            stream = tar.extractfile(item) if item.isfile() else None
            if stream is not None:
                yield Path(item.name).name, item.size, stream
