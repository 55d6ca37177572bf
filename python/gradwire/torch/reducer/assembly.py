"""Puts a codec, parameters and a transport together."""

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

import torch

from gradwire.torch.reducer import parameters as making
from gradwire.torch.reducer.applying import Applying
from gradwire.torch.reducer.assignment import Assignment
from gradwire.torch.reducer.attached import Entry
from gradwire.torch.reducer.connection import NO_FACTS, connect
from gradwire.torch.reducer.handle import Handle
from gradwire.torch.reducer.options import Options
from gradwire.torch.reducer.pairing import check_pairing, warn_of_pairing
from gradwire.torch.reducer.record import Parameter
from gradwire.torch.reducer.scheduling import Scheduler
from gradwire.torch.transport import Transport

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
    assignment, optimizer = options.assignment, options.optimizer
    join = functools.partial(connect, options, named, sparse, facts)
    try:
        connection = join(transport)
        options.check(named, whole=whole)
        rank = connection.exchange.rank
        dense = options.dense(named, sparse)
        parameters = making.make(named, dense, assignment.of, rank, bucket_nbytes)
        compressed = {each.name: each for each in parameters if each.state is not None}
        for codec, theirs in _by_codec(assignment, compressed):
            check_pairing(codec, optimizer, theirs)
        scheduler = Scheduler(options.schedule, compressed, rank)
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


def _by_codec(
    assignment: Assignment, compressed: Mapping[str, Parameter]
) -> "Iterator[tuple[Codec, list[Parameter]]]":
    """Yield every codec with its parameters."""
    for codec in assignment.codecs:
        yield codec, [each for name, each in compressed.items() if assignment.of(name) == codec]
