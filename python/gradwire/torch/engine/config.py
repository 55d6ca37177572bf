"""The options common to every `attach`, their checks, and what must be equal on all ranks."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, Self, runtime_checkable

import torch

from gradwire import _rules, _validate
from gradwire._codec import Codec
from gradwire._part import check_part
from gradwire.exchange import Exchange
from gradwire.memory import Memory
from gradwire.presets import advice
from gradwire.presets import codec as build_codec
from gradwire.schedule import Schedule, recommended
from gradwire.torch.engine.consensus import checksum
from gradwire.torch.engine.pairing import as_optimizers, facts_of, options_of
from gradwire.torch.engine.parameter import ParameterSlot
from gradwire.torch.transport import RankTopology

Codecs = Codec | str | Mapping[str, Codec | str | None] | Sequence[Codec | str | None]
"""A codec or preset for all parameters, each pattern of names, or each optimizer; None is dense."""

Optimizers = torch.optim.Optimizer | Sequence[torch.optim.Optimizer]
"""The optimizer of a model, or several, which have different parameters."""

_COMPRESSIBLE = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


def as_codec(codec: object, call: str = "attach()") -> Codec:
    """Return the codec, or the preset of this name; raise an error that explains what to pass."""
    if isinstance(codec, Codec | str):
        return build_codec(codec)
    message = f"{call} takes a gradwire.Codec, {advice(codec)}"
    if isinstance(codec, torch.optim.Optimizer):
        message = (
            f"{call} takes a codec before the optimizer: pass optimizer={type(codec).__name__}(...)"
            " by its name, without a codec or after one"
        )
    raise TypeError(message)


def check_frames(codec: Codec, call: str) -> None:
    """Raise a `ValueError` for a codec that is not exchanged as frames."""
    if codec.exchange.divides:
        raise ValueError(
            f"{call} gathers frames or sums values, and {codec.exchange!r} is for the gradients of "
            "a model: use it with attach(), or exchange=gradwire.exchange.AllGather() here"
        )


def check_place(exchange: Exchange, *, divides: bool) -> None:
    """Raise a `ValueError` for an exchange that is not supported if nodes divide gradients."""
    if exchange.divides and divides:
        raise ValueError(
            f"{exchange!r} divides every bucket among all ranks, and the ranks of a node divide it "
            "already: use exchange=gradwire.exchange.AllGather(), or leave the hierarchy out"
        )


class Assignment:
    """A codec, or none, for each parameter: by its name, or the first pattern that matches it.

    Patterns have ``*``, ``?`` and ``[abc]``, and are matched with case; in a list, the place of its
    optimizer counts. A parameter that none matches, or no optimizer has, is sent dense.
    ``low_memory`` says whether memories are kept in bfloat16. Raises a TypeError for what is
    neither a codec nor a mapping of patterns, or list, of codecs or None; and a ValueError if there
    is no codec, or if codecs have different exchanges.
    """

    def __init__(self, request: object, low_memory: bool | None = None) -> None:
        self.request: Codec | dict[str, Codec | None] | list[Codec | None]
        self._own: dict[str, Codec] = {}  # by name of the parameter: with its optimizer's options
        if isinstance(request, list | tuple):
            self.request = [
                each and _with_precision(as_codec(each), low_memory) for each in request
            ]
            self._rules: dict[Any, Codec | None] = dict(enumerate(self.request))
        elif not isinstance(request, Mapping):
            self.request = _with_precision(as_codec(request), low_memory)
            self._rules = {"*": self.request}
        else:
            self.request = {}
            for pattern, codec in request.items():
                if not isinstance(pattern, str):
                    raise TypeError(f"the keys are names of parameters, got {pattern!r}")
                self.request[pattern] = (
                    None if codec is None else _with_precision(as_codec(codec), low_memory)
                )
            self._rules = self.request
        codecs = self.codecs
        if not codecs:
            raise ValueError("there is no codec among the values: leave the model as it is instead")
        self.exchange, *others = dict.fromkeys(codec.exchange for codec in codecs)
        if others:
            raise ValueError(
                "all codecs of one attachment must have the same exchange, because a bucket holds "
                f"parameters of all of them: got {self.exchange!r} and {others[0]!r}"
            )

    @property
    def codecs(self) -> list[Codec]:
        """The codecs, each of them once."""
        codecs = [codec for codec in self._rules.values() if codec is not None]
        return list(dict.fromkeys([*self._own.values()] or codecs))

    def of(self, name: str) -> Codec | None:
        """Return the codec of a parameter."""
        rules = {} if isinstance(self.request, list) else self._rules
        return self._own.get(name) or _rules.first(rules, name)

    def for_optimizers(
        self, optimizers: Sequence[torch.optim.Optimizer], named: Mapping[str, torch.Tensor]
    ) -> "Assignment":
        """Return a copy in which options that are None are taken from each parameter's group."""
        usual = optimizers[0].defaults if optimizers else {}
        groups = {
            id(tensor): (at, group)
            for at, optimizer in enumerate(optimizers)
            for group in optimizer.param_groups
            for tensor in group["params"]
        }
        assignment = Assignment(self.request)
        codecs: dict[tuple[Codec, Memory], Codec] = {}  # one object for all parameters alike
        for name, tensor in named.items():
            at, group = groups.get(id(tensor), (None, usual))
            codec = self._rules.get(at) if isinstance(self.request, list) else self.of(name)
            if codec is not None:
                memory = codec.memory.for_optimizer(options_of(group))
                if memory != codec.memory and (codec, memory) not in codecs:
                    codecs[codec, memory] = codec.replace(memory=memory)
                assignment._own[name] = codecs.get((codec, memory), codec)
        return assignment

    def for_ranks(self, ranks: int) -> list[Exchange]:
        """Return the different exchanges of these ranks: several only if each divides buckets."""
        exchanges = list(
            dict.fromkeys(
                codec.exchange.for_ranks(ranks, codec.sparsify, codec.quantize, codec.memory)
                for codec in self.codecs
            )
        )
        together = len(exchanges) == 1 or all(exchange.divides for exchange in exchanges)
        return exchanges if together else self.for_ranks(1)

    def check(self, names: Iterable[str]) -> None:
        """Raise a ValueError if a pattern matches no parameter: it is mistyped."""
        if isinstance(self.request, Mapping):
            _rules.check(self.request, names)

    def get_config(self) -> Any:
        """Return the codec's config, or a list of the patterns or numbers with their configs."""
        if isinstance(self.request, Codec):
            (codec,) = self.codecs if len(self.codecs) == 1 else (self.request,)
            return codec.get_config()
        return [
            [pattern, None if codec is None else codec.get_config()]
            for pattern, codec in self._rules.items()
        ]


