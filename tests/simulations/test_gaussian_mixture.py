"""simulations/adadp/gaussian_mixture.py: the ELBO and its gradient, the clip, the draws and the epsilon."""

from __future__ import annotations

import math
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from helpers.scripts import script
from scipy import integrate, stats

from fedpriv.accounting import Event, epsilon
from fedpriv.federated.engine import Shard, SumRequest
from fedpriv.optimizers.adadp import adadp
from fedpriv.parameters import vector_of
from fedpriv.tasks.task import Task

Array = np.ndarray


@pytest.fixture(scope="module")
def mixture() -> ModuleType:
    return script("adadp/gaussian_mixture.py")


def weights_of(sticks: Array) -> list[float]:
    """The weights by breaking off one stick after another."""
    left, weights = 1.0, []
    for k, logit in enumerate(sticks):
        part = 1 / (1 + math.exp(-(logit - math.log(len(sticks) - k))))
        weights.append(left * part)
        left *= 1 - part
    return [*weights, left]


def log_density(x: Array, theta: Array, components: int) -> float:
    """ln p(x | theta) from the densities of scipy."""
    size = len(x)
    means, rest = theta[: components * size].reshape(components, size), theta[components * size :]
    variances, weights = np.exp(rest[:components]), weights_of(rest[components:])
    densities = [
        weight * stats.multivariate_normal(mean, variance * np.eye(size)).pdf(x)
        for weight, mean, variance in zip(weights, means, variances, strict=True)
    ]
    return math.log(sum(densities))


def kl_by_integration(location: Array, scale: Array, components: int, features: int) -> float:
    """KL(q || p) as a sum of one-dimensional integrals over the priors of scipy."""
    total = 0.0
    for i, (m, s) in enumerate(zip(location, scale, strict=True)):
        t = np.linspace(m - 10 * s, m + 10 * s, 1001)
        if i < components * features:
            prior = stats.norm.logpdf(t)
        elif i < components * (features + 1):  # t = log sigma, so that dsigma = sigma dt
            prior = stats.invgamma.logpdf(np.exp(t), 1) + t
        else:
            left = components - 1 - (i - components * (features + 1))
            part = 1 / (1 + np.exp(-(t - math.log(left))))
            prior = stats.beta.logpdf(part, 1, left) + np.log(part * (1 - part))
        q = stats.norm.logpdf(t, m, s)
        total += float(integrate.trapezoid(np.exp(q) * (q - prior), t))
    return total


def reference_loss(point: Array, x: Array, draws: Array, components: int, examples: int) -> float:
    """-L_i of one example, without torch; ``point`` is (location, raw scale)."""
    location, raw = np.split(point, 2)
    scale = np.log1p(np.exp(raw))
    expected = np.mean([log_density(x, location + scale * draw, components) for draw in draws])
    return kl_by_integration(location, scale, components, len(x)) / examples - float(expected)


def at_random(mixture: ModuleType, components: int = 2, draws: int = 2) -> tuple[Any, Task, torch.Tensor]:
    """A posterior, its task and a float64 point with draws."""
    generator = np.random.default_rng(3)
    model = mixture.Posterior(1, components=components, draws=draws)
    task = Task(model, loss=mixture.negative_elbo)
    parts = {
        "location": 0.7 * generator.standard_normal(model.location.shape),
        "raw_scale": generator.normal(-1.0, 0.5, model.raw_scale.shape),
        "draws": generator.standard_normal(model.draws.shape),
    }
    return model, task, task.layout.join({name: torch.from_numpy(part) for name, part in parts.items()})


