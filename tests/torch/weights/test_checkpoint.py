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


def test_a_file_that_is_no_checkpoint_is_refused(tmp_path):
    model, optimizer = run_of("adamw")
    weights.save(model, tmp_path / "a")
    assert_refused(tmp_path / "a", model, optimizer, "no checkpoint")


def rewritten(path, change, forged=True):
    """Change what describes the optimizer; a forged file has the checksum of the changes."""
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    fields = json.loads(data[8 : 8 + length])
    about = json.loads(fields["__metadata__"]["gradwire.checkpoint"])
    change(about)
    text = fields["__metadata__"]["gradwire.checkpoint"] = json.dumps(about)
    if forged:
        check = f"{_native.crc32c(text.encode(), 0):08x}"
        fields["__metadata__"]["gradwire.checkpoint.crc32c"] = check
    text = json.dumps(fields).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + length :])


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


DAMAGE = {
    "step": lambda about: without(state_of(about), "step"),
    "moment": lambda about: without(state_of(about), "exp_avg"),
    "a parameter": lambda about: about["state"].pop("linear.bias"),
    "rate": set_option("lr", 99.0),
    "option": lambda about: without(options_of(about), "betas"),
    "another moment": lambda about: state_of(about)[1].__setitem__(1, state_of(about)[2][1]),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_checkpoint_changes_nothing(tmp_path, damage):
    path = tmp_path / "a"
    model, optimizer = run_of("adamw")
    train(model, optimizer, range(2))
    weights.save_checkpoint(path, model, optimizer)
    rewritten(path, DAMAGE[damage], forged=False)
    train(model, optimizer, range(2))
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


def test_a_corrupt_tensor_changes_nothing(tmp_path):
    path = tmp_path / "a"
    model, optimizer = run_of("adamw")
    train(model, optimizer, range(2))
    weights.save_checkpoint(path, model, optimizer)
    data = bytearray(path.read_bytes())
    data[-9] ^= 1
    path.write_bytes(data)
    train(model, optimizer, range(2))
    assert_refused(path, model, optimizer, "checksum", CorruptFileError)


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
