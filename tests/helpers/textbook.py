"""The optimizers' rules without noise and clipping, as in textbooks and papers.

A rule takes the gradient as a function of theta and of the number of the release, so that gradients of one
release are of one sample; the start; and how many releases there are. Nothing of fedpriv is used.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

Tensor = torch.Tensor
Gradient = Callable[[Tensor, int], Tensor]
Rule = Callable[[Gradient, Tensor, int], Tensor]


def by_torch(make: Callable[[list[Tensor]], torch.optim.Optimizer]) -> Rule:
    """A rule of torch.optim."""

    def rule(gradient: Gradient, start: Tensor, releases: int) -> Tensor:
        theta = start.clone().requires_grad_()
        optimizer = make([theta])
        for t in range(releases):
            theta.grad = gradient(theta.detach(), t)
            optimizer.step()
        return theta.detach()

    return rule


def sgd(rate: float, momentum: float = 0.0) -> Rule:
    return by_torch(lambda p: torch.optim.SGD(p, lr=rate, momentum=momentum))


def adam(rate: float) -> Rule:
    return by_torch(lambda p: torch.optim.Adam(p, lr=rate))


def rmsprop(rate: float, decay: float = 0.99) -> Rule:
    return by_torch(lambda p: torch.optim.RMSprop(p, lr=rate, alpha=decay))


def adagrad(rate: float) -> Rule:
    return by_torch(lambda p: torch.optim.Adagrad(p, lr=rate, eps=1e-8))


def yogi(rate: float, beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-3) -> Rule:
    """Zaheer et al. 2018, algorithm 2."""

    def rule(gradient: Gradient, start: Tensor, releases: int) -> Tensor:
        theta, m, v = start, torch.zeros_like(start), torch.zeros_like(start)
        for t in range(releases):
            g = gradient(theta, t)
            m = beta1 * m + (1 - beta1) * g
            v = v - (1 - beta2) * torch.sign(v - g**2) * g**2
            theta = theta - rate * m / (v.sqrt() + epsilon)
        return theta

    return rule


def decaying(rate: float, a: float, c: float) -> Rule:
    """Wu et al. 2021, section 5.1: theta -= rate / sqrt(a + c (t + 1)) g."""

    def rule(gradient: Gradient, start: Tensor, releases: int) -> Tensor:
        theta = start
        for t in range(releases):
            theta = theta - rate / (a + c * (t + 1)) ** 0.5 * gradient(theta, t)
        return theta

    return rule


def by_norm(rate: float, b_0: float, nu: float = 1e-5) -> Rule:
    """Ward et al. 2019 with Wu's floor: b^2 += max(norm(g)^2, nu), theta -= rate / b g."""

    def rule(gradient: Gradient, start: Tensor, releases: int) -> Tensor:
        theta, square = start, b_0**2
        for t in range(releases):
            g = gradient(theta, t)
            square += max(float((g * g).sum()), nu)
            theta = theta - rate / square**0.5 * g
        return theta

    return rule


def storm(rate: float | Callable[[Tensor], float], gamma: float) -> Rule:
    """Cutkosky & Orabona 2019: v_t = g_t + (1 - gamma) (v_{t-1} - g_{t-1} on the same sample)."""

    def rule(gradient: Gradient, start: Tensor, releases: int) -> Tensor:
        theta = old = v = start
        for t in range(releases):
            g = gradient(theta, t)
            v = g + (1 - gamma) * (v - gradient(old, t)) if t else g
            old, theta = theta, theta - (rate(v) if callable(rate) else rate) * v
        return theta

    return rule


def spider(rate: float, phase: int) -> Rule:
    """Fang et al. 2018, Wang et al. 2019: a gradient at each phase's begin, and differences on one sample."""

    def rule(gradient: Gradient, start: Tensor, releases: int) -> Tensor:
        theta = old = v = start
        for t in range(releases):
            g = gradient(theta, t)
            v = v + g - gradient(old, t) if t % phase else g
            old, theta = theta, theta - rate * v
        return theta

    return rule


def normalised(zeta: float, smoothness: float = 1.0, n_0: float = 1.0) -> Callable[[Tensor], float]:
    """Wang et al. 2023, algorithm 1, line 5."""
    return lambda v: min(zeta / (n_0 * smoothness * float(v.norm())), 1 / (2 * n_0 * smoothness))