def test_the_gradient_is_that_of_finite_differences_of_the_papers_objective(mixture: ModuleType) -> None:
    """Densities and priors are scipy's, and the KL term is integrated."""
    _, task, params = at_random(mixture)
    x = torch.tensor([[0.3, -1.2], [2.0, 1.0]], dtype=torch.float64)
    parts = task.layout.split(params)
    point = torch.cat([parts["location"], parts["raw_scale"]]).numpy()
    draws = parts["draws"].numpy()

    losses = task.losses(params, x, torch.zeros(2))
    gradients = task.gradients(params, x, torch.zeros(2))
    for i in range(2):

        def loss(at: Array, i: int = i) -> float:
            return reference_loss(at, x[i].numpy(), draws, 2, mixture.EXAMPLES)

        assert float(losses[i]) == pytest.approx(loss(point), rel=1e-9)
        steps = 1e-5 * np.eye(len(point))
        numeric = [(loss(point + step) - loss(point - step)) / 2e-5 for step in steps]
        np.testing.assert_allclose(gradients[i, : len(point)], numeric, rtol=1e-5, atol=1e-7)
        assert not gradients[i, len(point) :].any()  # the draws are no parameters of q


def test_with_the_weight_of_all_examples_the_prior_counts_once(mixture: ModuleType) -> None:
    """The sum of the N losses has KL once: with one example, N times, it is N times the KL share."""
    _, task, params = at_random(mixture)
    parts = task.layout.split(params)
    scale = F.softplus(parts["raw_scale"])
    theta = parts["location"] + scale * parts["draws"]
    x = torch.randn(mixture.EXAMPLES, 2, generator=torch.Generator().manual_seed(0)).double()
    total = (
        task.losses(params, x, torch.zeros(len(x))).sum() + mixture.log_likelihoods(theta, x, 2).mean(1).sum()
    )
    wanted = kl_by_integration(parts["location"].numpy(), scale.numpy(), 2, 2)
    assert float(total) == pytest.approx(wanted, rel=1e-8)


