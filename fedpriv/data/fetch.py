"""Fetch a data set's files: mirrors in order, resumable, and nothing kept that the card does not vouch for.

A download goes to ``NAME.part``; only when its SHA-256 is right (or its MD5, where a publisher gives no
better) is it renamed to ``NAME``. An interrupted one is resumed with an HTTP range, from whichever mirror
answers; what turns out wrong is deleted. Of an archive whose own hash is not known, the members' are held.

>>> fetch("infinite-digits").summary
'infinite-digits is bundled; there is nothing to fetch'
"""

from __future__ import annotations

import gzip
import hashlib
import http.client
import os
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO

from fedpriv._internal import validation
from fedpriv.data.archives import FetchError, WrongHashError, is_member, sha256_of, unpack
from fedpriv.data.catalogue import Card, File, card, is_sha256
from fedpriv.data.files import data_folder

_CHUNK = 1 << 18
Progress = Callable[[str, int, int | None], None]


class UnverifiableError(FetchError):
    """No hash is known for the file, so nothing was fetched."""


@dataclass(frozen=True)
class Fetched:
    """What a fetch did.

    Attributes:
        summary: one line for people.
        written: files that were downloaded or unpacked.
        present: files that were there and right.
        left_out: optional files that were not asked for.
    """

    summary: str
    written: tuple[Path, ...] = ()
    present: tuple[Path, ...] = ()
    left_out: tuple[str, ...] = ()


@dataclass
class _Job:
    """One fetch of one file."""

    file: File
    target: Path
    timeout: float
    progress: Progress | None
    reasons: list[str] = field(default_factory=list)
    wrong: bool = False

    @property
    def part(self) -> Path:
        """Where the download grows."""
        return self.target.with_name(self.target.name + ".part")


def fetch(
    name: str,
    folder: str | Path | None = None,
    *,
    optional: bool = False,
    sha256: Mapping[str, str] | None = None,
    timeout: float = 30.0,
    progress: Progress | None = None,
    cards: Path | None = None,
) -> Fetched:
    """Bring the files of data set ``name`` into ``<folder>/<name>/``, and of those it is made from.

    Args:
        name: of a card.
        folder: the data folder; None: $FEDPRIV_DATA, else ``~/.cache/fedpriv``.
        optional: whether to fetch optional files too.
        sha256: hex digests by file name, that take the place of the card's.
        timeout: seconds that a mirror may stay silent.
        progress: called with (file name, bytes so far, bytes in all or None).
        cards: the folder with the cards; None: the project's.

    Raises:
        ArgumentError: no such data set, or a malformed SHA-256.
        UnverifiableError: no hash is known; nothing is fetched.
        WrongHashError: what came was wrong; nothing wrong is kept.
        FetchError: no mirror could be reached; what had come is kept for the next attempt.
    """
    entry = card(name, cards)
    given = dict(sha256 or {})
    for file_name, digest in given.items():
        if not is_sha256(digest):
            raise validation.fail(f"sha256 of {file_name}", digest, "be 64 lower-case hex digits")
    wanted = _wanted(entry, optional, given, cards)
    _require_hashes([file for _, file in wanted])
    written: list[Path] = []
    present: list[Path] = []
    for owner, file in wanted:
        job = _Job(file, data_folder(folder) / owner / file.name, timeout, progress)
        done, new = _ensure(job)
        (written if new else present).extend(done)
    left_out = () if optional else tuple(f.name for f in entry.files if f.optional)
    return Fetched(_summary(entry, written, present, left_out), tuple(written), tuple(present), left_out)


def _wanted(
    entry: Card, optional: bool, given: Mapping[str, str], cards: Path | None
) -> list[tuple[str, File]]:
    """The (data set, file) pairs to have, those of needed data sets first."""
    wanted = [pair for need in entry.needs for pair in _wanted(card(need, cards), False, given, cards)]
    for file in entry.files:
        if optional or not file.optional:
            if file.name in given:
                # The user's word alone: a card's content hash could let something else pass.
                file = replace(file, sha256=given[file.name], content_sha256=None, md5=None)
            wanted.append((entry.name, file))
    return wanted


def _require_hashes(files: list[File]) -> None:
    for file in files:
        if not file.verifiable:
            raise UnverifiableError(
                f"{file.name}: its card has no hash, so a download could not be verified; "
                f"give the one you trust with --sha256 {file.name}=DIGEST"
            )