def _with_precision(codec: Codec, low_memory: bool | None) -> Codec:
    """Return a codec with its memory in bfloat16 or float32; None leaves it as it is."""
    memory: Any = codec.memory
    if low_memory is None or not memory.keeps:
        return codec
    if getattr(memory, "low_memory", False) == low_memory:
        return codec
    if not hasattr(memory, "low_memory"):
        raise ValueError(
            "low_memory=True is for gradwire.memory.Residual, LowPass and AdamCorrection, and "
            f"{memory!r} is float32: leave low_memory out, or attach another codec"
        )
    return codec.replace(memory=dataclasses.replace(memory, low_memory=low_memory))


@runtime_checkable
class GradScaler(Protocol):
    """The methods of `torch.amp.GradScaler` that gradwire calls."""

    def get_scale(self) -> float:
        """Return the loss scale."""

    def is_enabled(self) -> bool:
        """Tell whether the loss is scaled and non-finite steps are skipped."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Options:
    """Options of every `attach`, as `gradwire.torch.ddp.attach` describes them."""

    codec: Codecs
    optimizer: Optimizers | None = None
    schedule: Schedule | None = None  # then each codec has the one that is recommended
    grad_scaler: GradScaler | None = None
    min_numel: int = 1024
    min_ndim: int = 1
    low_memory: bool | None = None  # then as each codec says
    assignment: Assignment = field(init=False)
    optimizers: list[torch.optim.Optimizer] = field(init=False)

    def __post_init__(self) -> None:
        if self.low_memory is not None:
            _validate.boolean("low_memory", self.low_memory)
        object.__setattr__(self, "assignment", Assignment(self.codec, self.low_memory))
        if self.schedule is not None:
            check_part("schedule", self.schedule, Schedule)
        object.__setattr__(self, "optimizers", as_optimizers(self.optimizer))
        codecs, optimizers = self.assignment.request, len(self.optimizers)
        counts = not isinstance(codecs, list) or len(codecs) == optimizers
        text = "a list of codecs has one for each optimizer of optimizer=: got {} for {}"
        _validate.require(counts, text, len(self.assignment._rules), optimizers)
        _validate.integer("min_numel", self.min_numel, low=0)
        _validate.integer("min_ndim", self.min_ndim, low=0)
        scaler: Any = self.grad_scaler
        if scaler is not None and (isinstance(scaler, type) or not isinstance(scaler, GradScaler)):
            raise TypeError(f"grad_scaler= takes a torch.amp.GradScaler or None, got {scaler!r}")

    def for_parameters(self, named: Mapping[str, torch.Tensor]) -> Self:
        """Return a copy whose codecs follow the options of the optimizers' groups."""
        options = dataclasses.replace(self)
        assignment = self.assignment.for_optimizers(self.optimizers, named)
        object.__setattr__(options, "assignment", assignment)
        return options

    @property
    def scaled(self) -> bool:
        """Whether a loss scaler is in use."""
        return self.grad_scaler is not None and self.grad_scaler.is_enabled()

    def dense(self, named: Mapping[str, torch.Tensor], sparse: set[int]) -> set[str]:
        """Return the parameters that are always sent dense."""
        return {
            name for name, tensor in named.items() if id(tensor) in sparse or self._excludes(tensor)
        }

    def _excludes(self, tensor: torch.Tensor) -> bool:
        """Tell whether a parameter of this dtype and shape is sent dense."""
        small = tensor.numel() < self.min_numel or tensor.ndim < self.min_ndim
        return small or tensor.dtype not in _COMPRESSIBLE

    def idle(self, parameters: Iterable[ParameterSlot], place: RankTopology) -> str:
        """Return a sentence on why compression gains nothing here; empty if it may gain."""
        if place.nodes == 1:
            alone = "rank" if place.shares == 1 else "node"
            return (
                f"There is only one {alone}, so there is nothing to exchange: the codec takes "
                "time, delays gradients and saves nothing. Start several, for example with "
                "torchrun --nproc-per-node=2, or leave gradwire out."
            )
        slots = list(parameters)
        if any(slot.has_state and slot.tensor.requires_grad for slot in slots):
            return ""
        return (
            f"Nothing is compressed: none of {len(slots)} parameters is trained, dense in memory, "
            f"matched by a codec, and has min_numel={self.min_numel} entries and "
            f"min_ndim={self.min_ndim} dimensions. Pass another min_numel=, min_ndim= or codec, or "
            "leave gradwire out."
        )

    def facts(self, named: Mapping[str, torch.Tensor], sparse: set[int]) -> dict[str, Any]:
        """Return the options that must be equal on all ranks."""
        shapes = [(name, tuple(tensor.shape), str(tensor.dtype)) for name, tensor in named.items()]
        recommends = dict.fromkeys(map(recommended, self.assignment.codecs))
        schedules = recommends if self.schedule is None else [self.schedule]
        return {
            "codec": self.assignment.get_config(),
            "schedule": [schedule.get_config() for schedule in schedules],
            "grad_scaler": self.scaled,
            "min_numel or min_ndim": checksum(sorted(self.dense(named, sparse))),
            "parameters": (len(shapes), checksum(shapes)),
            "optimizer": [facts_of(each, named) for each in self.optimizers],
        }
