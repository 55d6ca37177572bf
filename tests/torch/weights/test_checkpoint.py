"""Checkpoints of a model and its optimizer: a run goes on from one as if nothing had happened."""

import json

import pytest
import torch
from torch import nn

from gradwire import _native
from gradwire import weights as plain
from gradwire.errors import CorruptFileError
from gradwire.quantize import Affine
from gradwire.torch import weights
from tests.weights.containers import put_together, taken_apart

OPTIMIZERS = {
    "adamw": lambda p: torch.optim.AdamW(p, 1e-3, weight_decay=0.1),
    "amsgrad": lambda p: torch.optim.Adam(p, torch.tensor(1e-3), amsgrad=True, foreach=False),
    "sgd": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, nesterov=True),
    "still": lambda p: torch.optim.SGD(p, 0.1),
    "rmsprop": lambda p: torch.optim.RMSprop(p, 1e-3, centered=True, momentum=0.5),
    "adafactor": lambda p: torch.optim.Adafactor(p, 1e-2),
    "lbfgs": lambda p: torch.optim.LBFGS(p, 0.1, max_iter=2, history_size=3),
}


class Model(nn.Module):
    def __init__(self, dtype=torch.float32):
        super().__init__()
        self.embed = nn.Embedding(50, 96)
        self.norm = nn.BatchNorm1d(96)
        self.linear = nn.Linear(96, 96)
        self.head = nn.Linear(96, 50, bias=False)
        self.head.weight = self.embed.weight
        self.to(dtype)

    def forward(self, x):
        return self.head(self.linear(self.norm(self.embed(x))).relu())


def run_of(name, dtype=torch.float32):
    torch.manual_seed(3)
    model = Model(dtype)
    return model, OPTIMIZERS[name](model.parameters())


def train(model, optimizer, steps):
    for step in steps:
        x = torch.randint(0, 50, (64,), generator=torch.Generator().manual_seed(step))

        def loss(x=x):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x).float(), x.roll(1))
            loss.backward()
            return loss

        optimizer.step(loss)


def contents(value, name="all"):
    """All of a state dict, tensors as bytes."""
    if isinstance(value, torch.Tensor):
        bits = value.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        return [(name, value.dtype, tuple(value.shape), bits)]
    if isinstance(value, dict):
        return [each for key, v in value.items() for each in contents(v, f"{name}.{key}")]
    if isinstance(value, list | tuple):
        parts = [each for i, v in enumerate(value) for each in contents(v, f"{name}.{i}")]
        return [(name, type(value)), *parts]
    return [(name, value)]


def seen(model, optimizer):
    return contents(model.state_dict()) + contents(optimizer.state_dict())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_run_that_goes_on_is_the_one_that_was_not_interrupted(name, dtype, tmp_path):
    model, optimizer = run_of(name, dtype)
    train(model, optimizer, range(3))
    paths = [tmp_path / f"step-{step}" for step in range(3)]
    weights.save_checkpoint(paths[0], model, optimizer)
    for step in (1, 2):
        train(model, optimizer, [2 + step])
        weights.save_checkpoint(paths[step], model, optimizer, base=paths[step - 1])
    expected = seen(model, optimizer)
    train(model, optimizer, range(5, 8))
    end = seen(model, optimizer)

    model, optimizer = run_of(name, dtype)
    train(model, optimizer, [99])  # as something else before
    weights.load_checkpoint(paths[2], model, optimizer)
    assert seen(model, optimizer) == expected
    train(model, optimizer, range(5, 8))
    assert seen(model, optimizer) == end


def test_tied_tensors_are_there_once_and_a_difference_is_small(tmp_path):
    model, optimizer = run_of("adamw")
    train(model, optimizer, range(2))
    weights.save_checkpoint(tmp_path / "a", model, optimizer)
    weights.save_checkpoint(tmp_path / "b", model, optimizer, base=tmp_path / "a")
    with plain.open(tmp_path / "a") as file:
        assert "model.embed.weight" in file
        assert "model.head.weight" not in file
        assert "optimizer.state.embed.weight.exp_avg" in file
    assert (tmp_path / "b").stat().st_size < 0.2 * (tmp_path / "a").stat().st_size


