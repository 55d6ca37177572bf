"""The methods under comparison: a codec and the optimizer that it is used with."""

from dataclasses import dataclass, field
from typing import Any

import gradwire
from gradwire import Codec
from gradwire.quantize import TwoMeans
from gradwire.sparsify import All

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

    def config(self) -> dict[str, Any]:
        """Return what determines the method, as plain data."""
        codec = None if self.codec is None else self.codec.get_config()
        options = {
            name: list(each) if name == "betas" else each for name, each in self.options.items()
        }
        return {
            "codec": codec,
            "optimizer": self.optimizer,
            "options": options,
            "correction": self.correction,
        }


METHODS: dict[str, Method] = {
    "dense AdamW": Method(),
    "topk(0.01), AdamW": Method(gradwire.topk(ratio=0.01)),
    "adam(0.01)": Method(gradwire.topk(ratio=0.01), "updates"),
    "adam(0.002)": Method(gradwire.topk(ratio=0.002), "updates"),
    "adam_onebit()": Method(Codec(sparsify=All(), quantize=TwoMeans()), "updates"),
    "dense SGD": Method(None, "sgd", SGD),
    "topk(0.01), SGD": Method(gradwire.topk(ratio=0.01), "sgd", SGD),
    "dgc(0.01)": Method(gradwire.dgc(0.01), "sgd", SGD),
}
"""The methods, by the names that they have in tables."""
