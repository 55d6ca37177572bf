"""The parameters of one rank, and its copy of the shared ones."""

import math
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from gradwire._validate import require
from gradwire.schedule import Constant
from gradwire.torch.diloco.fragments import OuterOptimizer, Timetable
from gradwire.torch.diloco.untrained import UntrainedTensors
from gradwire.torch.engine.bucket_contents import BucketContents
from gradwire.torch.engine.config import Options, as_codec, check_frames
from gradwire.torch.engine.consensus import checksum
from gradwire.torch.engine.metrics import Counters
from gradwire.torch.engine.parameter import ParameterSlot, make_slots, new_state
from gradwire.torch.engine.scheduler import Scheduler
from gradwire.torch.errors import warn
from gradwire.torch.tensors import bytes_of

if TYPE_CHECKING:
    from gradwire._codec import Codec

Position = dict[str, int]
"""``inner_step``, ``sent`` and ``applied``: how far training is."""

Shared = dict[str, dict[str, torch.Tensor]]
"""Tensors by name, of each kind of a checkpoint: shared, velocity, pending and sent."""


class FragmentState:
    """The parameters of a fragment on one device; `contents` are those of the pseudo-gradient.

    The `shared` ones and the outer momentum, `velocity`, are flat: float32, or float64 if one is.
    """

    def __init__(self, contents: BucketContents, momentum: bool) -> None:
        self.contents = contents
        self.records: Sequence[ParameterSlot] = [
            piece.parameter
            for piece in sorted((*contents.pieces, *contents.dense), key=lambda slot: slot.start)
        ]
        parameters = self.own()
        self.own_dtype = parameters.dtype
        self.shared = parameters.to(torch.promote_types(torch.float32, parameters.dtype))
        self.velocity = torch.zeros_like(self.shared) if momentum else None

    @torch.no_grad()
    def own(self) -> torch.Tensor:
        """Return a copy of this rank's own parameters, flat and in their dtype."""
        return torch.cat([slot.tensor.detach().reshape(-1) for slot in self.records])

    def dtype_of(self, kind: str) -> torch.dtype:
        """Return the dtype of one kind of tensor in a checkpoint of these parameters."""
        if kind == "pending":
            return torch.float32
        return self.own_dtype if kind == "sent" else self.shared.dtype

    @torch.no_grad()
    def step(self, outer: OuterOptimizer, mean: torch.Tensor, sent: torch.Tensor | None) -> None:
        """Make an outer step, and update this rank's own parameters from it."""
        outer.step(self.shared, self.velocity, mean)
        before = {} if sent is None else {slot.name: old for slot, old in self.split(sent)}
        for record, values in self.split(self.shared):
            outer.place(record.tensor, values, before.get(record.name))

    @torch.no_grad()
    def write(self, flat: torch.Tensor) -> None:
        for record, values in self.split(flat):
            record.tensor.copy_(values)

    def split(self, flat: torch.Tensor) -> list[tuple[ParameterSlot, torch.Tensor]]:
        """Return the part of each parameter in a flat tensor, in its shape."""
        parts = torch.split(flat, [slot.numel for slot in self.records])
        return [
            (slot, part.view(slot.tensor.shape))
            for slot, part in zip(self.records, parts, strict=True)
        ]

    @torch.no_grad()
    def flat(self, tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Concatenate tensors, given by the names of these parameters, to a flat one."""
        device = self.shared.device
        return torch.cat([tensors[slot.name].to(device).reshape(-1) for slot in self.records])


Flats = dict[FragmentState, torch.Tensor]
"""A flat tensor of each part."""


class Replica:
    """Parameters in fragments, which have a part for each device.

    `compressed` are the slots of the parameters sent as frames. `settings` must be equal on all
    ranks.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        named: Mapping[str, torch.nn.Parameter],
        groups: Sequence[Sequence[str]],
        codec: "Codec",
        outer: OuterOptimizer,
        timetable: Timetable,
        *,
        min_numel: int,
        min_ndim: int,
    ) -> None:
        codec = as_codec(codec, "DiLoCo()")
        check_frames(codec, "DiLoCo()")
        require(
            not codec.memory.updates,
            "{!r} turns gradients into steps, and the sum of inner steps is already a step: choose "
            "a codec with a Residual",
            codec.memory,
        )
        outer.check(codec)
        self.codec = codec
        self.outer = outer
        self.timetable = timetable
        self.position: Position = {"inner_step": 0, "sent": 0, "applied": 0}
        self._model = model
        self._warned = False
        self.untrained = UntrainedTensors(model, named.values())
        options = Options(codec=codec, min_numel=min_numel, min_ndim=min_ndim)
        dense = options.dense(named, set())
        self.records = make_slots(named, dense, options.assignment.of, 0, None, lambda *_: None)
        for slot in self.records:  # pseudo-gradients are in the order of the tensor's indices
            slot.strides = torch.empty(slot.tensor.shape, device="meta").stride()
        self.compressed = {slot.name: slot for slot in self.records if slot.has_state}
        self.scheduler = Scheduler(Constant(), self.compressed, measures=False)
        counters = Counters(len(self.records))
        rows = {slot.name: row for row, slot in enumerate(self.records)}
        self.fragments: list[list[FragmentState]] = []
        for names in groups:
            devices: dict[torch.device, list[int]] = {}
            for name in names:
                devices.setdefault(named[name].device, []).append(rows[name])
            buckets = [
                BucketContents(
                    [self.records[row] for row in rows_there], torch.float32, counters, rows_there
                )
                for rows_there in devices.values()
            ]
            self.fragments.append(
                [FragmentState(contents, outer.outer_momentum > 0) for contents in buckets]
            )
        shapes = [
            (slot.name, tuple(slot.tensor.shape), str(slot.tensor.dtype)) for slot in self.records
        ]
        self.settings: dict[str, Any] = {
            "codec": codec.get_config(),
            "parameters": (len(shapes), checksum(shapes)),
            "buffers or frozen parameters": checksum(self.untrained.settings),
            "fragments": checksum([list(names) for names in groups]),
            "min_numel or min_ndim": checksum(sorted(dense)),
            "outer optimizer": (outer.outer_lr, outer.outer_momentum, outer.nesterov),
            "inner_steps": timetable.inner_steps,
            "delay": timetable.delay,
        }

    @staticmethod
    def named(model: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
        """Return the parameters that are trained, by name.

        Raises a TypeError or ValueError for a wrapped module, or parameters that cannot be
        averaged.
        """
        require(
            not isinstance(model, torch.nn.parallel.DistributedDataParallel),
            "DiLoCo() takes the plain module: DistributedDataParallel would average every "
            "gradient; pass model.module",
            kind=TypeError,
        )
        named = {
            name.replace("_orig_mod.", ""): parameter
            for name, parameter in model.named_parameters()
            if parameter.requires_grad
        }
        require(named, "the model has no parameters that require gradients")
        for name, parameter in named.items():
            is_real, dtype = parameter.is_floating_point(), parameter.dtype
            require(not parameter.is_meta, "parameter {!r} is on meta: it has no values", name)
            message = "parameter {!r} is {}, expected real numbers"
            require(is_real, message, name, dtype, kind=TypeError)
        return named

    def check(self) -> None:
        """Raise a ValueError if the model trains other parameters than are exchanged.

        Warns if a parameter that is exchanged has been frozen.
        """
        ours = {id(slot.tensor): slot.name for slot in self.records}
        names = {id(tensor): name for name, tensor in self._model.named_parameters()}
        trained = {id(tensor) for tensor in self._model.parameters() if tensor.requires_grad}
        more = [name for key, name in names.items() if key in trained and key not in ours]
        gone = [name for key, name in ours.items() if key not in names]
        require(
            not more and not gone,
            "the parameters of the model have changed since DiLoCo(): {} {}, and are not "
            "exchanged. Call restore() for the shared parameters, close() this DiLoCo, and make "
            "another one for the model as it is now, on all ranks at the same step, at best right "
            "after an exchange",
            *(more or gone, "are trained" if more else "have been replaced or removed"),
        )
        frozen = [name for key, name in ours.items() if key not in trained]
        if frozen and not self._warned:
            self._warned = True
            warn(
                f"{frozen} no longer require gradients, but are still exchanged: residuals and "
                "outer momentum go on moving them. To leave them as they are, close() this DiLoCo "
                "and make another one, on all ranks at the same step",
                RuntimeWarning,
            )

    @property
    def parts(self) -> list[FragmentState]:
        return [part for fragment in self.fragments for part in fragment]

    @property
    def like(self) -> list[torch.Tensor]:
        """A tensor on each device whose parameters are exchanged."""
        return [part.shared for part in self.parts]

    def shared(self) -> list[torch.Tensor]:
        """Return the tensors that all ranks share."""
        return self.like + [part.velocity for part in self.parts if part.velocity is not None]

    def start(self, rank: int) -> None:
        """Start with empty residuals, and random numbers that differ between ranks."""
        for slot in self.compressed.values():
            slot.state = new_state(slot, rank)

    def load(self, tensors: Shared) -> None:
        for part in self.parts:
            part.shared.copy_(part.flat(tensors["shared"]))
            if part.velocity is not None:
                part.velocity.copy_(part.flat(tensors["velocity"]))

    def bits(self, pending: Iterable[torch.Tensor] = ()) -> int:
        """Return a checksum of the shared tensors, and of averages to be applied."""
        total = 0
        for tensor in (*self.shared(), *pending):
            total = zlib.crc32(bytes_of(tensor).numpy().data, total)
        return total

    def steps(self) -> dict[str, int]:
        return {name: slot.state.step for name, slot in self.compressed.items()}

    def set_encode_counts(self, every: Sequence[Mapping[str, int]]) -> None:
        """Set the encode counts to the same number on all ranks, and reset the size limits."""
        for name, slot in self.compressed.items():
            step = max(theirs[name] for theirs in every)
            if slot.state.step != step:
                slot.state.load_state_dict({**slot.state.state_dict(), "step": step})
            slot.limit.reset()

    def residual_norm(self) -> float | None:
        norms = [slot.state.residual_norm for slot in self.compressed.values()]
        known = [norm for norm in norms if norm is not None]
        return math.hypot(*known) if known else None