def test_one_components_gradient_is_zero_at_its_conjugate_posterior(
    mixture: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """K = 1: with w = <1 / sigma>, the best q(mu) has mean w sum(x) / (1 + n w), variance 1 / (1 + n w)."""
    examples, draws = 100, 1000
    monkeypatch.setattr(mixture, "EXAMPLES", examples)
    task = Task(mixture.Posterior(0, components=1, draws=draws), loss=mixture.negative_elbo)
    generator = np.random.default_rng(5)
    x = generator.normal([1.0, -0.5], 1.2, (examples, 2))
    m, s = 0.3, 0.2  # of log sigma
    w = math.exp(-m + s * s / 2)
    std = 1 / math.sqrt(1 + examples * w)
    best = w * x.sum(0) / (1 + examples * w)
    half = generator.standard_normal((draws // 2, 3))
    half /= np.sqrt((half**2).mean(0))  # with their negatives, mean 0 and variance 1

    def gradient(location: Array, std: float) -> Array:
        raw = np.log(np.expm1([std, std, s]))
        draws = np.concatenate([half, -half])
        parts = {"location": np.array([*location, m]), "raw_scale": raw, "draws": draws}
        point = task.layout.join({name: torch.from_numpy(part) for name, part in parts.items()})
        rows = task.gradients(point, torch.from_numpy(x), torch.zeros(examples))
        return np.asarray(rows.sum(0))

    at_best, beside = gradient(best, std), gradient(best + std, 1.3 * std)
    for mean_or_std in (slice(0, 2), slice(3, 5)):
        assert np.abs(at_best[mean_or_std]).max() < 0.05 * np.abs(beside[mean_or_std]).min()


def test_the_data_are_the_papers(mixture: ModuleType) -> None:
    """1,000 and 100 examples of five Gaussians with covariances I; around 0 their variance is 1 + 4/5."""
    data, many = mixture.source(), mixture.many()
    x, _, _ = mixture.View(data, mixture.OneExample(1000)).batch(np.arange(1000))
    assert (x.shape, data.test("cpu")[0].shape, len(many)) == ((1000, 2), (100, 2), 10_000)
    covariance = torch.cov(many.T)
    assert many.mean(0).abs().max() < 0.05
    torch.testing.assert_close(covariance, 1.8 * torch.eye(2), rtol=0, atol=0.1)


def test_each_examples_gradient_is_clipped_as_a_whole(mixture: ModuleType) -> None:
    model, task = mixture.task_of(1)
    cell = mixture.cell("t", mixture.PAPERS, 1.2, 0.1, 100)
    mechanism = mixture.mechanism_of(cell, task, 1)
    query = mechanism.optimizer.query(mechanism.optimizer.init(vector_of(model, task.layout)))
    ids = np.arange(0, 1000, 20)
    worker = mixture.worker(task, mixture.Key.from_seed(1))
    reply = worker.gather(SumRequest(query, 0, (Shard(0, ids, len(ids)),)))
    x, y, _ = mixture.View(mixture.source(), mixture.OneExample(1000)).batch(ids)
    rows = task.gradients(query.points[0], x, y).double()
    norms = rows.norm(dim=1, keepdim=True)
    assert (norms > 0.1).all()
    assert (norms > 1).any()
    assert (norms < 1).any()
    torch.testing.assert_close(reply.sums[0], (rows / norms.clamp(min=1)).sum(0), rtol=0, atol=1e-5)
    assert query.noise_stds(1.2) == (1.2,)


def test_the_draws_are_new_in_each_release_and_take_no_noise(mixture: ModuleType) -> None:
    model, task = mixture.task_of(1)
    start = vector_of(model, task.layout)
    optimizer = mixture.FreshDraws(adadp(0.1, 1.0, 0.1), task.layout, seed=4)
    state = optimizer.init(start)
    points = []
    for _ in range(2):  # the two releases of a step
        points.append(optimizer.query(state).points[0])
        state = optimizer.update(state, (torch.ones(task.dimension),))
    first, second = (task.layout.split(point)["draws"] for point in points)
    assert torch.equal(first, optimizer.drawn(0))
    assert not torch.isclose(first, second).any()
    assert 0.8 < float(torch.cat([first, second]).std()) < 1.2
    after = task.layout.split(state.params)
    assert not after["draws"].any()
    torch.testing.assert_close(after["location"], model.location.detach() - 0.1)


@pytest.mark.slow
def test_runs_in_lock_step_are_those_of_fedpriv_and_epsilon_is_that_of_their_releases(
    mixture: ModuleType,
) -> None:
    jobs = [
        (mixture.cell("t", mixture.PAPERS, 1.2, 0.1, 100), 1),
        (mixture.cell("t", "DP-SGD", 1.2, 0.3, 100), 2),
    ]
    for job, together in zip(jobs, mixture.run_together(jobs), strict=True):
        alone = mixture.run(*job)
        assert together["log-likelihood"] == pytest.approx(alone["log-likelihood"], abs=1e-3)
        np.testing.assert_allclose(together["curve"], alone["curve"], atol=2e-3)
        assert together["epsilon"] == alone["epsilon"]
        assert together["releases"] == 100
    releases = [Event(1.2, "poisson", "add-remove", 20 / 1000, count=100)]
    for method in ("pld", "rdp"):
        wanted = epsilon(releases, 1e-6, method).epsilon
        assert together["epsilon"][method]["epsilon"] == pytest.approx(wanted, rel=1e-6)


@pytest.mark.slow
def test_adadps_step_sizes_meet_whatever_the_first_was(mixture: ModuleType) -> None:
    """Figure 6 in small: from 10^-3 and from 1."""
    low, high = mixture.run_together(
        [(mixture.cell("t", mixture.PAPERS, 1.2, start, 400), 1) for start in (1e-3, 1.0)]
    )
    assert 0.4 < low["curve"][-1][2] / high["curve"][-1][2] < 2.5
    model, task = mixture.task_of(1)
    start = mixture.expected_log_likelihood(task, vector_of(model, task.layout), mixture.many())
    assert min(run["log-likelihood of 10,000"] for run in (low, high)) > start + 0.02
