"""The methods under comparison: a codec and the optimizer that it is used with."""

from dataclasses import dataclass, field
from typing import Any

from gradwire import Codec

from .flat import Flat
from .rules import ByOptimizer, ByUpdates, Rule

ADAMW = {"betas": (0.9, 0.999), "weight_decay": 0.01}
SGD = {"momentum": 0.9}


@dataclass(frozen=True)
class Method:
    """A codec, or None to send everything, and an optimizer.

    Attributes
    ----------
    optimizer : {"adamw", "sgd", "updates"}
        "updates": each rank encodes the step of Adam with its own second moment.
    options : dict
        Keyword arguments of torch's optimizer.
    correction : dict
        beta2 and eps of "updates".
    """

    codec: Codec | None = None
    optimizer: str = "adamw"
    options: dict[str, Any] = field(default_factory=lambda: dict(ADAMW))
    correction: dict[str, float] = field(default_factory=dict)

    def rule(self, flat: Flat, ranks: int) -> Rule:
        """Return the rule for a run."""
        if self.optimizer != "updates":
            return ByOptimizer(flat, ranks, self.codec, self.optimizer, self.options)
        assert self.codec is not None
        return ByUpdates(flat, ranks, self.codec, self.options, **self.correction)
