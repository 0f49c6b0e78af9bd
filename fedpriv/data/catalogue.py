"""The catalogue: one TOML card a data set, with files, mirrors, SHA-256, size, licence, citation.

Cards lie in ``datasets/`` of a checkout, and as ``fedpriv/_datasets/`` in an installed wheel.

>>> card("mnist").files[1].size
28881
>>> card("infinite-digits").needs
('digits',)
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedpriv._internal import validation
from fedpriv.data.source import DataError


class CardError(DataError):
    """A card is missing, or is not of the form described here."""


@dataclass(frozen=True)
class Member:
    """A file to take out of an archive: its base name, and its size in bytes and SHA-256 where known."""

    name: str
    size: int | None = None
    sha256: str | None = None


@dataclass(frozen=True)
class File:
    """A file of a data set.

    Attributes:
        name: its base name in the data folder.
        urls: mirrors, tried in order.
        sha256: hex digest of the file, or None where it is not known.
        content_sha256: hex digest of the file once gunzipped, accepted instead, or None.
        md5: the published MD5, used where no SHA-256 is known, or None. It shows an accident, and not a
            forgery: MD5 is broken.
        size: bytes of the file, or None.
        optional: whether the data set works without it.
        members: what to take out of it, when it is a tar or zip archive.
    """

    name: str
    urls: tuple[str, ...] = ()
    sha256: str | None = None
    content_sha256: str | None = None
    md5: str | None = None
    size: int | None = None
    optional: bool = False
    members: tuple[Member, ...] = ()

    @property
    def weak(self) -> bool:
        """Whether nothing but an MD5 is known of the file."""
        return self.md5 is not None and self.sha256 is None and self.content_sha256 is None

    @property
    def verifiable(self) -> bool:
        """Whether what comes can be verified: the file, or else everything that is taken out of it."""
        if any((self.sha256, self.content_sha256, self.md5)):
            return True
        return bool(self.members) and all(member.sha256 for member in self.members)


@dataclass(frozen=True)
class Card:
    """What is known of a data set.

    Attributes:
        name: that :func:`fedpriv.data.load` knows it by, and its folder in the data folder.
        title, homepage, licence, citation: for people.
        inputs, target: what an example is, and what is to be predicted of it, in a few words.
        files: what has to be fetched; none for a bundled data set.
        needs: data sets that it is made from.
    """

    name: str
    title: str
    homepage: str
    licence: str
    citation: str
    inputs: str
    target: str
    files: tuple[File, ...] = ()
    needs: tuple[str, ...] = ()


def cards_folder() -> Path:
    """The folder with the cards, of the wheel or of the checkout. Raises CardError if there is none."""
    package = Path(__file__).resolve().parents[1]
    for folder in (package / "_datasets", package.parent / "datasets"):
        if folder.is_dir():
            return folder
    raise CardError(f"no data set cards beside {package}; install the package anew")


def list_cards(folder: Path | None = None) -> list[Card]:
    """All cards, by name. Raises CardError for one that is malformed."""
    paths = (folder or cards_folder()).glob("*.toml")
    return [read_card(path) for path in sorted(paths, key=lambda path: path.stem)]


def card(name: str, folder: Path | None = None) -> Card:
    """The card called ``name``. Raises ArgumentError when there is none."""
    folder = folder or cards_folder()
    validation.choice("dataset", name, sorted(path.stem for path in folder.glob("*.toml")))
    return read_card(folder / f"{name}.toml")


def read_card(path: Path) -> Card:
    """The card in the TOML file ``path``. Raises CardError when it is malformed."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
        files = tuple(_file(entry) for entry in table.pop("files", []))
        made = Card(files=files, needs=tuple(table.pop("needs", [])), **table)
    except (tomllib.TOMLDecodeError, TypeError, AttributeError, UnicodeDecodeError) as error:
        raise CardError(f"{path}: not a data set card: {error}") from error
    if made.name != path.stem:
        raise CardError(f"{path}: is named {made.name!r}; name and file name must agree")
    for file in files:
        _require_sound(path, file)
    return made


def _file(entry: Mapping[str, Any]) -> File:
    fields = dict(entry)
    members = tuple(Member(**member) for member in fields.pop("members", []))
    return File(urls=tuple(fields.pop("urls", [])), members=members, **fields)


def _require_sound(path: Path, file: File) -> None:
    for name in (file.name, *(member.name for member in file.members)):
        # A card must not write outside its own folder.
        if Path(name).name != name or name.startswith("."):
            raise CardError(f"{path}: {name!r} is not a plain file name")
    for digest in (file.sha256, file.content_sha256, *(member.sha256 for member in file.members)):
        if digest is not None and not is_sha256(digest):
            raise CardError(f"{path}: {digest!r} is not a SHA-256 (64 lower-case hex digits)")
    if file.md5 is not None and not _is_hex(file.md5, 32):
        raise CardError(f"{path}: {file.md5!r} is not an MD5 (32 lower-case hex digits)")
    for url in file.urls:
        if not url.startswith(("https://", "http://")):
            raise CardError(f"{path}: {url!r} is not an http or https address")


def is_sha256(digest: str) -> bool:
    """Whether ``digest`` is written as 64 lower-case hexadecimal digits."""
    return _is_hex(digest, 64)


def _is_hex(digest: str, digits: int) -> bool:
    return len(digest) == digits and set(digest) <= set("0123456789abcdef")
