"""Models are trained once, and their matrices packed."""

import pytest
import torch
from torch import nn

from benches.accuracy.tasks.fashion import FashionNet
from benches.harness.text import TextNet
from benches.weights import models, nets, packing
from benches.weights.plan import DIGITS, FLOAT, GRU, Model, Setting

pytestmark = pytest.mark.full  # trains

pytest.importorskip("safetensors", reason="the layer weights has safetensors")

SHORT = Model("digits", "Digits", 12, 0.002, 1)


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """A task and its model, trained for a moment and read again."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("weights")
    task = models.task_of("digits", None)
    net = models.train(SHORT, task)
    models.keep(net, SHORT, task, folder)
    return task, net, models.trained(SHORT, task, folder)


def test_trained_weights_are_read_as_they_were(kept):
    _, net, read = kept
    found = read.state_dict()
    assert list(found) == list(net.state_dict())
    assert all(torch.equal(found[name], each) for name, each in net.state_dict().items())
    assert not read.training


def test_other_settings_are_another_file(tmp_path):
    assert models.place(SHORT, tmp_path) != models.place(DIGITS, tmp_path)


def test_the_recurrent_model_learns_text():
    task = models.task_of("gru", None)
    net = models.train(Model("gru", "", 12, 0.004, 1), task)
    with torch.no_grad():
        loss = task.loss(net, next(task.batches(0, 1, 1)))
    assert 2 < loss < 4.2
    assert GRU.steps > 1000


@pytest.mark.parametrize(
    ("net", "expected", "entries"),
    [
        (TextNet(64), 2 * 4 + 1, 2 * 12 * 128**2 + 96 * 128),
        (
            FashionNet(),
            1 + 3 * 2 + 2 + 1,
            9 * (16 + 2 * 16**2 + 3 * 16 * 32 + 3 * 32 * 64) + 16 * 32 + 32 * 64 + 640,
        ),
        (nets.Recurrent(), 3, 3 * 256 * (64 + 256) + 96 * 256),
    ],
    ids=["transformer", "convolutions", "recurrent"],
)
def test_matrices_are_packed_and_no_embeddings_or_norms(net, expected, entries):
    found = packing.matrices(net)
    assert len(found) == expected
    assert sum(each.numel() for each in found.values()) == entries
    assert {id(each) for each in found.values()} <= {id(each) for each in net.parameters()}


def test_fewer_bits_are_fewer_bytes_and_the_model_stays(kept):
    task, _, net = kept
    before = {name: each.clone() for name, each in net.state_dict().items()}
    with torch.no_grad():
        plain = packing.measure(task, net, FLOAT)
        found = {bits: packing.measure(task, net, Setting(bits, "range", 64)) for bits in (8, 2)}
    assert plain["packed_bytes"] == 4 * plain["entries"]
    for bits, row in found.items():
        assert 0 <= 8 * row["packed_bytes"] / row["entries"] - bits - 32 / 64 < 0.02
        assert row["bytes"] - row["packed_bytes"] == plain["bytes"] - plain["packed_bytes"]
    assert abs(found[8]["loss"] - plain["loss"]) < 1e-3 < abs(found[2]["loss"] - plain["loss"])
    assert all(torch.equal(before[name], each) for name, each in net.state_dict().items())


def test_the_first_bits_of_nested_ones_take_the_bytes_of_their_own(kept):
    task, _, net = kept
    with torch.no_grad():
        first = packing.measure(task, net, Setting(4, "range", 64, nested=True))
        alone = packing.measure(task, net, Setting(4, "range", 64))
        whole = packing.measure(task, net, Setting(8, "range", 64, nested=True))
    assert first == alone
    assert whole["packed_bytes"] > 1.8 * first["packed_bytes"]


def test_linear_layers_multiply_few_rows_of_packed_bytes(kept):
    task, _, net = kept
    with torch.no_grad():
        decoded = packing.measure(task, net, Setting(4, "range", 64))
        for activations, allowed in (("float32", 1e-5), ("int8", 1e-2)):
            row = packing.measure(task, net, Setting(4, "range", 64, activations=activations))
            assert row["packed_bytes"] == decoded["packed_bytes"]
            assert row["loss"] == pytest.approx(decoded["loss"], abs=allowed)
        read, _ = packing.multiplied(net, Setting(4, "range", 64), "int8")
    layers = [each for each in read.modules() if isinstance(each, packing.FewRows)]
    assert len(layers) == sum(isinstance(each, nn.Linear) for each in net.modules())