def _summary(entry: Card, written: list[Path], present: list[Path], left_out: tuple[str, ...]) -> str:
    if not written and not present and not left_out:
        return f"{entry.name} is bundled; there is nothing to fetch"
    text = f"{entry.name}: {len(written)} files fetched, {len(present)} already there"
    weak = [file.name for file in entry.files if file.weak and file.name not in left_out]
    if weak:
        text += f"; held to their MD5 alone, which shows accidents but no forgery: {', '.join(weak)}"
    return text + (f"; optional and left out: {', '.join(left_out)}" if left_out else "")


def _ensure(job: _Job) -> tuple[list[Path], bool]:
    """The files that ``job`` is for, and whether they had to be made."""
    outputs = [job.target.with_name(member.name) for member in job.file.members]
    if outputs and all(map(is_member, outputs, job.file.members)):
        return outputs, False
    name = job.target.name
    other = name.removesuffix(".gz") if name.endswith(".gz") else f"{name}.gz"
    for path in (job.target, job.target.with_name(other)):
        if path.is_file() and matches(path, job.file):
            return (unpack(path, job.file), True) if outputs else ([path], False)
    job.target.parent.mkdir(parents=True, exist_ok=True)
    _download(job)
    return (unpack(job.target, job.file) if outputs else [job.target]), True


def matches(path: Path, file: File) -> bool:
    """Whether the file at ``path`` has the SHA-256 of ``file``, as it is or once gunzipped.

    Where the card has none, its MD5 counts; where it has no hash at all, the members' will.
    """
    if file.sha256 is None and file.content_sha256 is None:
        with path.open("rb") as stream:
            return file.md5 in (None, hashlib.file_digest(stream, "md5").hexdigest())
    if sha256_of(path) in (file.sha256, file.content_sha256):
        return True
    if file.content_sha256 is None:
        return False
    try:
        with gzip.open(path, "rb") as unzipped:
            return _digest(unzipped) == file.content_sha256
    except (OSError, EOFError, zlib.error):
        return False


def _digest(stream: IO[bytes] | gzip.GzipFile) -> str:
    digest = hashlib.sha256()
    while block := stream.read(_CHUNK):
        digest.update(block)
    return digest.hexdigest()


def _download(job: _Job) -> None:
    """Try the mirrors until the file is there and right."""
    for url in job.file.urls:
        # A part that an earlier run, or another mirror, left may be wrong: then once more from zero.
        for attempt in range(2):
            resumed = job.part.exists() and job.part.stat().st_size > 0
            try:
                _receive(job, url)
            except (OSError, http.client.HTTPException, FetchError) as error:
                job.reasons.append(f"{url}: {error}")
                break
            if matches(job.part, job.file):
                os.replace(job.part, job.target)
                return
            job.part.unlink()
            if not (resumed and attempt == 0):
                job.wrong = True
                job.reasons.append(f"{url}: wrong hash, deleted")
                break
    reasons = "; ".join(job.reasons) or "the card names no mirror"
    raise (WrongHashError if job.wrong else FetchError)(f"{job.file.name} not fetched: {reasons}")


def _receive(job: _Job, url: str) -> None:
    """Append to the part what it lacks, or write it anew where the server cannot resume."""
    if not url.startswith(("https://", "http://")):
        raise FetchError("not an http or https address")
    have = job.part.stat().st_size if job.part.exists() else 0
    # Without this, some servers compress on the way and the bytes are not the file's.
    headers = {"User-Agent": "fedpriv", "Accept-Encoding": "identity"}
    if have:
        headers["Range"] = f"bytes={have}-"
    try:
        answer = urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=job.timeout)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 416 and have:
            return  # nothing after what we have: the hash decides whether it is whole
        raise
    with answer:
        resumes = answer.status == 206 and (answer.headers["Content-Range"] or "").startswith(
            f"bytes {have}-"
        )
        if answer.status == 206 and not resumes:
            raise FetchError("the server sent another range than the one asked for")
        length = answer.headers["Content-Length"]
        start = have if resumes else 0
        total = start + int(length) if length and length.isdigit() else None
        _copy(job, answer, start, total)


def _copy(job: _Job, answer: IO[bytes], start: int, total: int | None) -> None:
    # A mirror that sends without end must not fill the disk; re-compressed files are a little larger.
    limit = None if job.file.size is None else 2 * job.file.size + (1 << 20)
    done = start
    with job.part.open("ab" if start else "wb") as part:
        while block := answer.read(_CHUNK):
            part.write(block)
            done += len(block)
            if job.progress:
                job.progress(job.file.name, done, total)
            if limit is not None and done > limit:
                break
    if limit is not None and done > limit:
        job.part.unlink()
        raise FetchError(f"sends far more than the {job.file.size} bytes of the card")
    if total is not None and done < total:
        raise FetchError(f"the connection ended after {done} of {total} bytes; run again to resume")
