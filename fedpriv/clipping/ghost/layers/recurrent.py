"""Recurrent layers and cells, step by step: linear maps of the input and of the previous state.

torch's fused kernels give no gradient at the gates, and vmap supports few of them. Here the recurrence takes
one matrix product for all inputs and one per step for the states, which is as fast as the fused kernels on a
CPU. The backward pass only computes the gradient at the projected inputs. Its outer products with the inputs
are the gradient of weight_ih, those with the previous states that of weight_hh, and its sums over time those
of the biases.

>>> layer = nn.LSTM(3, 4, num_layers=2, bidirectional=True, batch_first=True)
>>> x = torch.ones(5, 6, 3)
>>> output, (h, c) = run(layer, x)
>>> torch.allclose(output, layer(x)[0], atol=1e-6), h.shape
(True, torch.Size([4, 5, 4]))
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedpriv._internal import validation
from fedpriv.clipping.dropout import built_in
from fedpriv.clipping.ghost.factored import Factored, Rows
from fedpriv.clipping.ghost.layers.base import Call, LayerRule, UnsupportedLayerError, hook_point
from fedpriv.clipping.ghost.outer_product import outer

Recurrent = nn.RNN | nn.LSTM | nn.GRU
Cell = nn.RNNCell | nn.LSTMCell | nn.GRUCell
State = tuple[Tensor, ...]  # (h,) or an LSTM's (h, c), each (n, width)
Step = Callable[[Tensor, Tensor, State], tuple[State, Tensor | None]]


@dataclass(frozen=True)
class Sweep:
    """One direction of one level, run over n sequences of L steps.

    Attributes:
        suffix: the suffix of its parameters' names, as in weight_ih_l0_reverse.
        inputs: (n, L, in), in the order of processing.
        projected: weight_ih inputs + bias_ih, (n, L, gates), a hook point.
        before: the hidden state before each step, (n, L, hidden).
        reset: a GRU's reset gate, (n, L, hidden), else None.
    """

    suffix: str
    inputs: Tensor
    projected: Tensor
    before: Tensor
    reset: Tensor | None


def run(
    layer: Recurrent, input: Tensor, hx: Any = None, sweeps: list[Sweep] | None = None
) -> tuple[Tensor, Any]:
    """The output of ``layer(input, hx)``, computed step by step.

    Args:
        input: (n, L, in), or (L, n, in) where the layer is not ``batch_first``.
        hx: the initial state in the layer's format; None for zero.
        sweeps: a list to which a record of each direction of each level is appended.

    Raises:
        ArgumentError: the input is a packed sequence, or has no axis for the examples.
    """
    if not isinstance(input, Tensor) or input.dim() != 3:
        raise validation.fail(
            "input of a recurrent layer",
            type(input).__name__,
            "be a tensor with axes for the examples, the steps and their entries",
            "pad short sequences and take each one's state at its own last step",
        )
    x = input if layer.batch_first else input.transpose(0, 1)
    pairs = isinstance(layer, nn.LSTM)
    states = _start(layer, x) if hx is None else hx if pairs else (hx,)
    ways = ("", "_reverse") if layer.bidirectional else ("",)
    ends: list[State] = []
    dropout = built_in(layer)
    for level in range(layer.num_layers):
        outputs = []
        if level and dropout is not None:
            x = dropout(x)
        for way in ways:
            own = tuple(state[len(ends)] for state in states)
            output, end = _sweep(layer, f"_l{level}{way}", x, own, sweeps)
            outputs.append(output)
            ends.append(end)
        x = torch.cat(outputs, 2)
    last = tuple(torch.stack(parts) for parts in zip(*ends, strict=True))
    return (x if layer.batch_first else x.transpose(0, 1)), (last if pairs else last[0])


def run_cell(cell: Cell, input: Tensor, hx: Any = None, sweeps: list[Sweep] | None = None) -> Any:
    """The output of ``cell(input, hx)`` for inputs (n, in); the other arguments are those of :func:`run`.

    Raises ArgumentError where the input has no axis for the examples.
    """
    if input.dim() != 2:
        raise validation.fail(
            "input axes of a recurrent cell",
            input.dim(),
            "be 2, one for the examples and one for the entries",
        )
    pairs = isinstance(cell, nn.LSTMCell)
    if hx is None:
        hidden = input.new_zeros(len(input), cell.hidden_size)
        hx = (hidden, hidden) if pairs else hidden
    _, last = _sweep(cell, "", input[:, None], hx if pairs else (hx,), sweeps)
    return last if pairs else last[0]


def _start(layer: Recurrent, x: Tensor) -> State:
    """The zero state for all levels and directions."""
    count = layer.num_layers * (2 if layer.bidirectional else 1)
    hidden = x.new_zeros(count, len(x), layer.proj_size or layer.hidden_size)
    return (hidden, x.new_zeros(count, len(x), layer.hidden_size)) if layer.mode == "LSTM" else (hidden,)


def _sweep(
    layer: Recurrent | Cell, suffix: str, x: Tensor, state: State, sweeps: list[Sweep] | None
) -> tuple[Tensor, State]:
    """The hidden states (n, L, width) of one direction of one level, in x's order, and the last state."""

    def own(name: str, there: bool = True) -> Any:
        return getattr(layer, name + suffix) if there else None

    backward = suffix.endswith("_reverse")
    x = x.flip(1) if backward else x
    projected = F.linear(x, own("weight_ih"), own("bias_ih", layer.bias))
    projected = projected if sweeps is None else hook_point(projected)
    weight, bias = own("weight_hh"), own("bias_hh", layer.bias)
    shrink = own("weight_hr", getattr(layer, "proj_size", 0) > 0)
    step, first = _step_of(layer), state[0]
    hidden: list[Tensor] = []
    resets: list[Tensor] = []
    for gates in projected.unbind(1):
        state, reset = step(gates, F.linear(state[0], weight, bias), state)
        if shrink is not None:
            state = (F.linear(state[0], shrink), *state[1:])
        hidden.append(state[0])
        resets += [] if reset is None else [reset]
    output = torch.stack(hidden, 1)
    if sweeps is not None:
        before = torch.stack([first, *hidden[:-1]], 1).detach()
        opened = torch.stack(resets, 1).detach() if resets else None
        sweeps.append(Sweep(suffix, x.detach(), projected, before, opened))
    return (output.flip(1) if backward else output), state


