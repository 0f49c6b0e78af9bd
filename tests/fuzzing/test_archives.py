"""Archives of any content: nothing is written outside their folder, and nothing far larger than they are."""

from __future__ import annotations

import bz2
import gzip
import io
import stat
import tarfile
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from helpers.fuzzing import Reader, amounts, check, run_hostile

from fedpriv.data import DataError
from fedpriv.data.archives import unpack
from fedpriv.data.catalogue import File, Member
from fedpriv.data.datasets import imdb
from fedpriv.data.files import most_unpacked

REVIEWS = {
    "aclImdb/imdb.vocab": b"the\nfilm\ngood\n",
    **{
        f"aclImdb/{part}/{kind}/{n}_1.txt": b"the film"
        for part in ("train", "test")
        for kind in ("pos", "neg")
        for n in (0, 1)
    },
}
BOMB = 1 << 22  # zeros, more than what a small archive may unpack to in that test


def tar(members: Sequence[tuple[str, bytes]]) -> bytes:
    """A tar archive of plain files."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for name, data in members:
            item = tarfile.TarInfo(name)
            item.size = len(data)
            archive.addfile(item, io.BytesIO(data))
    return file.getvalue()


def zipped(members: Sequence[tuple[str, bytes]], kind: int = zipfile.ZIP_DEFLATED) -> bytes:
    """A zip archive."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", kind) as archive:
        for name, data in members:
            archive.writestr(name, data)
    return file.getvalue()


def resealed(data: bytes) -> bytes:
    """A tar archive whose headers have right checksums again, as a forger would write them."""
    blocks = [bytearray(data[at : at + 512]) for at in range(0, len(data), 512)]
    for block in blocks:
        if len(block) == 512 and block[257:262] == b"ustar":
            block[148:156] = b"%06o\0 " % sum(block[:148] + b" " * 8 + block[156:])
    return b"".join(blocks)


MEMBERS = [("deep/inner.bin", b"12345"), ("other.bin", b"x" * 600)]
CARD = File("a", members=(Member("inner.bin", 5), Member("other.bin")))


def extract(path: Path) -> object:
    """Extraction, after which the folder has the archive and its members alone."""
    try:
        return unpack(path, CARD)
    finally:
        left = {entry.name for entry in path.parent.iterdir()}
        assert left <= {path.name, "inner.bin", "other.bin"}
        assert not any(entry.is_symlink() for entry in path.parent.iterdir())
        for name in left - {path.name}:
            (path.parent / name).unlink()


def read_reviews(path: Path) -> object:
    return imdb.read(path, 50, 4)


READERS = (
    Reader("zip", "a.zip", extract, (zipped(MEMBERS), zipped(MEMBERS, zipfile.ZIP_STORED))),
    Reader("tar", "a.tar", extract, (tar(MEMBERS),)),
    Reader("tar, resealed", "a.tar", extract, (tar(MEMBERS),), resealed),
    Reader("tar, gzipped", "a.tgz", extract, (tar(MEMBERS),), lambda data: gzip.compress(resealed(data))),
    Reader("tar in bzip2", "a.tbz", extract, (tar(MEMBERS),), lambda data: bz2.compress(resealed(data))),
    Reader("tar, its gzip data", "a.tgz", extract, (gzip.compress(tar(MEMBERS)),), slack=1 << 27),
    Reader(
        "IMDB",
        imdb.ARCHIVE,
        read_reviews,
        (tar(list(REVIEWS.items())),),
        lambda data: gzip.compress(resealed(data)),
    ),
)


@amounts
@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)
def test_a_hostile_archive_is_refused_in_a_sentence(reader: Reader, tmp_path: Path, examples: int) -> None:
    run_hostile(reader, examples, tmp_path)


ESCAPES = [
    "../inner.bin",
    "/tmp/fedpriv-escape/inner.bin",
    "a/../../inner.bin",
    "..\\inner.bin",
    "C:\\inner.bin",
    "inner.bin/..",
]


@pytest.mark.parametrize("made", [tar, zipped], ids=["tar", "zip"])
@pytest.mark.parametrize("name", ESCAPES)
def test_a_member_is_written_in_the_archives_folder(
    made: Callable[..., bytes], name: str, tmp_path: Path
) -> None:
    reader = Reader("paths in archives", "a.any", extract, ())
    check(reader, made([(name, b"12345"), ("other.bin", b"x")]), tmp_path)
    assert not Path("/tmp/fedpriv-escape").exists()


LINKS = [
    tarfile.SYMTYPE,
    tarfile.LNKTYPE,
    tarfile.CHRTYPE,
    tarfile.BLKTYPE,
    tarfile.FIFOTYPE,
    tarfile.DIRTYPE,
]


@pytest.mark.parametrize("kind", LINKS)
def test_a_link_or_device_in_a_tar_is_no_member(kind: bytes, tmp_path: Path) -> None:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        item = tarfile.TarInfo("inner.bin")
        item.type, item.linkname = kind, "/etc/passwd"
        archive.addfile(item)
    reader = Reader("links in archives", "a.tar", extract, ())
    assert not check(reader, file.getvalue(), tmp_path)


def test_a_link_in_a_zip_is_its_text_alone(tmp_path: Path) -> None:
    item = zipfile.ZipInfo("inner.bin")
    item.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr(item, b"/etc/")
        archive.writestr("other.bin", b"x")
    paths = list(unpack(tmp_path / "a.zip", CARD))
    assert [path.name for path in paths] == ["inner.bin", "other.bin"]
    assert not any(path.is_symlink() for path in paths)


@pytest.mark.parametrize("kind", ["zip", "tar.gz", "tar.bz2"])
def test_a_bomb_is_refused_before_it_fills_memory_or_disk(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedpriv.data.files._SMALL", 1 << 20)
    path, zeros = tmp_path / f"a.{kind}", [("other.bin", bytes(BOMB)), ("inner.bin", b"12345")]
    packed = zipped(zeros) if kind == "zip" else {"tar.gz": gzip, "tar.bz2": bz2}[kind].compress(tar(zeros))
    path.write_bytes(packed)
    assert most_unpacked(len(packed)) < BOMB
    with pytest.raises(DataError, match="unpack it yourself if you trust it"):
        unpack(path, CARD)
    assert not (tmp_path / "other.bin").exists()


@pytest.mark.parametrize("kind", [b"x", b"g", b"L", b"K", b"0", b"S"])
@pytest.mark.parametrize("size", [10**9, 10**12, 2**62])
@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzipped"])
def test_a_header_that_claims_terabytes_allocates_nothing(
    kind: bytes, size: int, packed: bool, tmp_path: Path
) -> None:
    item = tarfile.TarInfo("aclImdb/imdb.vocab")
    item.type, item.size = kind, size
    data = resealed(item.tobuf(tarfile.GNU_FORMAT) + b"the\nfilm\n".ljust(512, b"\0"))
    for read in (extract, read_reviews):
        reader = Reader("forged sizes in tar", imdb.ARCHIVE, read, ())
        assert not check(reader, gzip.compress(data) if packed else data, tmp_path)