def test_a_model_is_loaded_without_its_optimizer(tmp_path):
    model, optimizer = run_of("adamw")
    train(model, optimizer, range(2))
    weights.save_checkpoint(tmp_path / "a", model, optimizer)
    other, _ = run_of("adamw")
    weights.load_checkpoint(tmp_path / "a", other)
    assert contents(other.state_dict()) == contents(model.state_dict())
    weights.save_checkpoint(tmp_path / "b", model)
    with pytest.raises(ValueError, match="AdamW here, and none in the file"):
        weights.load_checkpoint(tmp_path / "b", model, optimizer)


def assert_refused(path, model, optimizer, message, error=ValueError):
    before = seen(model, optimizer)
    with pytest.raises(error, match=message):
        weights.load_checkpoint(path, model, optimizer)
    assert seen(model, optimizer) == before


def test_what_differs_is_listed_and_nothing_changes(tmp_path):
    path = tmp_path / "a"
    model, optimizer = run_of("adamw")
    train(model, optimizer, range(2))
    weights.save_checkpoint(path, model, optimizer)

    assert_refused(path, *run_of("sgd"), "SGD here, and AdamW in the file")
    model, _ = run_of("adamw")
    groups = [{"params": [model.embed.weight]}, {"params": [*model.linear.parameters()]}]
    assert_refused(path, model, torch.optim.AdamW(groups), "2 groups here, and 1 in the file")
    optimizer = torch.optim.AdamW([*model.parameters()][::-1])
    assert_refused(path, model, optimizer, "a different order")
    optimizer = torch.optim.AdamW([model.embed.weight])
    assert_refused(path, model, optimizer, r"'linear\.bias' is in group 0.* in the file only")
    model.linear = nn.Linear(96, 97)
    assert_refused(path, model, optimizer, r"'linear\.weight' has shape \(97, 96\)")
    optimizer = torch.optim.AdamW(nn.Linear(2, 2).parameters())
    assert_refused(path, model, optimizer, "is not one of the model")


class Split(nn.Module):
    """Parameters ``a`` and ``a.b``, whose states have names that run together."""

    def __init__(self):
        super().__init__()
        self.first = nn.ParameterDict({"b": nn.Parameter(torch.ones(3))})
        self.first.register_parameter("weight", nn.Parameter(torch.ones(3)))


def test_states_whose_names_run_together_stay_apart(tmp_path):
    model = Split()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    first, second = model.parameters()
    names = {id(value): name for name, value in model.named_parameters()}
    # The same text: "first.b" + ".c.d", and the keys 1 and "1" of one state.
    optimizer.state[first] = {
        "c.d": torch.tensor([1.0]),
        "c": {"d": torch.tensor([2.0]), "d'": torch.tensor([3.0])},
        "n": {1: torch.tensor([4.0]), "1": torch.tensor([5.0])},
        "l": [torch.tensor([6.0]), {"0": torch.tensor([7.0])}],
        "best": float("-inf"),
    }
    optimizer.state[second] = {"x": torch.tensor([8.0]), "limit": float("nan")}
    assert len(names) == 2
    expected = repr(seen(model, optimizer))
    for base in (None, tmp_path / "0"):
        path = tmp_path / ("0" if base is None else "1")
        weights.save_checkpoint(path, model, optimizer, base)
        other = Split()
        loaded = torch.optim.SGD(other.parameters(), lr=0.1)
        weights.load_checkpoint(path, other, loaded)
        assert repr(seen(other, loaded)) == expected


FORMATS = {
    "channels_last": lambda x: x.contiguous(memory_format=torch.channels_last),
    "transposed": lambda x: x.transpose(0, 1).contiguous().transpose(0, 1),
    "reversed": lambda x: x.permute(3, 2, 1, 0).contiguous().permute(3, 2, 1, 0),
    "rows": lambda x: x.contiguous(),
}


