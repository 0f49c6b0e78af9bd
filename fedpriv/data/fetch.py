"""Fetches a data set's files from mirrors, with resumption, and keeps only verified files.

A download is written to ``NAME.part`` and renamed to ``NAME`` only if its SHA-256 is right (or its MD5, if
the publisher gives no SHA-256). An interrupted download is resumed with an HTTP range request at any mirror.
A file with a wrong hash is deleted. If an archive's own hash is not known, the hashes of its members are
verified.

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
    """No hash of the file is known, so nothing was fetched."""


@dataclass(frozen=True)
class Fetched:
    """The result of a fetch.

    Attributes:
        summary: one line for the user.
        written: files that were downloaded or extracted.
        present: files that already existed and are right.
        left_out: optional files that were not requested.
    """

    summary: str
    written: tuple[Path, ...] = ()
    present: tuple[Path, ...] = ()
    left_out: tuple[str, ...] = ()


@dataclass
class _Job:
    """The download of one file."""

    file: File
    target: Path
    timeout: float
    progress: Progress | None
    reasons: list[str] = field(default_factory=list)
    wrong: bool = False

    @property
    def part(self) -> Path:
        """The path of the incomplete download."""
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
    """Fetches the files of the data set ``name``, and of those it is made from, into ``<folder>/<name>/``.

    Args:
        name: the name of a card.
        folder: the data folder; None: $FEDPRIV_DATA, otherwise ``~/.cache/fedpriv``.
        optional: whether to fetch optional files too.
        sha256: hex digests by file name, which replace those of the card.
        timeout: the number of seconds to wait for a silent mirror.
        progress: called with (file name, bytes so far, total bytes or None).
        cards: the folder with the cards; None: the project's.

    Raises:
        ArgumentError: unknown data set or malformed SHA-256.
        UnverifiableError: no hash is known; nothing is fetched.
        WrongHashError: a download had a wrong hash and was deleted.
        FetchError: no mirror could be reached; the incomplete download is kept for the next attempt.
    """
    entry = card(name, cards)
    digests = dict(sha256 or {})
    for file_name, digest in digests.items():
        if not is_sha256(digest):
            raise validation.fail(f"sha256 of {file_name}", digest, "be 64 lower-case hex digits")
    wanted = _wanted(entry, optional, digests, cards)
    for file_name in digests:
        validation.choice("a file of sha256", file_name, [file.name for _, file in wanted])
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
    entry: Card, optional: bool, digests: Mapping[str, str], cards: Path | None
) -> list[tuple[str, File]]:
    """The (data set, file) pairs to fetch. Files of needed data sets come first."""
    wanted = [pair for need in entry.needs for pair in _wanted(card(need, cards), False, digests, cards)]
    for file in entry.files:
        if optional or not file.optional:
            if file.name in digests:
                # The user's hash replaces all others: the card's content hash could accept another file.
                file = replace(file, sha256=digests[file.name], content_sha256=None, md5=None)
            wanted.append((entry.name, file))
    return wanted


def _require_hashes(files: list[File]) -> None:
    for file in files:
        if not file.verifiable:
            raise UnverifiableError(
                f"{file.name}: the data set card has no hash, so a download could not be verified; give a "
                f"hash that you trust with --sha256 {file.name}=DIGEST"
            )


def _summary(entry: Card, written: list[Path], present: list[Path], left_out: tuple[str, ...]) -> str:
    if not written and not present and not left_out:
        return f"{entry.name} is bundled; there is nothing to fetch"
    text = f"{entry.name}: {len(written)} files fetched, {len(present)} already there"
    weak = [file.name for file in entry.files if file.weak and file.name not in left_out]
    if weak:
        text += f"; verified by MD5 only, which detects damage but not forgery: {', '.join(weak)}"
    return text + (f"; optional files not fetched: {', '.join(left_out)}" if left_out else "")


def _ensure(job: _Job) -> tuple[list[Path], bool]:
    """(the files of ``job``, whether they were downloaded or extracted now)."""
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
    """Whether the file at ``path`` has the SHA-256 of ``file``, unchanged or gunzipped.

    If the card has no SHA-256, its MD5 is compared. If it has no hash at all, the file is accepted here, and
    the hashes of its members are verified when they are extracted.
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
    """Tries the mirrors in order until the file is complete and has the right hash."""
    for url in job.file.urls:
        # A partial file of an earlier run or another mirror may be wrong; then the download starts again.
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
                job.reasons.append(f"{url}: the file had a wrong hash and was deleted")
                break
    reasons = "; ".join(job.reasons) or "the data set card names no mirror"
    raise (WrongHashError if job.wrong else FetchError)(f"{job.file.name} was not fetched: {reasons}")


def _receive(job: _Job, url: str) -> None:
    """Completes the partial file, or downloads the whole file if the server cannot resume."""
    if not url.startswith(("https://", "http://")):
        raise FetchError("this is not an http or https address")
    have = job.part.stat().st_size if job.part.exists() else 0
    # Without this header some servers compress the transfer, and the bytes differ from the file's.
    headers = {"User-Agent": "fedpriv", "Accept-Encoding": "identity"}
    if have:
        headers["Range"] = f"bytes={have}-"
    try:
        answer = urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=job.timeout)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 416 and have:
            return  # the server has no more bytes; the hash decides whether the file is complete
        raise
    with answer:
        resumes = answer.status == 206 and (answer.headers["Content-Range"] or "").startswith(
            f"bytes {have}-"
        )
        if answer.status == 206 and not resumes:
            raise FetchError("the server sent another byte range than the requested one")
        length = answer.headers["Content-Length"]
        start = have if resumes else 0
        total = start + int(length) if length and length.isdigit() else None
        _copy(job, answer, start, total)


def _copy(job: _Job, answer: IO[bytes], start: int, total: int | None) -> None:
    # A mirror must not fill the disk with endless data. Re-compressed files may be somewhat larger.
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
        raise FetchError(f"the server sends far more than the {job.file.size} bytes that the card names")
    if total is not None and done < total:
        raise FetchError(f"the connection ended after {done} of {total} bytes; run again to resume")
