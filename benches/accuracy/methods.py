"""The methods under comparison: a codec and the optimizer that it is used with."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import gradwire
from benches.harness.recipes import config_of
from gradwire import Codec
from gradwire.exchange import AllGather
from gradwire.memory import AdamCorrection
from gradwire.schedule import Schedule, recommended

ADAMW: dict[str, Any] = {"betas": (0.9, 0.999), "weight_decay": 0.01}
SGD = {"momentum": 0.9}
MUON = {"momentum": 0.95, "weight_decay": 0.1}


@dataclass(frozen=True)
class Method:
    """A codec, or None to send everything, and an optimizer: "adamw", "sgd" or "muon".

    With Muon, the codec is for hidden matrices, and AdamW trains the rest from dense gradients.
    A tenth of the run is an epoch of the schedule, unless it counts steps.
    """

    codec: Codec | None = None
    optimizer: str = "adamw"
    options: Mapping[str, Any] = field(default_factory=lambda: dict(ADAMW))
    schedule: Schedule | None = None

    def config(self) -> dict[str, Any]:
        codec = None if self.codec is None else config_of(self.codec)
        options = {
            name: list(each) if isinstance(each, tuple) else each
            for name, each in self.options.items()
        }
        found = {"codec": codec, "optimizer": self.optimizer, "options": options}
        if self.codec is not None and self.codec.memory.updates:
            found["steps"] = "by the ratio of squares"  # earlier runs had shorter ones
        if self.schedule is not None:
            found["schedule"] = self.schedule.get_config()
        return found


def _attached(codec: Codec, optimizer: str = "adamw", options: Any = ADAMW) -> Method:
    """Return the method of a codec as `gradwire.torch.ddp.attach` begins with it."""
    return Method(codec, optimizer, options, recommended(codec))


METHODS: dict[str, Method] = {
    "dense AdamW": Method(),
    "dense AdamW, β1 0.95": Method(options={**ADAMW, "betas": (0.95, 0.999)}),
    "dense AdamW, β2 0.95": Method(options={**ADAMW, "betas": (0.9, 0.95)}),
    "topk(0.01), AdamW": Method(gradwire.topk(ratio=0.01)),
    "adam(0.01)": _attached(gradwire.adam(0.01)),
    "adam(0.01), all-gather": _attached(gradwire.adam(0.01, exchange=AllGather())),
    "adam(0.01), low_memory": _attached(
        gradwire.adam(0.01).replace(memory=AdamCorrection(low_memory=True))
    ),
    "adam(0.002)": _attached(gradwire.adam(0.002)),
    "adam_onebit()": Method(gradwire.adam_onebit()),
    "dense SGD": Method(None, "sgd", SGD),
    "topk(0.01), SGD": Method(gradwire.topk(ratio=0.01), "sgd", SGD),
    "topk(0.01), SGD without momentum": Method(gradwire.topk(ratio=0.01), "sgd", {"momentum": 0.0}),
    "dgc(0.01)": Method(gradwire.dgc(0.01), "sgd", SGD),
    "dense Muon": Method(None, "muon", MUON),
    "muon(0.2)": _attached(gradwire.muon(0.2), "muon", MUON),
    "muon(0.1)": _attached(gradwire.muon(0.1), "muon", MUON),
}
"""The methods, by the names that they have in tables."""
