"""What reaches the weights of convolutions, attention, recurrent layers and models of others."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence

from gradwire.torch.weights import Calibration
from tests.torch.weights.grams import Captured, assert_same, draw, gram_of, seeded, stacked

# Convolutions.


def patches_of(layer, x):
    """Patches by plain loops, of each group."""
    dims = len(layer.kernel_size)
    if x.dim() == dims + 1:
        x = x[None]
    if layer.padding_mode != "zeros":
        x = F.pad(x, layer._reversed_padding_repeated_twice, mode=layer.padding_mode)
    elif layer.padding == "same":
        pads = [d * (k - 1) for d, k in zip(layer.dilation, layer.kernel_size, strict=True)]
        x = F.pad(x, [n for p in reversed(pads) for n in (p // 2, p - p // 2)])
    elif layer.padding != "valid":
        x = F.pad(x, [n for p in reversed(layer.padding) for n in (p, p)])
    sizes = [
        (n - d * (k - 1) - 1) // s + 1
        for n, k, d, s in zip(
            x.shape[2:], layer.kernel_size, layer.dilation, layer.stride, strict=True
        )
    ]
    found = [[] for _ in range(layer.groups)]
    for place in np.ndindex(*sizes):
        cut = tuple(
            slice(at * s, at * s + d * (k - 1) + 1, d)
            for at, k, d, s in zip(
                place, layer.kernel_size, layer.dilation, layer.stride, strict=True
            )
        )
        for group, channels in enumerate(x.chunk(layer.groups, 1)):
            found[group].append(channels[(slice(None), slice(None), *cut)].flatten(1))
    return [torch.cat(each) for each in found]


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.Conv1d(4, 6, 3), (2, 4, 9)),
        (nn.Conv1d(4, 6, 3, stride=2, padding=2, dilation=2, groups=2), (2, 4, 9)),
        (nn.Conv1d(4, 6, 4, padding="same"), (4, 9)),
        (nn.Conv2d(3, 5, 3, padding=1), (2, 3, 7, 5)),
        (nn.Conv2d(4, 8, (3, 2), (2, 1), (1, 0), (1, 2), groups=4), (2, 4, 8, 7)),
        (nn.Conv2d(3, 5, (2, 3), padding="same", dilation=(1, 2)), (2, 3, 7, 5)),
        (nn.Conv2d(3, 5, 3, padding="valid"), (3, 7, 5)),
        (nn.Conv2d(2, 5, 3, padding=1, padding_mode="reflect"), (2, 2, 6, 5)),
        (nn.Conv2d(2, 5, 3, padding=1, padding_mode="circular"), (2, 2, 6, 5)),
        (nn.Conv2d(3, 5, 1), (1, 3, 80, 90)),
        (nn.Conv3d(2, 4, 2, (1, 2, 1), (0, 1, 1), groups=2), (2, 2, 4, 5, 3)),
    ],
    ids=str,
)
def test_convolutions(layer, shape):
    model, x = nn.Sequential(layer), draw(*shape)
    with Calibration(model) as seen:
        model(x)
    every = [gram_of(each) for each in patches_of(layer, x)]
    assert_same(seen["0.weight"], every[0] if layer.groups == 1 else stacked(*every))


# Attention.


@pytest.mark.parametrize("evaluated", [True, False])
@pytest.mark.parametrize("sides", ["self", "cross", "three"])
def test_attention(sides, evaluated):
    model = seeded(nn.MultiheadAttention(8, 2, batch_first=True)).train(not evaluated)
    q = draw(2, 3, 8)
    k = q if sides == "self" else draw(2, 5, 8, seed=1)
    v = draw(2, 5, 8, seed=2) if sides == "three" else k
    with Calibration(model) as seen, torch.no_grad():
        y, _ = model(q, k, v)
    expected, _ = model(q, k, v)
    assert torch.equal(y, expected)
    if sides == "self":
        assert_same(seen["in_proj_weight"], gram_of(q))
    else:
        every = [gram_of(each) for each in (q, k, v)]
        assert_same(seen["in_proj_weight"], stacked(*every))
    # The input of the last layer, by one that does nothing.
    with torch.no_grad():
        model.out_proj.weight.copy_(torch.eye(8))
        model.out_proj.bias.zero_()
        inner, _ = model(q, k, v)
    assert_same(seen["out_proj.weight"], gram_of(inner))


def test_attention_of_other_widths():
    model = seeded(nn.MultiheadAttention(8, 2, kdim=6, vdim=4))
    q, k, v = draw(3, 2, 8), draw(5, 2, 6), draw(5, 2, 4)
    with Calibration(model) as seen:
        model(q, k, v)
    for name, x in (("q", q), ("k", k), ("v", v)):
        assert_same(seen[f"{name}_proj_weight"], gram_of(x))
    assert not seen.unseen


def test_an_encoder_layer_in_eval_mode():
    """Alone it runs as one operator, that no hook sees into."""
    model = seeded(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)).eval()
    calls, x = Captured(model).calls, draw(2, 5, 8)
    with torch.no_grad():
        with Calibration(model) as seen:
            y = model(x)
        assert torch.allclose(y, model(x), atol=1e-6)
    assert not seen.unseen
    assert_same(seen["self_attn.in_proj_weight"], gram_of(x))
    assert_same(seen["linear1.weight"], gram_of(calls["linear1"][0]))
    assert_same(seen["linear2.weight"], gram_of(calls["linear2"][0]))


# Recurrent layers.


def states_of(layer, x, lengths, hx):
    """Inputs of the weights of a recurrent layer, step by step with a cell; x is (T, B, n)."""
    kind = {nn.LSTM: nn.LSTMCell, nn.GRU: nn.GRUCell, nn.RNN: nn.RNNCell}[type(layer)]
    found, ways = {}, 1 + layer.bidirectional
    for depth in range(layer.num_layers):
        outputs = []
        for way in range(ways):
            name = f"l{depth}" + ("_reverse" if way else "")
            extra = {"nonlinearity": layer.nonlinearity} if kind is nn.RNNCell else {}
            cell = kind(x.shape[-1], layer.hidden_size, bias=layer.bias, **extra)
            for part in ("weight_ih", "weight_hh", *(["bias_ih", "bias_hh"] if layer.bias else [])):
                setattr(cell, part, getattr(layer, f"{part}_{name}"))
            ins, states = [], []
            out = x.new_zeros(*x.shape[:2], layer.hidden_size)
            for b, length in enumerate(lengths):
                at = depth * ways + way
                state = tuple(each[at, b : b + 1] for each in hx)
                for t in reversed(range(length)) if way else range(length):
                    ins.append(x[t, b])
                    states.append(state[0])
                    new = cell(x[t, b : b + 1], state if kind is nn.LSTMCell else state[0])
                    state = new if kind is nn.LSTMCell else (new,)
                    out[t, b] = state[0]
            found[f"weight_ih_{name}"] = gram_of(torch.stack(ins))
            found[f"weight_hh_{name}"] = gram_of(torch.cat(states))
            outputs.append(out)
        x = torch.cat(outputs, -1)
    return found


LAYERS = [
    nn.LSTM(5, 4, 2, bidirectional=True, batch_first=True, dropout=0.2),
    nn.GRU(5, 4, 2, bidirectional=True),
    nn.RNN(5, 4, 2, bias=False, nonlinearity="relu"),
]


@pytest.mark.parametrize("padded", ["dense", "packed"])
@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("layer", LAYERS, ids=lambda each: type(each).__name__)
def test_recurrent_layers(layer, given, padded):
    layer = seeded(layer).eval()
    lengths = [6, 6, 6] if padded == "dense" else [3, 6, 1]
    x = draw(6, 3, 5)
    ways, of = layer.num_layers * (1 + layer.bidirectional), 1 + isinstance(layer, nn.LSTM)
    hx = [draw(ways, 3, 4, seed=1 + i) * given for i in range(of)]
    state = None if not given else tuple(hx) if of == 2 else hx[0]
    ready = x.transpose(0, 1) if layer.batch_first else x
    if padded == "packed":
        ready = pack_padded_sequence(ready, lengths, layer.batch_first, enforce_sorted=False)
    with Calibration(layer) as seen:
        y = layer(ready, state)
    again = layer(ready, state)
    assert all(
        map(torch.equal, *([each[0]] if padded == "dense" else each[0][:1] for each in (y, again)))
    )
    expected = states_of(layer, x, lengths, hx)
    assert set(seen) == set(expected)
    for name, found in seen.items():
        assert_same(found, expected[name])


def test_a_projection_of_states_is_left_out():
    layer, x = seeded(nn.LSTM(5, 4, proj_size=2)), draw(6, 3, 5)
    with Calibration(layer) as seen:
        y, _ = layer(x)
    before = torch.cat([torch.zeros(1, 3, 2), y[:-1]])
    assert_same(seen["weight_hh_l0"], gram_of(before))
    assert seen.unseen == ("weight_hr_l0",)


@pytest.mark.parametrize("kind", [nn.LSTMCell, nn.GRUCell, nn.RNNCell])
def test_cells(kind):
    cell, x, h = seeded(kind(5, 4)), draw(3, 5), draw(3, 4)
    with Calibration(cell) as seen:
        cell(x, (h, h) if kind is nn.LSTMCell else h)
    assert_same(seen["weight_ih"], gram_of(x))
    assert_same(seen["weight_hh"], gram_of(h))
