"""Which optimizers go with which codecs."""

from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch.optim import Optimizer

from gradwire import _validate
from gradwire._codec import Codec
from gradwire.presets import adam, dgc, float8, muon, topk
from gradwire.torch.engine.consensus import checksum
from gradwire.torch.engine.parameter import ParameterSlot
from gradwire.torch.errors import warn
from gradwire.torch.optim import decays_gradients, family_of

RATIO = 0.01
"""The share of entries sent by default: accuracy has been measured to be that without a codec."""
_ADAMW = "torch.optim.AdamW"
_SGD = "torch.optim.SGD"
_MUON = "torch.optim.Muon"

_UNSUITED = ("dampening", "amsgrad", "capturable", "differentiable")
"""Options that an optimizer has from torch, and that no codec follows."""


class PairingWarning(UserWarning):
    """The optimizer and the codec do not suit each other, or cannot be checked."""


def as_optimizers(given: object) -> list[Optimizer]:
    """Return what ``optimizer=`` was given as a list; raise a TypeError unless all are of torch.

    An object with the attribute ``optimizers``, as in torchtitan, stands for those.
    """
    given = getattr(given, "optimizers", () if given is None else given)
    every: list[Any] = list(given) if isinstance(given, list | tuple) else [given]
    for each in every:
        check_optimizer(each)
    return every


def held_by(optimizer: Optimizer) -> set[int]:
    """Return the ids of the tensors in an optimizer's groups, to which some may be added."""
    return {id(tensor) for group in optimizer.param_groups for tensor in group["params"]}


def slots_of(optimizer: Optimizer, parameters: Iterable[ParameterSlot]) -> list[ParameterSlot]:
    """Return those of the parameters that are in an optimizer's groups."""
    held = held_by(optimizer)
    return [slot for slot in parameters if id(slot.tensor) in held]


def check_optimizer(optimizer: object) -> None:
    """Raise a TypeError that says what to pass, unless the argument is an optimizer of torch."""
    # Accelerate's wrapper is an Optimizer by class only, and supports no hooks.
    if isinstance(optimizer, Optimizer) and hasattr(optimizer, "_optimizer_step_post_hooks"):
        return
    advice = ""
    if isinstance(getattr(optimizer, "optimizer", None), Optimizer):
        advice = "; pass the optimizer inside it, .optimizer"
    raise TypeError(
        "optimizer= takes a torch.optim.Optimizer, such as "
        f"{_ADAMW}(model.parameters()); got the {type(optimizer).__name__} {optimizer!r}{advice}"
    )


def facts_of(optimizer: Optimizer, named: Mapping[str, Any]) -> object:
    """Return what must be equal on all ranks: class, options and parameters of each group."""
    names = {id(tensor): name for name, tensor in named.items()}
    groups = []
    for group in optimizer.param_groups:
        options = {key: _plain(value) for key, value in sorted(group.items()) if key != "params"}
        groups.append((options, checksum([names.get(id(tensor)) for tensor in group["params"]])))
    return type(optimizer).__qualname__, groups


def _plain(value: object) -> object:
    """Return an option as text, in which no address of an object stands."""
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, torch.Tensor):  # which may be on another device on each rank
        value = value.tolist()
    plain = value is None or isinstance(value, bool | int | float | str)
    return repr(value) if plain else type(value).__qualname__


def check_pairing(
    codec: Codec, optimizer: Optimizer | None, compressed: Iterable[ParameterSlot]
) -> None:
    """Raise a ValueError if the optimizer would not apply the codec's updates correctly."""
    family = None if optimizer is None else family_of(optimizer)
    if codec.memory.updates and family != "adam":
        name = "no optimizer" if optimizer is None else name_of(optimizer)
        raise ValueError(
            f"{codec.memory!r} sends steps, not gradients, and got {name}: use {_ADAMW}("
            "model.parameters(), lr=...), which applies them, or leave the codec out, and "
            "attach(model, optimizer=optimizer) chooses one that suits the optimizer"
        )
    if codec.memory.estimates and optimizer is not None and family != "muon":
        raise ValueError(
            f"{codec.memory!r} has .grad hold momentum, of which {name_of(optimizer)} would take "
            f"the length as well; use {_MUON}(matrices, lr=...){_other_muon(optimizer)}"
        )
    if codec.memory.corrects and not codec.memory.estimates and family in ("adam", "muon"):
        assert optimizer is not None  # which is of a family
        raise ValueError(
            f"{codec.memory!r} sends gradients with momentum, which {name_of(optimizer)} would "
            f"subtract unchanged; use {_SGD}(model.parameters(), lr=..., momentum=...)"
        )
    if optimizer is None or family is None:
        return
    memory = codec.memory
    for group in groups_of(optimizer, compressed) if memory.updates or memory.corrects else ():
        if option := _unsuited_option(optimizer, group):
            raise ValueError(
                f"{name_of(optimizer)} has {option}={group[option]!r}, a part of the optimizer's "
                f"work that {memory!r} does not see: leave {option}= out, with weight_decay= use "
                f"{_ADAMW}, or attach a codec that sends gradients, such as gradwire.float8()"
            )
        if memory.updates:
            _check_equal(codec, options_of(group), {"beta2": "betas[1]", "eps": "eps"})
        elif group.get("momentum"):
            _check_equal(codec, group, {"momentum": "momentum", "nesterov": "nesterov"})


