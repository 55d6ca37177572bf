"""Puts a codec, parameters and a transport together."""

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

import torch

from gradwire.torch.reducer import parameters as making
from gradwire.torch.reducer.adaptive import Adaptive
from gradwire.torch.reducer.applying import Applying
from gradwire.torch.reducer.assignment import Assignment
from gradwire.torch.reducer.attached import Entry
from gradwire.torch.reducer.connection import NO_FACTS, ShareOf, connect
from gradwire.torch.reducer.given import check_place
from gradwire.torch.reducer.handle import Handle
from gradwire.torch.reducer.options import Options
from gradwire.torch.reducer.pairing import (
    check_pairing,
    missing_in,
    warn_of_missing,
    warn_of_pairing,
)
from gradwire.torch.reducer.record import Parameter
from gradwire.torch.reducer.scheduling import Scheduler
from gradwire.torch.reducer.shares import Share, cut
from gradwire.torch.reducer.warning import warn
from gradwire.torch.transport import Place, Transport

if TYPE_CHECKING:
    from gradwire.codec import Codec

__all__ = ["assemble"]


def assemble(
    named: Mapping[str, torch.nn.Parameter],
    options: Options,
    transport: Transport,
    entry: Entry,
    *,
    sparse: set[int],
    share_of: ShareOf | None = None,
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
    share_of : callable, optional
        Returns what this rank is given of a parameter's gradient, summed inside the node already.
        By default it is given all of it; with a `Hierarchy`, the node then divides it.
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
            Adaptive(
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
        applying = Applying(optimizer, list(compressed.values()), scaled=options.scaled)
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
    )


def _divide(place: Place, name: str, tensor: torch.Tensor) -> Share | None:
    """Return this rank's share of a parameter; None if its node has no other rank."""
    return None if place.shares == 1 else cut(name, tensor, place.share, place.shares)


def _by_codec(
    assignment: Assignment, compressed: Mapping[str, Parameter]
) -> "Iterator[tuple[Codec, list[Parameter]]]":
    """Yield every codec with its parameters."""
    for codec in assignment.codecs:
        yield codec, [each for name, each in compressed.items() if assignment.of(name) == codec]
