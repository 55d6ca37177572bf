"""Checkpoints of a model and its optimizer in a safetensors file, without pickle."""

import json
import math
import os
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

from gradwire import _native, weights
from gradwire._validate import require
from gradwire.errors import CorruptFileError
from gradwire.torch.tensors import has_no_gaps
from gradwire.torch.weights import files
from gradwire.torch.weights.slots import filled, slots_of, unwrapped
from gradwire.weights.header import check_version, parse_json, require_valid

KEY = "gradwire.checkpoint"
"""The metadata key of everything that is not a tensor."""

VERSION = 1

_CHECK = f"{KEY}.crc32c"
"""The metadata key of its checksum, such as ``"0a1b2c3d"``."""

_MODEL, _STATE, _GROUPS = "model.", "optimizer.state.", "optimizer.groups."
_PLAIN = (bool, int, float, str, type(None))


def save_checkpoint(
    path: str | os.PathLike[str],
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    base: str | os.PathLike[str] | None = None,
) -> None:
    """Write a model and its optimizer's state to a safetensors file, without loss.

    Parameters
    ----------
    path : path-like
        A temporary file in the same folder is written first, then renamed.
    model : torch.nn.Module
        Its parameters and persistent buffers are written, tied ones once.
    optimizer : torch.optim.Optimizer, optional
        An optimizer of the model's parameters. Its state is written by their names, with the
        options of its groups.
    base : path-like, optional
        An earlier checkpoint: only differences from its tensors are written. It must stay where it
        is as seen from the new one, in the same folder or near it: see `gradwire.weights.save`.

    Raises
    ------
    TypeError
        A tensor is sparse or of a class of its own, a weight is packed, a module has extra state,
        or the optimizer keeps something that is neither a tensor nor plain data.
    ValueError
        A tensor is on meta; the optimizer has a parameter that is not the model's; the target is
        the base, or the base has too many or is too far away.
    CorruptFileError
        The base is not valid.
    OSError
        The file cannot be written; an existing file is unchanged.
    """
    inner = unwrapped(model)
    files.check_extra_state(inner)
    slots = slots_of(inner)
    arrays = {_MODEL + slot.name: files.dense(slot) for slot in slots}
    about: dict[str, Any] = {"version": VERSION}
    if optimizer is not None:
        names = {id(slot.value): slot.name for slot in slots}
        about |= _describe(optimizer, names, arrays)
    text = json.dumps(about)
    weights.save(path, arrays, {KEY: text, _CHECK: _checksum(text)}, lossless=True, base=base)


def _checksum(text: str) -> str:
    """Return the CRC-32C of the metadata: state that no tensor's checksum covers."""
    return f"{_native.crc32c(text.encode(errors='surrogatepass'), 0):08x}"


def _describe(
    optimizer: torch.optim.Optimizer, names: Mapping[int, str], arrays: dict[str, Any]
) -> dict[str, Any]:
    """Return an optimizer's state without its tensors, which go to ``arrays``."""
    of_index = _parameters(optimizer, names)
    saved = optimizer.state_dict()
    state, groups = {}, []
    for index, value in saved["state"].items():
        name = of_index[index]
        state[name] = _tree(value, _STATE + name, arrays)
    for i, group in enumerate(saved["param_groups"]):
        options = {key: value for key, value in group.items() if key != "params"}
        described = _tree(options, f"{_GROUPS}{i}", arrays)
        groups.append({"params": [of_index[j] for j in group["params"]], "options": described})
    return {"optimizer": type(optimizer).__name__, "state": state, "groups": groups}


