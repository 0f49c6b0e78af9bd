"""Cards: complete, well-formed, and right about the real files."""

import hashlib
import tomllib
from pathlib import Path

import pytest

import fedpriv
from fedpriv._internal.validation import ArgumentError
from fedpriv.data import load, names
from fedpriv.data.archives import is_member
from fedpriv.data.catalogue import CardError, card, cards_folder, list_cards, read_card
from fedpriv.data.datasets.cifar import CIFAR_10, CIFAR_100
from fedpriv.data.datasets.imdb import ARCHIVE
from fedpriv.data.datasets.infinite_mnist import FIELDS_FILE, TANGENTS_FILE
from fedpriv.data.datasets.mnist import IDX_FILES
from fedpriv.data.datasets.names import LANGUAGES
from fedpriv.data.datasets.stack_overflow import FILES
from fedpriv.data.fetch import matches
from fedpriv.data.files import content, find
from fedpriv.models import MODELS, build

# Nobody publishes a hash of these files, and nobody here has them: a fetch asks for a hash.
UNKNOWN = {
    ("ijcnn1", "ijcnn1.bz2"),
    ("ijcnn1", "ijcnn1.t.bz2"),
    ("pneumonia", "ChestXRay2017.zip"),
    ("stackoverflow-tags", "stackoverflow.sqlite.lzma"),
}
GOOD = (
    'name = "toy"\ntitle = "t"\nhomepage = "h"\nlicence = "l"\ncitation = "c"\ninputs = "i"\ntarget = "t"\n'
)


def test_every_data_set_has_a_card():
    cards = list_cards()
    assert tuple(c.name for c in cards) == names()
    for c in cards:
        assert c.title
        assert c.licence
        assert c.citation
        assert c.homepage
        assert c.inputs
        assert c.target
        assert set(c.needs) <= set(names())
        assert c.models
        assert set(c.models) <= set(MODELS)
        for file in c.files:
            assert file.urls
            assert file.verifiable or (c.name, file.name) in UNKNOWN


def test_cards_name_the_files_that_the_loaders_read():
    for name in ("mnist", "fashion-mnist"):
        assert [f.name for f in card(name).files] == [f"{n}.gz" for n in IDX_FILES]
    for name, files in (("cifar-10", CIFAR_10), ("cifar-100", CIFAR_100)):
        (archive,) = card(name).files
        assert tuple(member.name for member in archive.members) == files
    lists = card("stackoverflow-tags").files[:2]
    assert tuple(file.members[0].name for file in lists) == FILES[1:]
    assert [file.name for file in card("ijcnn1").files] == ["ijcnn1.bz2", "ijcnn1.t.bz2"]
    assert card("imdb").files[0].name == ARCHIVE
    assert card("imdb-bag").needs == ("imdb",)
    (archive,) = card("infinite-mnist").files
    assert archive.optional
    assert card("infinite-mnist").needs == ("mnist",)
    assert {m.name: m.size for m in archive.members} == {
        FIELDS_FILE: 1522 * 784 * 4,
        TANGENTS_FILE: 60_000 * 2 * 784 * 4,
    }


def test_wheel_carries_the_cards():
    root = Path(fedpriv.__file__).parents[1]
    settings = tomllib.loads((root / "pyproject.toml").read_text())
    included = settings["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    assert included["datasets"] == "fedpriv/_datasets"
    assert cards_folder() == root / "datasets"


def test_cards_are_found_in_a_wheel(tmp_path, monkeypatch):
    package = tmp_path / "fedpriv"
    (package / "_datasets").mkdir(parents=True)
    (package / "data").mkdir()
    monkeypatch.setattr("fedpriv.data.catalogue.__file__", str(package / "data" / "catalogue.py"))
    assert cards_folder() == package / "_datasets"
    (package / "_datasets").rmdir()
    with pytest.raises(CardError, match="reinstall the package"):
        cards_folder()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name = ", "not a data set card"),
        ('name = "toy"', "not a data set card"),
        (GOOD + 'colour = "red"', "colour"),
        (GOOD.replace("toy", "joy"), "must equal the file's name"),
        (GOOD + '[[files]]\nname = "../../etc/passwd"', "plain file name"),
        (GOOD + '[[files]]\nname = ".bashrc"', "plain file name"),
        (GOOD + '[[files]]\nname = "a"\nsha256 = "ABC"', "is not a SHA-256"),
        (GOOD + '[[files]]\nname = "a"\nmd5 = "abc"', "is not an MD5"),
        (GOOD + '[[files]]\nname = "a"\nmembers = [{ name = "b", size = 1, sha256 = "X" }]', "not a SHA-256"),
        (GOOD + '[[files]]\nname = "a"\nurls = ["file:///etc/passwd"]', "http or https"),
        (GOOD + '[[files]]\nname = "a"\nmembers = [{ name = "/x", size = 1 }]', "plain file name"),
    ],
)
def test_malformed_cards(tmp_path, text, message):
    (tmp_path / "toy.toml").write_text(text)
    with pytest.raises(CardError, match=message):
        read_card(tmp_path / "toy.toml")


def test_unknown_name():
    with pytest.raises(ArgumentError, match=r"one of .*digits, .*mnist"):
        card("nosuch")


@pytest.mark.parametrize(
    "name", ["digits", *(pytest.param(n, marks=pytest.mark.data) for n in ("a9a", "movielens-100k", "names"))]
)
def test_the_models_of_a_card_take_its_examples(name, request):
    if name != "digits":
        request.getfixturevalue("data")  # skips without files
    source = load(name)
    for model in card(name).models:
        assert build(model, source.shape, source.classes, source.tokens)


@pytest.mark.data
@pytest.mark.parametrize("name", ["mnist", "a9a", "movielens-100k"])
def test_real_files_are_what_the_cards_say(data, name):
    for file in card(name).files:
        path = find(data / name, file.name.removesuffix(".gz"))
        assert matches(path, file)
        assert hashlib.sha256(content(path)).hexdigest() == file.content_sha256


@pytest.mark.data
def test_real_names_are_what_the_card_says(data):
    (archive,) = card("names").files
    assert archive.sha256 is None
    assert archive.verifiable
    assert [member.name for member in archive.members] == [f"{language}.txt" for language in LANGUAGES]
    assert all(is_member(data / "names" / member.name, member) for member in archive.members)