def extrapolating(
    rate: float,
    tolerance: float,
    discard: bool = False,
    decay_after: int | None = None,
    epoch: int = 1,
    bounds: tuple[float, float] = (0.9, 1.1),
    authors: bool = False,
) -> Rule:
    """Koskela & Honkela 2020, algorithms 1 and 2, and (5.1) with a rate of 0.1; or as their code has it."""

    def rule(gradient: Gradient, start: Tensor, releases: int) -> Tensor:
        theta, eta = start, rate
        adaptive = releases if decay_after is None else min(releases, decay_after)
        for t in range(0, adaptive - 1, 2):
            g = gradient(theta, t)
            full, half = theta - eta * g, theta - eta / 2 * g
            halves = half - eta / 2 * gradient(half, t + 1)
            error = float(((full - halves).abs() / full.abs().clamp(min=1)).norm())
            if not (discard and error > tolerance):
                theta = halves if authors else full
            ratio = math.sqrt(tolerance / error) if authors else tolerance / error
            eta *= min(max(ratio, bounds[0]), bounds[1])
        for t in range(adaptive, releases):
            theta = theta - eta / (1 + 0.1 * ((t - adaptive) // epoch + 1)) * gradient(theta, t)
        return theta

    return rule


def moved(kind: str, beta: float, v: Tensor, h: Tensor) -> Tensor:
    """Li et al. 2023, line 5 and appendix D, with Yogi's own sign."""
    if kind == "adagrad":
        return v + h
    if kind == "yogi":
        return v + (1 - beta) * torch.sign(h - v) * h
    return beta * v + (1 - beta) * h


def delayed(
    kind: str,
    rates: tuple[float, float],
    steps: tuple[int, int],
    epsilon: float,
    betas: tuple[float, float] = (0.9, 0.9),
    variance: float = 0.0,
) -> Rule:
    """Li et al. 2023, algorithm 1 without privacy; ``variance`` is what each (G/s1)^2 is corrected by."""
    s_1, s_2 = steps
    beta, beta1 = betas

    def rule(gradient: Gradient, start: Tensor, releases: int) -> Tensor:
        theta, zero = start, torch.zeros_like(start)
        total, v, m, moves = zero, zero, zero, 0
        for t in range(releases):
            g, place = gradient(theta, t), t % (s_1 + s_2)
            total = g if place == 0 else total + g
            if place < s_1:
                theta = theta - rates[0] * g
            if place == s_1 - 1:
                h = (total / s_1) ** 2 - variance
                v = moved(kind, beta, v, h.clamp(min=0) if kind == "yogi" else h).clamp(min=0)
                moves += 1
            if place >= s_1:
                v_hat = v / (1 - beta**moves) if kind == "adam" else v
                step = g / (v_hat.sqrt() + epsilon)
                if kind == "adam":
                    m = beta1 * (m if place > s_1 else zero) + (1 - beta1) * step
                    step = m / (1 - beta1 ** (place - s_1 + 1))
                theta = theta - rates[1] * step
        return theta

    return rule


def mostly_adaptive(rates: tuple[float, float], delay: int, epsilon: float, beta: float = 0.9) -> Rule:
    """Li et al. 2023, algorithm 2 (RMSProp): every ``delay`` steps a plain one, at which v moves."""

    def rule(gradient: Gradient, start: Tensor, releases: int) -> Tensor:
        theta, total, v = start, torch.zeros_like(start), torch.zeros_like(start)
        for t in range(releases):
            g = gradient(theta, t)
            total = total + g
            if t % delay == 0:
                v = moved("rmsprop", beta, v, (total / delay) ** 2)
                total = torch.zeros_like(start)
                theta = theta - rates[0] * g
            else:
                theta = theta - rates[1] * g / (v.sqrt() + epsilon)
        return theta

    return rule


def preconditioned(rate: float, public: Gradient, epsilon: float, beta: float = 0.9) -> Rule:
    """Li et al. 2022, AdaDPS: divided by the root of an average of squared public gradients."""

    def rule(gradient: Gradient, start: Tensor, releases: int) -> Tensor:
        theta, v = start, torch.zeros_like(start)
        for t in range(releases):
            v = beta * v + (1 - beta) * public(theta, t) ** 2
            theta = theta - rate * gradient(theta, t) / (v.sqrt() + epsilon)
        return theta

    return rule


def mixed(rate: float, public: Gradient, horizon: int) -> Rule:
    """Amid et al. 2022, PDA-DPMD: private and public gradients by cos(pi t / (2 K))."""

    def rule(gradient: Gradient, start: Tensor, releases: int) -> Tensor:
        theta = start
        for t in range(releases):
            share = math.cos(math.pi * min(t, horizon) / (2 * horizon))
            theta = theta - rate * (share * gradient(theta, t) + (1 - share) * public(theta, t))
        return theta

    return rule