def _parameters(optimizer: torch.optim.Optimizer, names: Mapping[int, str]) -> list[str]:
    """Return the names of an optimizer's parameters, in the order of its state dict."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for i, parameter in enumerate(parameters):
        known, shape = id(parameter) in names, tuple(parameter.shape)
        message = "parameter {} of the optimizer, of shape {}, is not one of the model"
        require(known, message, i, shape)
    return [names[id(parameter)] for parameter in parameters]


def _tree(value: Any, name: str, arrays: dict[str, Any]) -> Any:
    """Return a state as JSON values, with tensors replaced by their names in ``arrays``."""
    if type(value) is float and not math.isfinite(value):
        return {"float": repr(value)}
    if type(value) in _PLAIN:
        return value
    if isinstance(value, torch.Tensor):
        while name in arrays:  # "b.c" of the parameter "a", and "c" of "a.b"
            name += "'"
        arrays[name] = files.raw_of(value, name)
        # An optimizer's step may walk memory: its state must lie as the parameter does.
        if value.is_contiguous() or not has_no_gaps(value.shape, value.stride()):
            return {"tensor": name}
        return {"tensor": name, "strides": list(value.stride())}
    if type(value) in (list, tuple):
        return {
            type(value).__name__: [_tree(v, f"{name}.{i}", arrays) for i, v in enumerate(value)]
        }
    if isinstance(value, dict) and all(type(key) in (str, int) for key in value):
        return {"dict": [[key, _tree(v, f"{name}.{key}", arrays)] for key, v in value.items()]}
    raise TypeError(f"{name!r} is a {type(value).__name__}, neither a tensor nor plain data")


def load_checkpoint(
    path: str | os.PathLike[str],
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
) -> None:
    """Load a file of `save_checkpoint` into a model and its optimizer: all of it, or nothing.

    Nothing is unpickled. A resumed run equals the uninterrupted one, bit for bit, if its batches
    and random numbers do.

    Parameters
    ----------
    path : path-like
        The file; its bases must be where they were as seen from it.
    model : torch.nn.Module
        With the names, shapes and dtypes of the file.
    optimizer : torch.optim.Optimizer, optional
        An optimizer of the saved class, with the same parameters in the same groups; the options of
        these are loaded too. Without it, only the model is loaded.

    Raises
    ------
    CorruptFileError
        The file, or a base, is not valid, or a base is missing.
    ValueError
        The file and the model or the optimizer differ: all differences are listed; or the file is
        not a checkpoint.
    OSError
        The file cannot be read.
    """
    inner = unwrapped(model)
    slots = slots_of(inner)
    with weights.open(path) as file:
        about = _read_about(file)
        part, state = files.Tensors(file, _MODEL), None
        names = part.names_of(slots)
        differences = [*files.differences_of(inner, names, part)]
        if optimizer is not None:
            of_slots = {id(slot.value): slot.name for slot in slots}
            differences += _differences(about, _parameters(optimizer, of_slots), optimizer)
        files.check_fits(path, differences)
        if optimizer is not None:
            state = _state_dict(files.Tensors(file), about, optimizer)
        values = {slot: files.dense_of(part[name], name) for slot, (name, *_) in names.items()}
    with filled(values):
        if optimizer is not None and state is not None:
            _load_state(optimizer, state)


def _load_state(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Load a state dict; if the optimizer does not accept it, nothing of the optimizer changes."""
    inner = [
        optimizer.__dict__,
        optimizer.state,
        *optimizer.state.values(),
        *optimizer.param_groups,
    ]
    before = [(fields, dict(fields)) for fields in inner]
    try:
        optimizer.load_state_dict(state)
    except BaseException as error:
        for fields, copy in before:
            fields.clear()
            fields.update(copy)
        if not isinstance(error, Exception) or isinstance(
            error, MemoryError | torch.cuda.OutOfMemoryError
        ):
            raise
        raise CorruptFileError(
            f"{type(optimizer).__name__} does not accept its state: {error!r:.200}"
        ) from error


def _read_about(file: weights.File | weights.Shards) -> dict[str, Any]:
    there = KEY in file.metadata
    require(there, "{!r} is no checkpoint: save one by save_checkpoint", file.path)
    about = parse_json(file.metadata[KEY], f"metadata {KEY!r}")
    check_version(about, "checkpoints")
    same = file.metadata.get(_CHECK) == _checksum(file.metadata[KEY])
    require_valid(same, "the checksum of metadata {!r} does not match: it was changed", KEY)
    return about


