"""Puts a codec, parameters and a transport together, once all ranks agree on them."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

import torch

from gradwire._part import check_part
from gradwire.schedule import Constant, Schedule
from gradwire.torch.reducer import parameters as making
from gradwire.torch.reducer.agreement import agree, checksum
from gradwire.torch.reducer.applying import Applying
from gradwire.torch.reducer.assignment import Assignment, Codecs
from gradwire.torch.reducer.attached import Entry
from gradwire.torch.reducer.control import Control
from gradwire.torch.reducer.exchange import build
from gradwire.torch.reducer.given import check_memory
from gradwire.torch.reducer.handle import Handle
from gradwire.torch.reducer.pairing import (
    check_optimizer,
    check_pairing,
    facts_of,
    warn_of_pairing,
)
from gradwire.torch.reducer.passes import GradScaler
from gradwire.torch.reducer.record import Parameter
from gradwire.torch.reducer.scheduling import Scheduler
from gradwire.torch.transport import Transport

if TYPE_CHECKING:
    from gradwire.codec import Codec

__all__ = ["SAME", "Options", "assemble"]

SAME = Constant()
"""The schedule that changes nothing."""

NO_FACTS: Mapping[str, object] = MappingProxyType({})

_COMPRESSIBLE = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


@dataclass(frozen=True, kw_only=True, eq=False)
class Options:
    """What every way in takes, as `gradwire.torch.ddp.attach` describes it.

    Raises
    ------
    TypeError, ValueError
        They are not what they have to be.
    """

    codec: Codecs
    optimizer: torch.optim.Optimizer | None = None
    schedule: Schedule = SAME
    grad_scaler: GradScaler | None = None
    min_numel: int = 1024
    min_ndim: int = 1
    assignment: Assignment = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "assignment", Assignment(self.codec))
        check_part("schedule", self.schedule, Schedule)
        check_optimizer(self.optimizer)

    @property
    def scaled(self) -> bool:
        """Whether a loss scaler is in use."""
        return self.grad_scaler is not None and self.grad_scaler.is_enabled()

    def dense(self, named: Mapping[str, torch.Tensor], sparse: set[int]) -> set[str]:
        """Return the parameters that are always sent dense."""
        return {
            name
            for name, each in named.items()
            if each.numel() < self.min_numel
            or each.ndim < self.min_ndim
            or each.dtype not in _COMPRESSIBLE
            or id(each) in sparse
        }


def assemble(
    named: Mapping[str, torch.nn.Parameter],
    options: Options,
    transport: Transport,
    entry: Entry,
    *,
    sparse: set[int],
    whole: bool = True,
    bucket_nbytes: int | None = None,
    joining: Callable[[], bool] = bool,
    facts: Mapping[str, object] = NO_FACTS,
) -> Handle:
    """Compress the gradients of these parameters from now on. A collective.

    Parameters
    ----------
    named : mapping of str to torch.nn.Parameter
        In the same order on all ranks.
    options : Options
    transport : Transport
        It is left if the call is refused.
    entry : Entry
    sparse : set of int
        The ids of parameters whose gradients are sparse.
    whole : bool
        As in `Worker`.
    bucket_nbytes : int, optional
        Capacity of the buckets.
    joining : callable
        As in `Passes`.
    facts : mapping of str to object
        What all ranks must agree on besides.

    Raises
    ------
    ValueError
        The ranks disagree, or options do not go together.
    ExchangeError
        The ranks could not be connected.
    """
    assignment, optimizer, scaled = options.assignment, options.optimizer, options.scaled
    dense = options.dense(named, sparse)
    shapes = [(name, tuple(each.shape), str(each.dtype)) for name, each in named.items()]
    agreed: dict[str, object] = {
        "codec": assignment.get_config(),
        "schedule": options.schedule.get_config(),
        "grad_scaler": scaled,
        "min_numel or min_ndim": checksum(sorted(dense)),
        "parameters": (len(shapes), checksum(shapes)),
        "optimizer": facts_of(optimizer, named),
        **facts,
    }
    carriers = transport.carriers(named.values())
    agreed["carriers of frames"] = carriers
    try:
        messages = transport.make()
        agree(messages, "attached", agreed)
        assignment.check(named)
        # After the ranks agree, so that all of them refuse it or none does.
        for codec in assignment.codecs:
            check_memory(codec, whole=whole)
        parameters = making.make(named, dense, assignment.of, messages.rank, bucket_nbytes)
        compressed = {each.name: each for each in parameters if each.state is not None}
        for codec, theirs in _by_codec(assignment, compressed):
            check_pairing(codec, optimizer, theirs)
        scheduler = Scheduler(options.schedule, compressed, messages.rank)
        frames = transport.make(carriers)
        transport.connect(frames, carriers, named.values())
        exchange = build(
            assignment.exchange,
            frames,
            transport.make,
            carriers,
            check_result=scaled,
            postpones=not all(codec.memory.undoable for codec in assignment.codecs),
        )
        control = Control(messages)
        for codec, theirs in _by_codec(assignment, compressed):
            warn_of_pairing(codec, optimizer, theirs)  # an error, if the program says so
            if optimizer is None:
                break  # which is said once
        entry.register()
    except BaseException:
        transport.leave()  # a refused call must not leak threads or sockets
        raise
    applying = None
    if optimizer is not None:
        applying = Applying(optimizer, list(compressed.values()), scaled=scaled)
    return Handle(
        assignment,
        parameters,
        exchange,
        scheduler,
        transport,
        control,
        entry=entry,
        grad_scaler=options.grad_scaler,
        whole=whole,
        applying=applying,
        joining=joining,
    )


def _by_codec(
    assignment: Assignment, compressed: Mapping[str, Parameter]
) -> "Iterator[tuple[Codec, list[Parameter]]]":
    """Yield every codec with its parameters."""
    for codec in assignment.codecs:
        yield codec, [each for name, each in compressed.items() if assignment.of(name) == codec]
