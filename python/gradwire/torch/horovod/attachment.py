"""Makes an optimizer distributed, after checking its arguments on all ranks."""

import os
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import torch
from torch.optim import Optimizer

from gradwire import _validate
from gradwire.schedule import Schedule
from gradwire.torch.engine.attach import attach_engine
from gradwire.torch.engine.config import Codecs, GradScaler, Options
from gradwire.torch.engine.consensus import checksum
from gradwire.torch.engine.pairing import check_optimizer, default_codec
from gradwire.torch.engine.parameter import plain_names
from gradwire.torch.horovod.broadcasting import process_set_of
from gradwire.torch.horovod.buckets import BUCKET, form
from gradwire.torch.horovod.optimizer import Distributed, wrap
from gradwire.torch.horovod.source import HorovodSource, Settings
from gradwire.torch.transport.horovod import HorovodTransport, check_initialized, library


def DistributedOptimizer(  # as Horovod's
    optimizer: Optimizer,
    named_parameters: Iterable[tuple[str, torch.nn.Parameter]] | None = None,
    *,
    backward_passes_per_step: int = 1,
    op: Any = library.Average,
    groups: int | None = None,
    sparse_as_dense: bool = False,
    process_set: Any = None,
    codec: Codecs | None = None,
    schedule: Schedule | None = None,
    grad_scaler: GradScaler | None = None,
    min_numel: int = 1024,
    min_ndim: int = 1,
    low_memory: bool | None = None,
    timeout: timedelta | None = None,
) -> Any:
    """Average the gradients of an optimizer over all ranks of Horovod, compressed by a codec.

    Replaces ``hvd.DistributedOptimizer``. Gradients are exchanged
    in buckets during the backward pass, each by one all-gather of frames, in the same order on all
    ranks; ``step()`` waits for them. Entries that are not sent stay in residuals, which
    ``optimizer.handle`` saves and restores. A collective: call it on every rank of the process set.
    In an elastic run it is not a collective: `ElasticState` attaches the codec.

    Parameters
    ----------
    optimizer : torch.optim.Optimizer
        Any but LBFGS. It is not changed; the result shares groups and state with it.
    named_parameters : iterable of (str, torch.nn.Parameter), optional
        Names of all parameters of the optimizer, by which residuals are saved: usually
        ``model.named_parameters()``. Numbered by default.
    backward_passes_per_step : int
        Backward passes whose gradients add up before they are exchanged.
    op : horovod.ReduceOp
        ``hvd.Average`` or ``hvd.Sum``.
    groups : int, optional
        Number of groups of parameters that are exchanged together. By default, buckets of 25 MiB.
    sparse_as_dense : bool
        Exchange sparse gradients as dense ones, compressed by the codec. Otherwise they are
        exchanged as they are.
    process_set : horovod.torch.ProcessSet, optional
        Average over these ranks only. On other ranks the result is a plain optimizer.
    codec : gradwire.Codec, str, or mapping of str to (gradwire.Codec, str or None), optional
        As in `gradwire.torch.ddp.attach`, but not ``"auto"``; as are ``schedule``,
        ``grad_scaler``, ``min_numel``, ``min_ndim`` and ``low_memory``.
    timeout : datetime.timedelta, optional
        How long to wait for other ranks. By default forever, as Horovod does, which detects dead
        ranks.

    Returns
    -------
    torch.optim.Optimizer
        An optimizer of a class derived from that of ``optimizer``, with ``synchronize``,
        ``skip_synchronize``, ``set_backward_passes_per_step`` and ``handle``, a
        `gradwire.torch.ddp.Handle`.

    Raises
    ------
    TypeError, ValueError
        Arguments are invalid, incompatible, or differ between the ranks; or Horovod is not
        initialized.
    ExchangeError
        A rank was lost during the call.

    Warns
    -----
    PairingWarning
        The optimizer costs accuracy with this codec.
    """
    check_initialized()
    _check_kind(optimizer)
    passes = _validate.integer("backward_passes_per_step", backward_passes_per_step, low=1)
    _validate.timeout(timeout)
    members = process_set_of(process_set)
    named = _named(optimizer, named_parameters)
    if os.environ.get("HOROVOD_ELASTIC") == "1" and members is not library.global_process_set:
        raise ValueError("process_set= does not work in an elastic run, whose sets change")
    wrapped = wrap(optimizer)
    options = Options(
        codec=default_codec(optimizer) if codec is None else codec,
        optimizer=wrapped,
        schedule=schedule,
        grad_scaler=grad_scaler,
        min_numel=min_numel,
        min_ndim=min_ndim,
        low_memory=low_memory,
    )
    if op not in (library.Average, library.Sum):
        raise ValueError(f"op must be hvd.Average or hvd.Sum, got {op!r}")
    if op == library.Sum and any(each.memory.updates for each in options.assignment.codecs):
        raise ValueError("op=hvd.Sum would add up the steps that this codec sends: use hvd.Average")
    settings = Settings(
        named=named,
        buckets=form(named, groups),
        options=options,
        passes_per_step=passes,
        op=op,
        sparse_as_dense=_validate.boolean("sparse_as_dense", sparse_as_dense),
        process_set=members,
        timeout=timeout,
    )
    wrapped._settings = settings
    # Where ranks may join at any time, only ElasticState.sync() brings all of them together.
    if members.included() and os.environ.get("HOROVOD_ELASTIC") != "1":
        attach(wrapped, settings)
    return wrapped