def _step_lstm(gates: Tensor, pushed: Tensor, state: State) -> tuple[State, None]:
    taken, kept, new, shown = (gates + pushed).chunk(4, 1)
    cell = torch.sigmoid(kept) * state[1] + torch.sigmoid(taken) * torch.tanh(new)
    return (torch.sigmoid(shown) * torch.tanh(cell), cell), None


def _step_gru(gates: Tensor, pushed: Tensor, state: State) -> tuple[State, Tensor]:
    (reset, kept, new), (reset_, kept_, new_) = gates.chunk(3, 1), pushed.chunk(3, 1)
    reset, kept = torch.sigmoid(reset + reset_), torch.sigmoid(kept + kept_)
    new = torch.tanh(new + reset * new_)
    return (new + kept * (state[0] - new),), reset


def _step_tanh(gates: Tensor, pushed: Tensor, state: State) -> tuple[State, None]:
    return (torch.tanh(gates + pushed),), None


def _step_relu(gates: Tensor, pushed: Tensor, state: State) -> tuple[State, None]:
    return (torch.relu(gates + pushed),), None


def _step_of(layer: Recurrent | Cell) -> Step:
    if isinstance(layer, nn.RNN | nn.RNNCell):
        return _step_tanh if layer.nonlinearity == "tanh" else _step_relu
    return _step_lstm if isinstance(layer, nn.LSTM | nn.LSTMCell) else _step_gru


def record_run(layer: Recurrent, input: Tensor, hx: Any = None) -> Call:
    """Record one run, with hook points at the projected inputs of all sweeps."""
    if layer.proj_size:
        raise UnsupportedLayerError
    sweeps: list[Sweep] = []
    output = run(layer, input, hx, sweeps)
    return Call(output, tuple(sweep.projected for sweep in sweeps), sweeps)


def record_cell(cell: Cell, input: Tensor, hx: Any = None) -> Call:
    """Record one step, with a hook point at the projected input."""
    sweeps: list[Sweep] = []
    output = run_cell(cell, input, hx, sweeps)
    return Call(output, (sweeps[0].projected,), sweeps)


def measure_run(
    layer: Recurrent | Cell, sweeps: list[Sweep], deltas: tuple[Tensor, ...]
) -> dict[str, Factored]:
    """The gradients of all sweeps' parameters, from the gradients at their projected inputs (n, L, gates)."""
    forms: dict[str, Factored] = {}
    for sweep, delta in zip(sweeps, deltas, strict=True):
        pushed = delta  # the gradient at the projected states
        if sweep.reset is not None:
            kept = 2 * layer.hidden_size
            pushed = torch.cat([delta[..., :kept], delta[..., kept:] * sweep.reset], 2)
        for name, sent, seen in (("ih", delta, sweep.inputs), ("hh", pushed, sweep.before)):
            shape = (sent.shape[2], seen.shape[2])
            forms[f"weight_{name}{sweep.suffix}"] = outer(sent, seen, shape)
            if layer.bias:
                forms[f"bias_{name}{sweep.suffix}"] = Rows(sent.sum(1))
    return forms


class SteppedRNN(nn.RNN):
    """An nn.RNN that runs step by step."""

    forward = run  # type: ignore[assignment]


class SteppedLSTM(nn.LSTM):
    """An nn.LSTM that runs step by step."""

    forward = run  # type: ignore[assignment]


class SteppedGRU(nn.GRU):
    """An nn.GRU that runs step by step."""

    forward = run  # type: ignore[assignment]


class SteppedRNNCell(nn.RNNCell):
    """An nn.RNNCell with operations that vmap supports."""

    forward = run_cell


class SteppedLSTMCell(nn.LSTMCell):
    """An nn.LSTMCell with operations that vmap supports."""

    forward = run_cell


class SteppedGRUCell(nn.GRUCell):
    """An nn.GRUCell with operations that vmap supports."""

    forward = run_cell


_LAYERS = {nn.RNN: SteppedRNN, nn.LSTM: SteppedLSTM, nn.GRU: SteppedGRU}
_CELLS = {nn.RNNCell: SteppedRNNCell, nn.LSTMCell: SteppedLSTMCell, nn.GRUCell: SteppedGRUCell}
BATCHED: dict[type[nn.Module], type[nn.Module]] = {**_LAYERS, **_CELLS}

RULES: dict[type[nn.Module], LayerRule] = {
    **{kind: LayerRule(measure_run, record_run) for kind in (*_LAYERS, *_LAYERS.values())},
    **{kind: LayerRule(measure_run, record_cell) for kind in (*_CELLS, *_CELLS.values())},
}