def _other_muon(optimizer: Optimizer) -> str:
    """Return what makes a class that may be a Muon one, at the end of a message."""
    if "muon" not in type(optimizer).__name__.lower():
        return ""
    name = type(optimizer).__name__
    return f". If {name} makes momentum orthogonal: gradwire.torch.optim.MUONS.add({name})"


def _unsuited_option(optimizer: Optimizer, group: Mapping[str, Any]) -> str:
    """Return the option of a group that no codec follows; empty if there is none."""
    decays = family_of(optimizer) == "adam" and decays_gradients(optimizer, group)
    unsuited = [option for option in _UNSUITED if group.get(option)]
    return "weight_decay" if decays else next(iter(unsuited), "")


def default_codec(optimizer: object, ratio: float | None = None) -> Codec | list[Codec | None]:
    """Return the codec that suits an optimizer; of several, a list of those that suit each.

    Adam's steps for Adam and AdamW, momentum for SGD with momentum, top-k for plain SGD, estimates
    of momentum for Muon, none for SparseAdam: sparse gradients are sent as they are. Without a
    ratio, it is 0.1 for Muon, and 0.01 for the others. Any other optimizer gets 8 bits per entry,
    with a `PairingWarning`: error feedback in front of a first moment costs accuracy. Raises a
    TypeError without an optimizer of torch.
    """
    optimizers = as_optimizers(optimizer)
    if not optimizers:
        raise TypeError(
            "attach(model) needs optimizer=, because the codec that suits it depends on it: pass "
            "the optimizer of the model, or a codec, such as gradwire.topk(ratio=0.01)"
        )
    codecs = [_suiting(each, ratio) for each in optimizers]
    return codecs if len(codecs) > 1 else codecs[0] or float8()


def _suiting(optimizer: Optimizer, ratio: float | None) -> Codec | None:
    if isinstance(optimizer, torch.optim.SparseAdam):
        return None
    why = "is not torch.optim.AdamW, Adam, SGD or Muon"
    if family_of(optimizer) is not None:
        groups = [(group, _unsuited_option(optimizer, group)) for group in optimizer.param_groups]
        why = next((f"has {name}={group[name]!r}" for group, name in groups if name), "")
    if why:
        _warn(
            f"{name_of(optimizer)} {why}, so no codec can do its work, and gradients are sent as "
            "gradwire.float8(), with a quarter of the bytes. For another codec: attach(model, "
            f"codec, optimizer=optimizer){_other_muon(optimizer)}"
        )
        return float8()
    if family_of(optimizer) == "muon":
        return muon() if ratio is None else muon(ratio)
    ratio = RATIO if ratio is None else ratio
    if family_of(optimizer) == "adam":
        return adam(ratio)
    return dgc(ratio) if has_momentum(optimizer) else topk(ratio)


def other_than_known(optimizer: object) -> str:
    """Return which optimizer does not apply what codecs compute, in words; empty if all do."""
    names = [name_of(each) for each in as_optimizers(optimizer) if family_of(each) is None]
    return f"the optimizer is {names[0]}" if names else ""


