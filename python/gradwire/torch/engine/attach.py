"""Connects a codec, the parameters and a transport."""

import functools
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch.optim import Optimizer

from gradwire._codec import Codec
from gradwire.torch.engine.config import Options, check_place
from gradwire.torch.engine.consensus import ControlChannel, Devices, agree
from gradwire.torch.engine.engine import Engine, left_on_error
from gradwire.torch.engine.handle import GradientSource, Handle
from gradwire.torch.engine.metrics import excess
from gradwire.torch.engine.optimizer_link import OptimizerLinks
from gradwire.torch.engine.pairing import (
    check_pairing,
    missing_in,
    slots_of,
    warn_of_missing,
    warn_of_pairing,
)
from gradwire.torch.engine.parameter import ParameterSlot, make_slots
from gradwire.torch.engine.scheduler import Scheduler
from gradwire.torch.engine.sharding import Shard, shard_of
from gradwire.torch.errors import warn
from gradwire.torch.exchange import BucketExchange, build
from gradwire.torch.transport import (
    NO_DEVICE_BACKENDS,
    RankTopology,
    Transport,
)

ShareOf = Callable[[str, torch.Tensor], Shard]
"""Returns what a rank is given of a parameter's gradient, which is summed inside its node."""


def attach_engine(
    named: Mapping[str, torch.nn.Parameter],
    options: Options,
    transport: Transport,
    source: GradientSource,
    *,
    sparse: set[int],
    share_of: ShareOf | None = None,
    bucket_nbytes: int | None = None,
    joining: Callable[[], bool] = bool,
    decides: Any = None,
    facts: Mapping[str, object] = MappingProxyType({}),
) -> Handle:
    """Compress the gradients of these parameters from now on. A collective.

    The parameters are in the same order on all ranks; ``sparse`` has the ids of those whose
    gradients are sparse. Without ``share_of``, this rank has every gradient in full; with a
    `Hierarchy`, the ranks of the node then divide it. ``bucket_nbytes`` is the capacity of the
    buckets. With ``decides``, an `Automatic`, the codec is used only where it decides so. ``facts``
    are additional values that must be equal on all ranks.

    Raises a ValueError if the ranks disagree or options do not go together, and an ExchangeError if
    the ranks could not be connected. In both cases the transport is left.
    """
    options = options.for_parameters(named)
    assignment, optimizers = options.assignment, options.optimizers
    facts = {**facts, "auto": decides is not None}
    join = functools.partial(_connect, options, named, sparse, facts, share_of)
    engine = join(transport)
    try:
        assignment.check(named)  # now that the ranks agree: all refuse a pattern, or none
        place = engine.place
        divides = place.shares > 1 or share_of is not None
        check_place(assignment.exchange, divides=divides)
        dense = options.dense(named, sparse)

        def share(name: str, tensor: torch.Tensor) -> Shard | None:
            if share_of is not None:
                return share_of(name, tensor)
            shares = place.shares
            return None if shares == 1 else shard_of(name, tensor, place.share, shares)

        parameters = make_slots(named, dense, assignment.of, place.rank, bucket_nbytes, share)
        compressed = {slot.name: slot for slot in parameters if slot.has_state}
        missing = missing_in(optimizers, named) if optimizers else []
        paired: list[tuple[Codec, Optimizer | None, list[ParameterSlot]]] = []
        for codec in assignment.codecs:
            theirs = [slot for name, slot in compressed.items() if assignment.of(name) == codec]
            if len(optimizers) < 2:
                paired.append((codec, next(iter(optimizers), None), theirs))
                continue
            parts = [(codec, each, slots_of(each, theirs)) for each in optimizers]
            paired += [part for part in parts if part[-1]]
        for pair in paired:
            check_pairing(*pair)
        make = Scheduler if decides is None else decides.scheduler
        scheduler = make(options.schedule, compressed, measures=place.measures)
        updated = {name for name, slot in compressed.items() if slot.codec.memory.updates}
        warn_of_missing(missing, updated)  # an error, if the program says so
        for codec, optimizer, slots in paired:
            warn_of_pairing(codec, optimizer, slots)
            if optimizer is None and codec.memory.keeps:
                break  # which is said once
        if decides is None:
            sent = [(slot.codec, slot.numel) for slot in compressed.values()]
            why = options.idle(parameters, place) or excess(sent, engine.parts[0], place.nodes)
            if why:
                warn(why, RuntimeWarning)
        source.register()
    except BaseException:
        engine.abandon()  # a refused call must not leak threads or sockets
        raise
    links = OptimizerLinks(optimizers, list(compressed.values()), scaled=options.scaled)
    return Handle(
        options,
        parameters,
        scheduler,
        engine,
        join,
        source=source,
        links=links,
        joining=joining,
        decide=None if decides is None else decides.controller,
    )


