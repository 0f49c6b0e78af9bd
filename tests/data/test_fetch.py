"""Fetching, against a local server that can resume, cannot, lies, breaks off or is dead."""

import gzip
import hashlib
import io
import socket
import tarfile
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from fedpriv._internal.validation import ArgumentError
from fedpriv.data.fetch import FetchError, UnverifiableError, WrongHashError, fetch

CONTENT = np.random.default_rng(0).bytes(700_001)  # more than two chunks
GOOD = hashlib.sha256(CONTENT).hexdigest()


class Server:
    """Serves ``files`` by path; ``modes`` says how each path misbehaves; ``seen`` logs requests."""

    def __init__(self):
        self.files, self.modes, self.seen = {}, {}, []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def do_GET(self):
                outer.answer(self)

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.http.serve_forever, args=(0.01,), daemon=True)
        self.thread.start()

    def url(self, path):
        return f"http://127.0.0.1:{self.http.server_address[1]}/{path}"

    def answer(self, request):
        path, wanted = request.path[1:], request.headers.get("Range")
        mode = self.modes.get(path, "")
        self.seen.append((path, wanted))
        data = self.files.get(path)
        if data is None:
            return request.send_error(404)
        start = 0
        if wanted and mode != "no-range":
            start = int(wanted.removeprefix("bytes=").removesuffix("-"))
            if start >= len(data):
                return request.send_error(416)
            request.send_response(206)
            shown = 0 if mode == "other-range" else start
            request.send_header("Content-Range", f"bytes {shown}-{len(data) - 1}/{len(data)}")
        else:
            request.send_response(200)
        request.send_header("Content-Length", str(len(data) - start))
        request.end_headers()
        body = data[start:]
        if mode == "breaks-off":
            body = body[: len(body) // 2]
            request.close_connection = True
        request.wfile.write(body)

    def close(self):
        self.http.shutdown()
        self.http.server_close()
        self.thread.join()


@pytest.fixture
def server():
    it = Server()
    it.files["a.bin"] = CONTENT
    yield it
    it.close()


@pytest.fixture
def make(tmp_path):
    """Write a card and fetch it."""
    cards, folder = tmp_path / "cards", tmp_path / "data"
    cards.mkdir()

    def run(urls, lines=f'sha256 = "{GOOD}"', name="a.bin", **options):
        listed = ", ".join(f'"{url}"' for url in urls)
        (cards / "toy.toml").write_text(
            'name = "toy"\ntitle = "t"\nhomepage = "h"\nlicence = "l"\ncitation = "c"\ninputs = "i"\n'
            'target = "t"\n'
            f'[[files]]\nname = "{name}"\nurls = [{listed}]\n{lines}\n'
        )
        return fetch("toy", folder, cards=cards, **{"timeout": 5, **options})

    run.folder, run.target, run.part = folder / "toy", folder / "toy/a.bin", folder / "toy/a.bin.part"
    return run


def names(folder):
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def dead_url():
    """An address where nothing listens."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{s.getsockname()[1]}/a.bin"


def test_a_complete_download_is_not_repeated(server, make):
    steps = []
    done = make([server.url("a.bin")], progress=lambda *step: steps.append(step))
    assert make.target.read_bytes() == CONTENT
    assert names(make.folder) == ["a.bin"]
    assert done.written == (make.target,)
    assert "1 files fetched" in done.summary
    assert steps[-1] == ("a.bin", len(CONTENT), len(CONTENT))
    assert len(steps) > 1
    again = make([server.url("a.bin")])
    assert again.present == (make.target,)
    assert again.written == ()
    assert len(server.seen) == 1


def test_a_hash_of_no_file_is_refused(server, make):
    with pytest.raises(ArgumentError, match=r"a file of sha256 is 'b\.bin'"):
        make([server.url("a.bin")], sha256={"b.bin": "0" * 64})
    assert not make.target.exists()


@pytest.mark.parametrize("have", [1, 300_000, len(CONTENT) - 1, len(CONTENT)])
def test_resumes(server, make, have):
    make.folder.mkdir(parents=True)
    make.part.write_bytes(CONTENT[:have])
    make([server.url("a.bin")])
    assert make.target.read_bytes() == CONTENT
    assert names(make.folder) == ["a.bin"]
    assert server.seen == [("a.bin", f"bytes={have}-")]


def test_breaks_off_then_resumes_on_the_next_run(server, make):
    server.modes["a.bin"] = "breaks-off"
    with pytest.raises(FetchError, match=r"a\.bin was not fetched: .*(ended after|IncompleteRead)"):
        make([server.url("a.bin")])
    have = make.part.stat().st_size
    assert 0 < have < len(CONTENT)
    assert not make.target.exists()
    server.modes.clear()
    make([server.url("a.bin")])
    assert server.seen[-1] == ("a.bin", f"bytes={have}-")
    assert make.target.read_bytes() == CONTENT


def test_resumes_from_another_mirror(server, make):
    server.files["b.bin"], server.modes["a.bin"] = CONTENT, "breaks-off"
    make([server.url("a.bin"), server.url("b.bin")])
    assert server.seen[1][0] == "b.bin"
    assert server.seen[1][1].startswith("bytes=")
    assert make.target.read_bytes() == CONTENT


@pytest.mark.parametrize("mode", ["no-range", "other-range"])
def test_server_without_ranges(server, make, mode):
    """Ignoring the range starts anew; answering another range is an error, not a spliced file."""
    make.folder.mkdir(parents=True)
    make.part.write_bytes(CONTENT[:1000])
    server.modes["a.bin"] = mode
    if mode == "no-range":
        make([server.url("a.bin")])
        assert make.target.read_bytes() == CONTENT
    else:
        with pytest.raises(FetchError, match="another byte range"):
            make([server.url("a.bin")])
        assert not make.target.exists()


@pytest.mark.parametrize("have", [100, len(CONTENT), len(CONTENT) + 50])
def test_a_wrong_partial_file_is_fetched_again(server, make, have):
    make.folder.mkdir(parents=True)
    make.part.write_bytes(b"x" * have)
    make([server.url("a.bin")])
    assert make.target.read_bytes() == CONTENT
    assert server.seen[-1] == ("a.bin", None)


def test_wrong_hash_is_refused_and_nothing_kept(server, make):
    server.files["a.bin"] = CONTENT[:-1] + b"!"
    with pytest.raises(WrongHashError, match="wrong hash and was deleted"):
        make([server.url("a.bin")])
    assert names(make.folder) == []


def test_wrong_hash_leaves_a_right_file_or_an_old_one_alone(server, make):
    make.folder.mkdir(parents=True)
    make.target.write_bytes(b"the user's own")
    server.files["a.bin"] = b"evil"
    with pytest.raises(WrongHashError):
        make([server.url("a.bin")])
    assert make.target.read_bytes() == b"the user's own"
    server.files["a.bin"] = CONTENT
    make([server.url("a.bin")])
    assert make.target.read_bytes() == CONTENT


def test_mirrors_in_order(server, make):
    server.files["evil"] = b"evil"
    make([dead_url(), server.url("missing"), server.url("evil"), server.url("a.bin")])
    assert make.target.read_bytes() == CONTENT
    assert [path for path, _ in server.seen] == ["missing", "evil", "a.bin"]


def test_all_mirrors_dead(server, make):
    with pytest.raises(FetchError, match=r"refused.*404") as caught:
        make([dead_url(), server.url("missing")])
    assert not isinstance(caught.value, WrongHashError)
    with pytest.raises(FetchError, match="names no mirror"):
        make([])


def test_a_silent_mirror_times_out(make):
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/a.bin"
        with pytest.raises(FetchError, match="timed out"):
            make([url], timeout=0.2)


def test_a_mirror_without_end_does_not_fill_the_disk(server, make):
    server.files["a.bin"] = bytes(4 << 20)
    with pytest.raises(FetchError, match="far more than the 10 bytes"):
        make([server.url("a.bin")], f'sha256 = "{GOOD}"\nsize = 10')
    assert names(make.folder) == []


def test_unknown_hash_is_refused_before_the_network(server, make):
    with pytest.raises(UnverifiableError, match=r"--sha256 a\.bin=DIGEST"):
        make([server.url("a.bin")], "")
    assert server.seen == []
    make([server.url("a.bin")], "", sha256={"a.bin": GOOD})
    assert make.target.read_bytes() == CONTENT
    with pytest.raises(ArgumentError, match="64 lower-case hex"):
        make([server.url("a.bin")], "", sha256={"a.bin": "abc"})


def test_the_users_hash_takes_the_cards_place(server, make):
    lines = f'sha256 = "{GOOD}"\ncontent_sha256 = "{GOOD}"'
    with pytest.raises(WrongHashError):
        make([server.url("a.bin")], lines, sha256={"a.bin": "0" * 64})


def test_content_hash_accepts_another_compression(server, make):
    server.files["a.gz"] = gzip.compress(CONTENT, 1, mtime=5)
    lines = f'sha256 = "{"0" * 64}"\ncontent_sha256 = "{GOOD}"'
    make([server.url("a.gz")], lines, name="a.gz")
    assert gzip.decompress((make.folder / "a.gz").read_bytes()) == CONTENT
    (make.folder / "a.gz").rename(make.folder / "b.gz")
    (make.folder / "a").write_bytes(CONTENT)  # files that the user unpacked are accepted
    assert make([server.url("a.gz")], lines, name="a.gz").present == (make.folder / "a",)
    server.files["a.gz"] = gzip.compress(b"evil")
    (make.folder / "a").unlink()
    with pytest.raises(WrongHashError):
        make([server.url("a.gz")], lines, name="a.gz")


def archive(**members):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        for name, data in members.items():
            entry = tarfile.TarInfo(f"../deep/{name}.bin")
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
        link = tarfile.TarInfo("inner.bin")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
    return out.getvalue()


def test_optional_archive_is_unpacked_beside_itself(server, make):
    data = archive(inner=b"12345", other=b"1")
    server.files["a.tgz"] = data
    lines = (
        f'optional = true\nsha256 = "{hashlib.sha256(data).hexdigest()}"\n'
        'members = [{ name = "inner.bin", size = 5 }]'
    )
    skipped = make([server.url("a.tgz")], lines, name="a.tgz")
    assert skipped.left_out == ("a.tgz",)
    assert server.seen == []
    done = make([server.url("a.tgz")], lines, name="a.tgz", optional=True)
    assert done.written == (make.folder / "inner.bin",)
    assert names(make.folder) == ["a.tgz", "inner.bin"]
    assert (make.folder / "inner.bin").read_bytes() == b"12345"
    (make.folder / "a.tgz").unlink()
    assert make([server.url("a.tgz")], lines, name="a.tgz", optional=True).written == ()
    lines = lines.replace("size = 5", "size = 6")
    with pytest.raises(FetchError, match=r"no member inner\.bin of the size"):
        make([server.url("a.tgz")], lines, name="a.tgz", optional=True)


def zipped(**members):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.mkdir("deep")
        for name, data in members.items():
            archive.writestr(f"deep/../{name}.bin", data)
    return out.getvalue()


def member(data, size=None):
    digest = hashlib.sha256(data).hexdigest()
    return f'members = [{{ name = "inner.bin", size = {size or len(data)}, sha256 = "{digest}" }}]'


@pytest.mark.parametrize("pack", [zipped, archive])
def test_an_archive_without_a_hash_is_verified_by_its_members(server, make, pack):
    server.files["a.zip"] = pack(inner=b"12345", other=b"1")
    done = make([server.url("a.zip")], member(b"12345"), name="a.zip")
    assert done.written == (make.folder / "inner.bin",)
    assert names(make.folder) == ["a.zip", "inner.bin"]
    assert make([server.url("a.zip")], member(b"12345"), name="a.zip").present == done.written
    (make.folder / "inner.bin").write_bytes(
        b"1234!"
    )  # it has the right size, but is extracted again from the archive
    assert make([server.url("a.zip")], member(b"12345"), name="a.zip").written == done.written
    assert (make.folder / "inner.bin").read_bytes() == b"12345"
    assert len(server.seen) == 1


# The ids name no bytes: archives hold the time at which they were made, and each test process makes its own.
@pytest.mark.parametrize(
    "data",
    [zipped(inner=b"1234!"), archive(inner=b"1234!"), b"no archive", b""],
    ids=["zip", "tar", "other", "empty"],
)
def test_a_wrong_archive_without_a_hash_is_not_kept(server, make, data):
    server.files["a.zip"] = data
    with pytest.raises(FetchError, match="deleted"):
        make([server.url("a.zip")], member(b"12345"), name="a.zip")
    assert names(make.folder) == []


def test_a_member_may_have_no_size(server, make):
    data = zipped(inner=b"12345")
    server.files["a.zip"] = data
    lines = f'sha256 = "{hashlib.sha256(data).hexdigest()}"\nmembers = [{{ name = "inner.bin" }}]'
    make([server.url("a.zip")], lines, name="a.zip")
    assert (make.folder / "inner.bin").read_bytes() == b"12345"
    assert len(make([server.url("a.zip")], lines, name="a.zip").present) == 1


def test_an_md5_is_used_without_a_sha256_and_reported_as_weak(server, make):
    right = hashlib.md5(CONTENT).hexdigest()
    done = make([server.url("a.bin")], f'md5 = "{right}"')
    assert make.target.read_bytes() == CONTENT
    assert "MD5 only, which detects damage but not forgery: a.bin" in done.summary
    make.target.unlink()
    with pytest.raises(WrongHashError):
        make([server.url("a.bin")], f'md5 = "{"0" * 32}"')
    with pytest.raises(WrongHashError):  # SHA-256 is preferred to MD5
        make([server.url("a.bin")], f'md5 = "{right}"\nsha256 = "{"0" * 64}"')
    assert names(make.folder) == []


def test_a_compressed_copy_is_accepted(server, make):
    lines = f'sha256 = "{GOOD}"\ncontent_sha256 = "{GOOD}"'
    make.folder.mkdir(parents=True)
    (make.folder / "a.bin.gz").write_bytes(gzip.compress(CONTENT, 1))
    assert make([server.url("a.bin")], lines).present == (make.folder / "a.bin.gz",)
    assert server.seen == []


def test_needed_sets_are_fetched_too(server, make, tmp_path):
    make([server.url("a.bin")])
    make.target.unlink()
    head = 'title = "t"\nhomepage = "h"\nlicence = "l"\ncitation = "c"\ninputs = "i"\ntarget = "t"\n'
    (tmp_path / "cards" / "top.toml").write_text(f'name = "top"\nneeds = ["toy"]\n{head}')
    fetch("top", tmp_path / "data", cards=tmp_path / "cards")
    assert make.target.read_bytes() == CONTENT


def test_bundled_and_unknown(tmp_path):
    assert "bundled" in fetch("digits", tmp_path).summary
    with pytest.raises(ArgumentError, match="dataset is 'nosuch'"):
        fetch("nosuch", tmp_path)


@pytest.mark.data
@pytest.mark.parametrize(("name", "files"), [("mnist", 4), ("a9a", 2), ("movielens-100k", 1), ("names", 18)])
def test_existing_real_data_is_recognised(data, name, files):
    assert len(fetch(name, data).present) == files