def _differences(
    about: Mapping[str, Any], parameters: list[str], optimizer: torch.optim.Optimizer
) -> Iterator[str]:
    saved, here = about.get("optimizer"), type(optimizer).__name__
    if saved != here:
        yield f"the optimizer is {here} here, and {saved or 'none'} in the file"
        return
    groups, rest = _groups(about), iter(parameters)
    if len(groups) != len(optimizer.param_groups):
        yield f"there are {len(optimizer.param_groups)} groups here, and {len(groups)} in the file"
        return
    for i, (group, (saved_names, _)) in enumerate(zip(optimizer.param_groups, groups, strict=True)):
        names_here = [next(rest) for _ in group["params"]]
        sides = (names_here, saved_names, "here"), (saved_names, names_here, "in the file")
        for names, others, where in sides:
            for name in names:
                if name not in others:
                    yield f"{name!r} is in group {i} of the optimizer {where} only"
        if sorted(names_here) == sorted(saved_names) and names_here != saved_names:
            yield f"the parameters of group {i} are in a different order"


def _groups(about: Mapping[str, Any]) -> list[tuple[list[str], Any]]:
    try:
        groups = [(list(group["params"]), group["options"]) for group in about["groups"]]
    except (KeyError, TypeError):
        groups = [([None], None)]
    named = all(isinstance(name, str) for names, _ in groups for name in names)
    require_valid(named, "the groups of the optimizer are not described as they are written")
    return groups


def _state_dict(
    file: files.Tensors, about: Mapping[str, Any], optimizer: torch.optim.Optimizer
) -> dict[str, Any]:
    groups = _groups(about)
    state: Any = about.get("state")
    names = [name for group, _ in groups for name in group]
    require_valid(isinstance(state, dict) and state.keys() <= {*names}, _ODD_STATE)
    index = {name: i for i, name in enumerate(names)}
    saved = optimizer.state_dict()["param_groups"]
    return {
        "state": {index[name]: _dict(tree, file) for name, tree in state.items()},
        "param_groups": [
            _options(group, _dict(options, file), i)
            for i, (group, (_, options)) in enumerate(zip(saved, groups, strict=True))
        ],
    }


def _options(group: dict[str, Any], saved: dict[Any, Any], number: int) -> dict[str, Any]:
    """Return a group with saved options, and its own where a newer torch has more of them."""
    for key, value in saved.items():
        default = group.get(key)
        require_valid(
            default is None or value is None or _sort(default) is _sort(value),
            "the option {!r} of group {} of the optimizer is {!r:.100}, where {!r:.100} is "
            "expected",
            *(key, number, value, default),
        )
    return {**group, **saved, "params": group["params"]}


def _sort(value: Any) -> type:
    """Return the type of an option; numbers may also be tensors."""
    return float if isinstance(value, bool | int | float | torch.Tensor) else type(value)


_ODD_STATE = "the state of the optimizer is not described as it is written"


def _dict(tree: Any, file: files.Tensors) -> dict[Any, Any]:
    value = _value(tree, file)
    require_valid(isinstance(value, dict), _ODD_STATE)
    return dict(value)


def _value(tree: Any, file: files.Tensors) -> Any:
    """Return the state that `_tree` described."""
    if type(tree) in _PLAIN:
        return tree
    match tree:
        case {"tensor": str(name)} if name in file:
            return _laid_out(files.dense_of(file[name], name).clone(), tree.get("strides"))
        case {"float": "inf" | "-inf" | "nan" as value}:
            return float(value)
        case {"list": list(values)}:
            return [_value(value, file) for value in values]
        case {"tuple": list(values)}:
            return tuple(_value(value, file) for value in values)
        case {"dict": list(items)}:
            pairs = [item for item in items if isinstance(item, list) and len(item) == 2]
            if len(pairs) == len(items) and all(type(key) in (str, int) for key, _ in pairs):
                return {key: _value(value, file) for key, value in pairs}
    raise CorruptFileError(f"the optimizer keeps {tree!r:.100}, which nothing is written as")


def _laid_out(value: torch.Tensor, strides: Any) -> torch.Tensor:
    """Return a tensor with the strides that it had."""
    if strides is None:
        return value
    known = isinstance(strides, list) and all(type(n) is int and 0 <= n < 2**62 for n in strides)
    fits = known and len(strides) == value.dim() and has_no_gaps(value.shape, strides)
    shape = tuple(value.shape)
    require_valid(fits, "strides {!r:.100} do not fit shape {}", strides, shape)
    return torch.empty_strided(value.shape, strides, dtype=value.dtype).copy_(value)
