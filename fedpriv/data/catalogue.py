"""The catalogue of data sets: one TOML card each, with files, mirrors, SHA-256, size, licence and citation.

Cards are in ``datasets/`` of a checkout, and in ``fedpriv/_datasets/`` of an installed wheel.

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

_SHOWN = 300  # characters of the reason in an error


class CardError(DataError):
    """A data set card is missing or malformed."""


@dataclass(frozen=True)
class Member:
    """A file to extract from an archive: its base name and, if known, its size in bytes and SHA-256."""

    name: str
    size: int | None = None
    sha256: str | None = None


@dataclass(frozen=True)
class File:
    """A file of a data set.

    Attributes:
        name: the base name in the data folder.
        urls: mirrors, tried in order.
        sha256: hex digest of the file, or None if it is not known.
        content_sha256: hex digest of the gunzipped file, which is accepted instead, or None.
        md5: the published MD5, used if no SHA-256 is known, or None. It detects damage but not forgery, since
            MD5 is broken.
        size: the file's size in bytes, or None.
        optional: whether the data set works without this file.
        members: the files to extract from it if it is a tar or zip archive.
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
        """Whether only an MD5 of the file is known."""
        return self.md5 is not None and self.sha256 is None and self.content_sha256 is None

    @property
    def verifiable(self) -> bool:
        """Whether a download can be verified: the file itself, or all members extracted from it."""
        if any((self.sha256, self.content_sha256, self.md5)):
            return True
        return bool(self.members) and all(member.sha256 for member in self.members)


@dataclass(frozen=True)
class Card:
    """The description of a data set.

    Attributes:
        name: the name for :func:`fedpriv.data.load`, and of its folder in the data folder.
        title, homepage, licence, citation: information for readers.
        inputs, target: short descriptions of an example and of the value to predict.
        files: the files to fetch; none for a bundled data set.
        needs: the names of data sets that it is made from.
        models: built-in models that suit it, the one to start with first.
        papers: which of the papers use it.
        note: what else a reader must know before using it.
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
    models: tuple[str, ...] = ()
    papers: tuple[str, ...] = ()
    note: str = ""


def cards_folder() -> Path:
    """The folder with the cards, in the wheel or the checkout. Raises CardError if there is none."""
    package = Path(__file__).resolve().parents[1]
    for folder in (package / "_datasets", package.parent / "datasets"):
        if folder.is_dir():
            return folder
    raise CardError(f"There are no data set cards in or beside {package}; reinstall the package.")


def list_cards(folder: Path | None = None) -> list[Card]:
    """All cards, sorted by name. Raises CardError for a malformed card."""
    paths = (folder or cards_folder()).glob("*.toml")
    return [read_card(path) for path in sorted(paths, key=lambda path: path.stem)]


def card(name: str, folder: Path | None = None) -> Card:
    """The card called ``name``. Raises ArgumentError if there is none."""
    folder = folder or cards_folder()
    validation.choice("dataset", name, sorted(path.stem for path in folder.glob("*.toml")))
    return read_card(folder / f"{name}.toml")


def read_card(path: Path) -> Card:
    """The card in the TOML file ``path``. Raises CardError if it is malformed."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
        files = tuple(_file(entry) for entry in table.pop("files", []))
        table |= {key: tuple(table.get(key, [])) for key in ("needs", "models", "papers")}
        made = Card(files=files, **table)
    except (TypeError, AttributeError, ValueError, RecursionError) as error:
        raise CardError(f"{path} is not a data set card: {' '.join(str(error).split())[:_SHOWN]}") from error
    _require_types(path, made)
    if made.name != path.stem:
        raise CardError(
            f"{path}: the card's name is {validation.shown(made.name)}; it must equal the file's name"
        )
    for file in files:
        _require_sound(path, file)
    return made


def _file(entry: Mapping[str, Any]) -> File:
    fields = dict(entry)
    members = tuple(Member(**member) for member in fields.pop("members", []))
    return File(urls=tuple(fields.pop("urls", [])), members=members, **fields)


def _require_types(path: Path, made: Card) -> None:
    """Raises CardError unless texts are texts and sizes are whole numbers of 0 or more."""
    texts: list[object] = [made.name, made.title, made.homepage, made.licence, made.citation]
    texts += [made.inputs, made.target, made.note, *made.needs, *made.models, *made.papers]
    members = [member for file in made.files for member in file.members]
    parts: list[File | Member] = [*made.files, *members]
    for file in made.files:
        texts += [
            file.name,
            *file.urls,
            *(hash for hash in (file.content_sha256, file.md5) if hash is not None),
        ]
    texts += [hash for part in parts if (hash := part.sha256) is not None]
    texts += [member.name for member in members]
    sizes: list[object] = [size for part in parts if (size := part.size) is not None]
    if not all(isinstance(text, str) for text in texts):
        raise CardError(f"{path} is not a data set card: names, addresses and hashes must be texts")
    if not all(isinstance(size, int) and size >= 0 for size in sizes):
        raise CardError(f"{path} is not a data set card: sizes must be whole numbers of 0 or more")


def _require_sound(path: Path, file: File) -> None:
    for name in (file.name, *(member.name for member in file.members)):
        # A card must not write outside its data set's folder.
        if Path(name).name != name or name.startswith("."):
            raise CardError(f"{path}: {validation.shown(name)} is not a plain file name")
    for digest in (file.sha256, file.content_sha256, *(member.sha256 for member in file.members)):
        if digest is not None and not is_sha256(digest):
            raise CardError(f"{path}: {validation.shown(digest)} is not a SHA-256 (64 lower-case hex digits)")
    if file.md5 is not None and not _is_hex(file.md5, 32):
        raise CardError(f"{path}: {validation.shown(file.md5)} is not an MD5 (32 lower-case hex digits)")
    for url in file.urls:
        if not url.startswith(("https://", "http://")):
            raise CardError(f"{path}: {validation.shown(url)} is not an http or https address")


def is_sha256(digest: str) -> bool:
    """Whether ``digest`` is written as 64 lower-case hexadecimal digits."""
    return _is_hex(digest, 64)


def _is_hex(digest: str, digits: int) -> bool:
    return len(digest) == digits and set(digest) <= set("0123456789abcdef")
