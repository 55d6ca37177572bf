"""Second moments that a codec's state takes over from elsewhere."""

from typing import Any, Protocol

from numpy.typing import NDArray

__all__ = ["with_second_moment"]


class _State(Protocol):
    def state_dict(self) -> dict[str, Any]: ...


def with_second_moment(state: _State, values: NDArray[Any], steps: int) -> dict[str, Any]:
    """Return a state's dict with this second moment, an average of so many gradients.

    Their number goes along: the correction of Adam's bias divides by ``1 - beta2**steps``. If it
    began at 0, a mature moment would be taken for a thousand times as large, and steps would be far
    too small.
    """
    held = state.state_dict()
    step = max(steps, int(held["step"]))
    scalars = {**held["scalars"], "second_moment_steps": float(steps)}
    return {**held, "second_moment": values, "step": step, "scalars": scalars}