def attach(optimizer: Distributed, settings: Settings) -> None:
    """Attach the codec to a distributed optimizer. A collective."""
    transport = HorovodTransport(settings.process_set, settings.timeout)
    entry = HorovodSource(settings, transport)
    places = {id(each): at for at, each in enumerate(settings.named.values())}
    optimizer.handle = attach_engine(
        settings.named,
        settings.options,
        transport,
        entry,
        sparse=set(),
        bucket_nbytes=BUCKET,
        facts={
            "backward_passes_per_step": settings.passes_per_step,
            "op": int(settings.op),
            "groups": checksum([[places[id(each)] for each in one] for one in settings.buckets]),
            "sparse_as_dense": settings.sparse_as_dense,
        },
    )
    optimizer._entry = entry


def _check_kind(optimizer: object) -> None:
    """Raise a TypeError or ValueError for an optimizer that cannot be distributed."""
    check_optimizer(optimizer)
    if isinstance(optimizer, torch.optim.LBFGS):
        raise TypeError("LBFGS decides by this rank's own loss how often it computes gradients")
    theirs = type(optimizer).__module__ == library.DistributedOptimizer.__module__
    if theirs and not isinstance(optimizer, Distributed):
        raise ValueError("hvd.DistributedOptimizer has wrapped this optimizer: pass the original")


def _named(
    optimizer: Optimizer, given: Iterable[tuple[str, torch.nn.Parameter]] | None
) -> dict[str, torch.nn.Parameter]:
    """Return the parameters of an optimizer by name, in the order of the names.

    Further names are allowed; of two names of a parameter, the first counts. Raises a ValueError if
    one has no name, or none of its own. By default, parameters are numbered.
    """
    parameters = [each for group in optimizer.param_groups for each in group["params"]]
    if given is None:
        return {f"parameter{at}": each for at, each in enumerate(parameters)}
    names: dict[int, str] = {}
    for name, each in dict(given).items():
        names.setdefault(id(each), name)
    known = {id(each): each for each in parameters}
    if missing := [tuple(each.shape) for each in parameters if id(each) not in names]:
        raise ValueError(
            f"named_parameters= lacks {len(missing)} parameters of the optimizer, of the shapes "
            f"{missing[:6]}: pass model.named_parameters() of all models that it trains, each with "
            "names of its own"
        )
    return plain_names({name: known[key] for key, name in names.items() if key in known})