def options_of(group: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a group that must suit the codec: few, and cheap to compare."""
    options = {"beta2": float(group["betas"][1])} if "betas" in group else {}
    for name in ("momentum", "nesterov", "eps", *_UNSUITED):
        if name in group:
            options[name] = group[name]
    return options


def _check_equal(codec: Codec, group: Mapping[str, Any], options: Mapping[str, str]) -> None:
    for option, called in options.items():
        wanted = getattr(codec.memory, option)
        value = group.get(option, wanted)
        if wanted not in (None, value):
            cycles = "; OneCycleLR and CyclicLR need cycle_momentum=False"
            raise ValueError(
                f"the codec's {option} is {wanted!r}, the optimizer's {called} is {value!r}: they "
                f"must be the same. Leave {option}= out, and the codec uses the optimizer's; to "
                f"change {called} later, detach() the handle and attach() again"
                f"{cycles if option == 'momentum' and value != 0.0 else ''}"
            )


def missing_in(optimizers: Sequence[Optimizer], named: Mapping[str, torch.Tensor]) -> list[str]:
    """Return the trainable parameters that are in no group of the optimizers; all without any.

    Raises a ValueError if two have the same parameter, or one has none of them.
    """
    known: set[int] = set()
    for optimizer in optimizers:
        mine = held_by(optimizer)
        if named and mine.isdisjoint(map(id, named.values())):
            raise ValueError(
                f"optimizer= has none of the {len(named)} parameters of the model, such as "
                f"{next(iter(named))!r}: it belongs to another model, or to parameters that have "
                f"been replaced; make {name_of(optimizer)} from this model's parameters"
            )
        twice = [name for name, tensor in named.items() if id(tensor) in mine & known]
        _validate.require(
            not twice,
            "parameters are in two of the optimizers, and each gradient is for one of them: leave "
            "{} out of the groups of the one or the other",
            _some(twice),
        )
        known |= mine
    return [
        name for name, tensor in named.items() if tensor.requires_grad and id(tensor) not in known
    ]


def warn_of_missing(missing: Sequence[str], sending: Container[str]) -> None:
    """Warn of parameters that the optimizer does not train; ``sending`` are those with updates."""
    if not missing:
        return
    more, sent = "; another optimizer can", [name for name in missing if name in sending]
    if sent:
        more = (
            f". The codec of {_some(sent)} applies the learning rate, which is 0 until "
            "add_param_group() adds them, so no other optimizer can train them either: for that, "
            "give them a codec by name that sends gradients, as in attach(model, "
            '{"embed.*": gradwire.float8(), "*": gradwire.adam()}, ...)'
        )
    _warn(
        f"{len(missing)} parameters, {_some(missing)}, are not in any group of optimizer=, which "
        f"will not train them{more}"
    )


def _some(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names[:5])) + (", ..." if len(names) > 5 else "")


def warn_of_pairing(
    codec: Codec, optimizer: Optimizer | None, parameters: Iterable[ParameterSlot]
) -> None:
    """Warn of a pairing that costs accuracy for these parameters, and name a better one."""
    memory = codec.memory
    if not memory.keeps:
        return
    if optimizer is None:
        _warn(
            "attach() was given no optimizer=, so it cannot check that the optimizer suits the "
            "codec or detect discarded gradients: attach(model, codec, optimizer=optimizer)"
        )
        return
    groups = groups_of(optimizer, parameters)
    if memory.updates or not any(map(_has_momentum, groups)):
        return
    if memory.corrects:
        if family_of(optimizer) not in ("sgd", "muon"):
            _warn(
                f"{memory!r} applies momentum, and {name_of(optimizer)} would apply it again: use "
                f"{_SGD}(model.parameters(), lr=..., momentum=...)"
            )
    elif codec.sparsify.selects:
        moment, better = "momentum", "momentum=0, with a learning rate of up to lr / (1 - momentum)"
        if any(map(_has_first_moment, groups)):
            moment, better = "a first moment", f"gradwire.adam(ratio=...) with {_ADAMW}"
        _warn(
            f"{name_of(optimizer)} has {moment}, and a sparse codec with a residual sends "
            f"gradients late and as sums: together they can cost accuracy. Better: {better}"
        )


def groups_of(optimizer: Optimizer, parameters: Iterable[ParameterSlot]) -> list[Mapping[str, Any]]:
    """Return the optimizer's groups that have any of these parameters."""
    ids = {id(slot.tensor) for slot in parameters}
    return [
        group
        for group in optimizer.param_groups
        if any(id(tensor) in ids for tensor in group["params"])
    ]


def _has_first_moment(group: Mapping[str, Any]) -> bool:
    return float(group.get("betas", (0.0,))[0]) > 0.0


def _has_momentum(group: Mapping[str, Any]) -> bool:
    return _has_first_moment(group) or float(group.get("momentum") or 0.0) > 0.0


def has_momentum(optimizer: Optimizer) -> bool:
    """Tell whether any group has momentum or a first moment."""
    return any(map(_has_momentum, optimizer.param_groups))


def name_of(optimizer: Optimizer) -> str:
    """Return the name under which programs import the class of an optimizer."""
    kind = getattr(optimizer, "wrapped_class", type(optimizer))
    module = "torch.optim" if kind.__module__.startswith("torch.optim") else kind.__module__
    return f"{module}.{kind.__qualname__}"


def _warn(text: str) -> None:
    warn(text, PairingWarning)