@pytest.mark.parametrize("layout", FORMATS)
@pytest.mark.parametrize("kind", ["adam", "adamw", "rmsprop", "sgd", "adagrad", "nadam"])
def test_a_state_lies_in_memory_as_it_did(layout, kind, tmp_path):
    """A step may walk memory: a fused one with a state in another order is another one."""
    make = {
        "adam": lambda p: torch.optim.Adam(p, fused=True, amsgrad=True),
        "adamw": lambda p: torch.optim.AdamW(p, lr=1e-2, fused=True),
        "rmsprop": lambda p: torch.optim.RMSprop(p, momentum=0.9, centered=True),
        "sgd": lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9, fused=True),
        "adagrad": lambda p: torch.optim.Adagrad(p, fused=True),
        "nadam": lambda p: torch.optim.NAdam(p),
    }

    def run():
        torch.manual_seed(0)
        model = nn.Conv2d(3, 4, (2, 3))
        model.weight.data = FORMATS[layout](model.weight.data)
        return model, make[kind](model.parameters())

    def step(model, optimizer, at):
        torch.manual_seed(at)
        model(torch.randn(2, 3, 5, 5)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    model, optimizer = run()
    for at in range(2):
        step(model, optimizer, at)
    weights.save_checkpoint(tmp_path / "a", model, optimizer)
    weights.save_checkpoint(tmp_path / "b", model, optimizer, tmp_path / "a")
    other, resumed = run()
    weights.load_checkpoint(tmp_path / "b", other, resumed)
    for name, value in optimizer.state[model.weight].items():
        if isinstance(value, torch.Tensor):
            assert resumed.state[other.weight][name].stride() == value.stride(), name
    for at in range(2, 4):
        step(model, optimizer, at)
        step(other, resumed, at)
    assert seen(model, optimizer) == seen(other, resumed)


@pytest.mark.parametrize("strides", [5, [1], [1, 1], [64, 2], [-1, 96], [True, 32], [2**70, 1]])
def test_strides_that_do_not_fit_are_refused(strides, tmp_path):
    path = tmp_path / "a"
    model, optimizer = run_of("adamw")
    train(model, optimizer, range(1))
    weights.save_checkpoint(path, model, optimizer)

    def change(about):
        items = dict(about["state"]["embed.weight"]["dict"])
        items["exp_avg"]["strides"] = strides

    rewritten(path, change)
    assert_refused(path, model, optimizer, "strides .* do not fit shape", CorruptFileError)


def rewritten(path, change, forged=True):
    """Change what describes the optimizer; a forged file has the checksum of the changes."""
    fields, body = taken_apart(path.read_bytes())
    about = json.loads(fields["__metadata__"]["gradwire.checkpoint"])
    change(about)
    text = fields["__metadata__"]["gradwire.checkpoint"] = json.dumps(about)
    if forged:
        check = f"{_native.crc32c(text.encode(), 0):08x}"
        fields["__metadata__"]["gradwire.checkpoint.crc32c"] = check
    path.write_bytes(put_together(fields, body))


def state_of(about, name="linear.bias"):
    return about["state"][name]["dict"]


def options_of(about):
    return about["groups"][0]["options"]["dict"]


def without(pairs, name):
    pairs[:] = [pair for pair in pairs if pair[0] != name]


def set_option(name, value):
    def change(about):
        without(options_of(about), name)
        options_of(about).append([name, value])

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda about: about.update(version=2), "update gradwire"),
        (lambda about: about.update(version=1.0), "have version 1.0"),
        (lambda about: about["state"].update({"linear.bias": {"float": "1"}}), "written as"),
        (lambda about: about.update(groups=3), "groups"),
        (lambda about: about.update(state=3), "state"),
        (lambda about: about["state"].update(other={"dict": []}), "state"),
        (lambda about: about["state"].update({"linear.bias": {"tensor": "none"}}), "written as"),
        (lambda about: about["state"].update({"linear.bias": {"dict": [[[], 1]]}}), "written as"),
        (lambda about: about["state"].update({"linear.bias": 3}), "not described as it is written"),
        (lambda about: about["groups"][0].update(options=3), "not described as it is written"),
        (lambda about: without(state_of(about), "step"), "AdamW does not accept its state: KeyE"),
        (set_option("lr", "fast"), r"the option 'lr' of group 0 .* is 'fast', where 0\.001 is exp"),
        (set_option("betas", 0.9), r"the option 'betas' of group 0 .* is 0\.9"),
    ],
)
def test_what_the_optimizer_kept_is_checked(tmp_path, change, message):
    path = tmp_path / "a"
    model, optimizer = run_of("adamw")
    train(model, optimizer, range(2))
    weights.save_checkpoint(path, model, optimizer)
    rewritten(path, change)
    train(model, optimizer, range(2))
    assert_refused(path, model, optimizer, message, CorruptFileError)


