"""Moments on their way between an optimizer and the codec that does a part of its work."""

from collections.abc import Mapping
from typing import Any

import torch
from numpy.typing import NDArray

from gradwire.state import State
from gradwire.torch.engine.parameter import ParameterSlot, to_logical, to_memory
from gradwire.torch.engine.sharding import local
from gradwire.torch.engine.square_ratio import SquareRatio
from gradwire.torch.transport import Channel


def is_ahead(moments: Mapping[str, Any], parameter: ParameterSlot) -> bool:
    """Tell whether the optimizer's second moment has seen more gradients than the codec's."""
    if not parameter.codec.memory.updates or moments.get("exp_avg_sq") is None:
        return False
    steps = float(parameter.state.state_dict()["scalars"]["second_moment_steps"])
    return float(moments["step"]) > steps


def second_moments(parameter: ParameterSlot, channel: Channel | None = None) -> dict[str, Any]:
    """Return the optimizer's state for uncompressed training; the mean of all ranks, if given."""
    state = parameter.state.state_dict()
    squares = torch.from_numpy(parameter.state.second_moment)
    if channel is not None:
        channel.all_reduce(squares).wait()
        squares.div_(channel.size)
    squares.mul_(parameter.ratio.factor if parameter.ratio else 1.0)
    mean = to_logical(squares.numpy(), parameter)
    first = torch.zeros_like(parameter.tensor, memory_format=torch.preserve_format)
    second = torch.zeros_like(first)
    local(second).copy_(mean)
    return {
        "step": torch.tensor(state["scalars"]["second_moment_steps"], dtype=torch.float32),
        "exp_avg": first,
        "exp_avg_sq": second,
    }


def mean_momentum(parameter: ParameterSlot, channel: Channel) -> torch.Tensor:
    """Return the mean of all ranks' momentum, as torch keeps it: the inverse of `start_with`."""
    values = torch.from_numpy(parameter.state.state_dict()["momentum"].astype("float32"))
    channel.all_reduce(values).wait()
    values.div_(_factor(parameter) * channel.size)
    return to_logical(values.numpy(), parameter).to(parameter.tensor.device)


def _factor(parameter: ParameterSlot) -> float:
    """Return what the codec's momentum is multiplied by beside torch's.

    With Nesterov's momentum, the codec keeps what torch multiplies again in each step.
    """
    memory: Any = parameter.codec.memory
    return float(memory.momentum or 1.0) if memory.nesterov else 1.0


def start_with(parameter: ParameterSlot, moments: Mapping[str, Any]) -> None:
    """Let a codec continue with moments of the optimizer."""
    if parameter.codec.memory.updates and moments.get("exp_avg_sq") is not None:
        ratio = (parameter.ratio or SquareRatio()).taken_over()
        parameter.use_ratio(ratio)
        squares = parameter.own(moments["exp_avg_sq"]) / ratio.factor
        values = to_memory(squares, parameter)
        taken = with_second_moment(parameter.state, values, int(moments["step"]))
        parameter.state.load_state_dict(taken)
    elif parameter.codec.memory.corrects and moments.get("momentum_buffer") is not None:
        momentum = parameter.own(moments["momentum_buffer"])
        state = parameter.state.state_dict()
        if parameter.codec.memory.estimates:  # exact, and the same on all ranks
            estimate = to_memory(momentum, parameter)
            state |= {"residual": estimate, "estimate": estimate}
        values = to_memory(_factor(parameter) * momentum, parameter)
        parameter.state.load_state_dict(state | {"momentum": values})


def with_second_moment(state: State, values: NDArray[Any], steps: int) -> dict[str, Any]:
    """Return a state's dict with this second moment, averaged over ``steps`` gradients.

    The number is needed because Adam's bias correction divides by ``1 - beta2**steps``. If it
    started at 0, a converged moment would count as a thousand times as large, and steps would be
    far too small.
    """
    saved = state.state_dict()
    step = max(steps, int(saved["step"]))
    scalars = {**saved["scalars"], "second_moment_steps": float(steps)}
    return {**saved, "second_moment": values, "step": step, "scalars": scalars}
