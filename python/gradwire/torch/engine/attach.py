"""Puts a codec, parameters and a transport together."""

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

import torch

from gradwire.torch.engine import parameter_states as making
from gradwire.torch.engine.assignment import Assignment
from gradwire.torch.engine.attached import GradientSource
from gradwire.torch.engine.auto_scheduler import AutoScheduler
from gradwire.torch.engine.backward import AutoControl
from gradwire.torch.engine.checks import check_place
from gradwire.torch.engine.connection import NO_FACTS, ShareOf, connect
from gradwire.torch.engine.handle import Handle
from gradwire.torch.engine.optimizer_link import OptimizerLink
from gradwire.torch.engine.options import Options
from gradwire.torch.engine.pairing import (
    check_pairing,
    missing_in,
    warn_of_missing,
    warn_of_pairing,
)
from gradwire.torch.engine.parameter import ParameterSlot
from gradwire.torch.engine.scheduler import Scheduler
from gradwire.torch.engine.sharding import Shard, shard_of
from gradwire.torch.engine.warning import warn
from gradwire.torch.transport import RankTopology, Transport

if TYPE_CHECKING:
    from gradwire.codec import Codec

__all__ = ["attach_engine"]


def attach_engine(
    named: Mapping[str, torch.nn.Parameter],
    options: Options,
    transport: Transport,
    entry: GradientSource,
    *,
    sparse: set[int],
    share_of: ShareOf | None = None,
    whole: bool = True,
    bucket_nbytes: int | None = None,
    joining: Callable[[], bool] = bool,
    decide: Callable[..., AutoControl] | None = None,
    facts: Mapping[str, object] = NO_FACTS,
) -> Handle:
    """Compress the gradients of these parameters from now on. A collective.

    Parameters
    ----------
    named : mapping of str to torch.nn.ParameterSlot
        In the same order on all ranks.
    options : Options
    transport : Transport
        It is left if the call is refused.
    entry : GradientSource
    sparse : set of int
        The ids of parameters whose gradients are sparse.
    share_of : callable, optional
        Returns what this rank is given of a parameter's gradient, summed inside the node already.
        By default it is given all of it; with a `Hierarchy`, the node then divides it.
    whole : bool
        As in `Worker`.
    bucket_nbytes : int, optional
        Capacity of the buckets.
    joining : callable
        As in `Passes`.
    decide : callable, optional
        Makes what decides how buckets are averaged, of parameters by name, scheduler, passes,
        control, optimizer, and of the ranks that exchange gradients the number, and the channel if
        they are not all.
    facts : mapping of str to object
        What all ranks must agree on besides.

    Raises
    ------
    ValueError
        The ranks disagree, or options do not go together.
    ExchangeError
        The ranks could not be connected.
    """
    assignment, optimizer = options.assignment, options.optimizer
    join = functools.partial(connect, options, named, sparse, facts, share_of)
    try:
        connection = join(transport)
        options.check(named, whole=whole)
        place = connection.place
        rank = place.rank
        if place.shares > 1 and assignment.exchange.needs_whole_tensor:
            raise ValueError(
                f"{assignment.exchange!r} factors whole matrices, of which each rank of a node has "
                "some rows: use another codec, or leave the hierarchy out"
            )
        divides = place.shares > 1 or share_of is not None
        check_place(assignment.exchange, named.values(), divides=divides)
        dense = options.dense(named, sparse)
        divide = share_of or functools.partial(_divide, place)
        parameters = making.make(named, dense, assignment.of, rank, bucket_nbytes, divide)
        compressed = {each.name: each for each in parameters if each.state is not None}
        for codec, theirs in _by_codec(assignment, compressed):
            check_pairing(codec, optimizer, theirs)
        missing = missing_in(optimizer, named)
        scheduler = (
            AutoScheduler(
                options.schedule,
                compressed,
                measures=place.measures,
                owners=options.owners_of(place.size),
            )
            if options.adaptive
            else Scheduler(options.schedule, compressed, measures=place.measures)
        )
        warn_of_missing(missing, assignment.codecs)  # an error, if the program says so
        for codec in assignment.codecs:
            warn_of_pairing(codec, optimizer)
            if optimizer is None:
                break  # which is said once
        idle = "" if options.adaptive else options.idle(parameters, place)
        if idle:
            warn(idle, RuntimeWarning)
        entry.register()
    except BaseException:
        transport.leave()  # a refused call must not leak threads or sockets
        raise
    applying = None
    if optimizer is not None:
        applying = OptimizerLink(optimizer, list(compressed.values()), scaled=options.scaled)
    return Handle(
        options,
        parameters,
        scheduler,
        connection,
        join,
        entry=entry,
        whole=whole,
        applying=applying,
        joining=joining,
        decide=decide,
    )


def _divide(place: RankTopology, name: str, tensor: torch.Tensor) -> Shard | None:
    """Return this rank's share of a parameter; None if its node has no other rank."""
    return None if place.shares == 1 else shard_of(name, tensor, place.share, place.shares)


def _by_codec(
    assignment: Assignment, compressed: Mapping[str, ParameterSlot]
) -> "Iterator[tuple[Codec, list[ParameterSlot]]]":
    """Yield every codec with its parameters."""
    for codec in assignment.codecs:
        yield codec, [each for name, each in compressed.items() if assignment.of(name) == codec]
