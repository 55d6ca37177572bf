"""Checks the arguments shared with Horovod's optimizer, and rejects unsupported ones."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch.optim import Optimizer

from gradwire import _validate
from gradwire.torch.engine.pairing import check_optimizer
from gradwire.torch.engine.parameter import plain_names
from gradwire.torch.horovod.optimizer import Distributed
from gradwire.torch.transport.horovod import library


def check_optimizer_kind(optimizer: object) -> Optimizer:
    """Return the optimizer, unless it cannot be distributed: then raise TypeError or ValueError."""
    if optimizer is None:
        raise TypeError("DistributedOptimizer() takes a torch.optim.Optimizer, got None")
    check_optimizer(optimizer)
    assert isinstance(optimizer, Optimizer)
    if isinstance(optimizer, torch.optim.LBFGS):
        raise TypeError(
            "LBFGS is not supported: it decides by this rank's own loss how often it computes "
            "gradients, which must be the same on all ranks"
        )
    theirs = type(optimizer).__module__ == library.DistributedOptimizer.__module__
    if theirs and not isinstance(optimizer, Distributed):
        raise ValueError(
            "hvd.DistributedOptimizer has already wrapped this optimizer: pass the original one"
        )
    return optimizer


def check_compression(compression: object) -> None:
    """Raise a ValueError for another compression than the codec's."""
    if compression is not None and compression is not library.Compression.none:
        raise ValueError(
            f"compression={compression!r} is not supported, because codec= says how values are "
            "sent; for Compression.fp16 pass "
            "codec=gradwire.dense(quantize=gradwire.quantize.Float16())"
        )


def check_op(op: object, predivide: object, *, updates: bool) -> None:
    """Raise a ValueError for an unsupported ``op``; with ``updates`` the codec sends steps."""
    if op is library.Adasum or op == library.Adasum:
        raise ValueError(
            "op=hvd.Adasum is not supported: it projects whole gradients onto each other, but a "
            "codec sends only a part; use hvd.Average"
        )
    if op not in (library.Average, library.Sum):
        raise ValueError(f"op must be hvd.Average or hvd.Sum, got {op!r}")
    if op == library.Sum and updates:
        raise ValueError(
            "op=hvd.Sum does not work with a codec that sends steps: with N ranks, their sum would "
            "be N times too large; use hvd.Average"
        )
    factor = _validate.positive("gradient_predivide_factor", predivide)
    if factor != 1.0 and op != library.Average:
        raise ValueError("gradient_predivide_factor is only for op=hvd.Average")


def process_set_of(process_set: Any) -> Any:
    """Return the process set, by default of all ranks; raise if Horovod does not know it."""
    if process_set is None:
        return library.global_process_set
    if not isinstance(process_set, library.ProcessSet):
        raise TypeError(f"process_set= takes a hvd.ProcessSet, got {process_set!r}")
    if process_set.process_set_id is None:
        raise ValueError(
            f"Horovod does not know the {process_set}: pass it to hvd.init(process_sets=[...]), or "
            "to hvd.add_process_set()"
        )
    return process_set


def name_all(
    parameters: list[torch.nn.Parameter], named: Iterable[tuple[str, torch.nn.Parameter]] | None
) -> dict[str, torch.nn.Parameter]:
    """Return the parameters of an optimizer by name, in the order of the names.

    Further names are allowed. Raises a ValueError if a name is missing or occurs twice, a TypeError
    if these are not pairs. By default, parameters are numbered.
    """
    if named is None:
        return {f"parameter{at}": each for at, each in enumerate(parameters)}
    given: list[Any] = []
    if isinstance(named, Iterable):
        given = list(named.items() if isinstance(named, Mapping) else named)
    pairs = all(isinstance(each, tuple) and len(each) == 2 for each in given)
    if not isinstance(named, Iterable) or not pairs:
        kind = type(given[0] if given else named).__name__
        raise TypeError(
            "named_parameters= takes pairs of a name and a parameter, such as "
            f"model.named_parameters(), got a {kind}{' in place of a pair' if given else ''}"
        )
    names = [name for name, _ in given]
    if len(set(names)) < len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise ValueError(f"names of parameters must be unique, got these more than once: {twice}")
    wanted = {id(each) for each in parameters}
    missing = wanted - {id(each) for _, each in given}
    if missing:
        shapes = [tuple(each.shape) for each in parameters if id(each) in missing]
        raise ValueError(
            f"named_parameters= lacks {len(missing)} parameters of the optimizer, of the shapes "
            f"{shapes[:6]}: pass model.named_parameters() of all models that it trains"
        )
    found: dict[str, torch.nn.Parameter] = {}
    for name, each in given:
        if id(each) in wanted:
            wanted.remove(id(each))  # of two names, the first counts
            found[name] = each
    return plain_names(found)
