"""MovieLens-100k: its text, its split, its users as clients."""

import numpy as np
import pytest

from fedpriv.data import DataError, load, loaders, population
from fedpriv.data.datasets.movielens import parse
from fedpriv.simulation.run import simulate


def test_a_rating_is_a_value_for_two_ids(tmp_path):
    (tmp_path / "movielens-100k").mkdir()
    lines = [
        f"{u}\t{i}\t{r}\t881250949"
        for u, i, r in [(943, 1, 5), (1, 1682, 1), (7, 8, 3), (7, 9, 4), (2, 2, 2)]
    ]
    (tmp_path / "movielens-100k" / "u.data").write_text("\n".join(lines) + "\n")
    source = load("movielens-100k", tmp_path)
    assert (source.tokens, source.target, source.classes, source.shape) == ((943, 1682), "value", 1, (2,))
    x, y = source.batch(np.arange(4))
    seen = {(*ids, rating) for ids, rating in zip(map(tuple, x.tolist()), y.tolist(), strict=True)}
    test = source.test()
    seen.add((*test.x[0].tolist(), float(test.y[0])))
    assert seen == {(942, 0, 5.0), (0, 1681, 1.0), (6, 7, 3.0), (6, 8, 4.0), (1, 1, 2.0)}
    assert source.owners.tolist() == x[:, 0].tolist()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1 2 3 4\n",
        "1\t2\t3\n",
        "1\t2\t6\t4\n",
        "0\t2\t3\t4\n",
        "944\t2\t3\t4\n",
        "1\t1683\t3\t4\n",
        "a\tb",
    ],
)
def test_other_content_is_refused_without_quoting_it(text):
    with pytest.raises(DataError) as caught:
        parse(text.encode(), "toy")
    assert str(caught.value) in {
        "toy is not MovieLens-100k's u.data; fetch it again",
        "toy: users must be 1..943 and items 1..1682; fetch it again",
    }


@pytest.mark.data
def test_movielens_matches_the_published_data(data):
    source = load("movielens-100k", data)
    test, (x, y) = source.test(), source.batch(np.arange(source.size))
    assert (len(y), len(test.y)) == (80_000, 20_000)
    everything = np.concatenate([x.numpy(), test.x.numpy()])
    assert len(np.unique(everything, axis=0)) == 100_000
    assert [len(np.unique(column)) for column in everything.T] == [943, 1682]
    mean = (float(y.sum()) + float(test.y.sum())) / 100_000
    assert mean == pytest.approx(3.52986, abs=1e-9)
    # Standard errors of the two means are 0.004 and 0.008; the public split is neither easy nor hard.
    assert float(y.mean()) == pytest.approx(float(test.y.mean()), abs=0.05)
    people = population("natural", source, clients=943)
    index, owner = people.examples(np.arange(943))
    assert sorted(index.tolist()) == list(range(80_000))
    assert x[index, 0].tolist() == owner.tolist()


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.data
def test_a_short_private_run_learns_as_the_readme_says(data):
    if not loaders.at_hand("movielens-100k", data):
        pytest.skip("movielens-100k is not at hand")
    settings = {"dataset": "movielens-100k", "data-folder": str(data), "clients": 943, "partition": "natural"}
    settings |= {"sampling-rate": 0.1, "engine": "in-process", "seed": 1}
    biased = simulate({**settings, "model": "factors-biases", "learning-rate": 0.5, "rounds": 20})
    assert biased.metrics[-1]["mse"] < 1.35  # predicting the mean gives 1.27
    plain = simulate({**settings, "model": "factors", "rounds": 5})
    assert plain.metrics[-1]["mse"] > 13  # as predicting 0