def _connect(
    options: Options,
    named: Mapping[str, torch.Tensor],
    sparse: set[int],
    more: Mapping[str, object],
    share_of: ShareOf | None,
    transport: Transport,
) -> Engine:
    """Connect the ranks, once they agree on options and parameters; if not, leave the transport."""
    scaled = options.scaled
    with left_on_error(transport):
        devices = Devices(named.values())
        levels: Any = transport if hasattr(transport, "local") else None  # a `Hierarchy`
        messages = transport.make() if levels is None else levels.messages()
        devices.agree(messages)
        device_backends = transport.device_backends(named.values())
        inside_backends: Mapping[str, str] = NO_DEVICE_BACKENDS
        carried_by = _names(device_backends)
        if levels is not None and share_of is None:  # else only messages go inside a node
            inside_backends = levels.device_backends(named.values(), frames=False)
            if (inside := _names(inside_backends)) != carried_by:
                carried_by = f"{carried_by} between nodes, {inside} inside"
        devices.warn_of_copies(device_backends)
        facts = {**options.facts(named, sparse), **more, "carriers of frames": device_backends}
        facts["carriers inside a node"] = dict(inside_backends)
        facts["hierarchy"] = None if levels is None else (levels.nodes, levels.shares)
        divisible = levels is None and share_of is None and hasattr(messages, "all_to_all")
        parts = options.assignment.for_ranks(messages.size if divisible else 1)
        facts["exchange among these ranks"] = ", ".join(map(repr, parts))
        agree(messages, "attached", facts)
        connect = functools.partial(_channel, transport, named.values())
        frames = connect(transport.make, device_backends)
        exchange: BucketExchange = build(
            parts[0],
            frames,
            functools.partial(connect, transport.make),
            device_backends,
            check_result=scaled,
        )
        confirm = None
        if levels is None:
            place = RankTopology.alone(messages.rank, messages.size)
        else:
            from gradwire.torch.exchange.hierarchical import Confirmation, HierarchicalExchange

            inside = connect(levels.local, inside_backends)
            place = levels.place(messages, frames, inside)
            if share_of is not None:
                starts = {name: share_of(name, tensor).start for name, tensor in named.items()}
                confirm = Confirmation(inside, place, starts)
            else:
                gather = connect(levels.local, inside_backends)
                exchange = HierarchicalExchange(
                    exchange, inside, gather, place, inside_backends, check_result=scaled
                )
        return Engine(
            exchange,
            ControlChannel(messages),
            place,
            transport,
            scaled=scaled,
            confirm=confirm,
            peers=None if levels is None else frames,
            divides=levels is not None and share_of is None,
            parts=parts,
            carried_by=carried_by,
        )


def _channel(
    transport: Transport,
    tensors: Iterable[torch.Tensor],
    make: Callable[[Mapping[str, str]], Any],
    device_backends: Mapping[str, str] = NO_DEVICE_BACKENDS,
) -> Any:
    """Create a channel with a method of the transport, and connect it on the tensors' devices."""
    channel = make(device_backends)
    transport.connect(channel, device_backends, tensors)
    return channel


def _names(device_backends: Mapping[str, str]) -> str:
    return ", ".join(sorted(set(device_backends.values()))) or "gloo"