def test_a_damaged_checkpoint_changes_nothing(tmp_path):
    path = tmp_path / "a"
    model, optimizer = run_of("adamw")
    train(model, optimizer, range(2))
    weights.save_checkpoint(path, model, optimizer)
    (tmp_path / "b").write_bytes(path.read_bytes()[:-9] + bytes(9))
    weights.save(model, tmp_path / "c")
    rewritten(path, set_option("lr", 99.0), forged=False)
    train(model, optimizer, range(2))
    assert_refused(tmp_path / "b", model, optimizer, "checksum", CorruptFileError)
    assert_refused(tmp_path / "c", model, optimizer, "no checkpoint")
    held = optimizer.param_groups[0], optimizer.state[model.linear.bias]
    assert_refused(path, model, optimizer, "checksum of metadata", CorruptFileError)
    assert held[0] is optimizer.param_groups[0]  # which a scheduler may hold
    assert held[1] is optimizer.state[model.linear.bias]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_that_fails_while_it_loads_stays_as_it_was(name, tmp_path, monkeypatch):
    model, optimizer = run_of(name)
    train(model, optimizer, range(2))
    weights.save_checkpoint(tmp_path / "a", model, optimizer)
    train(model, optimizer, range(2, 4))
    load = type(optimizer).load_state_dict

    def failing(self, state):
        load(self, state)
        for group in self.param_groups:
            group.clear()
        self.state.clear()
        raise IndexError("half way")

    monkeypatch.setattr(type(optimizer), "load_state_dict", failing)
    assert_refused(tmp_path / "a", model, optimizer, "half way", CorruptFileError)
    monkeypatch.undo()
    train(model, optimizer, range(4, 6))
    end = seen(model, optimizer)
    model, optimizer = run_of(name)
    train(model, optimizer, range(6))
    assert seen(model, optimizer) == end


def test_a_model_that_cannot_be_written_to_leaves_the_optimizer_as_it_was(tmp_path):
    model, optimizer = run_of("adamw")
    train(model, optimizer, range(2))
    weights.save_checkpoint(tmp_path / "a", model, optimizer)
    train(model, optimizer, range(2))
    model.norm.running_mean = model.norm.running_mean[:1].expand(96)
    assert_refused(tmp_path / "a", model, optimizer, "'norm.running_mean' has entries that share")


def test_options_that_the_file_lacks_are_kept(tmp_path):
    path = tmp_path / "a"
    model, optimizer = run_of("adamw")
    weights.save_checkpoint(path, model, optimizer)
    rewritten(path, lambda about: without(options_of(about), "maximize"))  # as of an older torch
    optimizer.param_groups[0]["maximize"] = True
    weights.load_checkpoint(path, model, optimizer)
    assert optimizer.param_groups[0]["maximize"] is True


def test_what_such_a_file_cannot_hold_is_refused(tmp_path):
    path = tmp_path / "a"
    model, optimizer = run_of("adamw")
    train(model, optimizer, range(1))
    optimizer.param_groups[0]["odd"] = {1.5: 2}
    with pytest.raises(TypeError, match=r"odd.*neither a tensor nor plain"):
        weights.save_checkpoint(path, model, optimizer)
    with pytest.raises(ValueError, match="not one of the model"):
        weights.save_checkpoint(path, nn.Linear(2, 2), optimizer)
    weights.pack(model, {"linear.weight": Affine(4, 32)})
    with pytest.raises(TypeError, match=r"packed"):
        weights.save_checkpoint(path, model)
    assert not path.exists()
