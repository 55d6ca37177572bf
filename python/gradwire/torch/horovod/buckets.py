"""Which gradients are exchanged together: groups as Horovod's, or buckets of a size."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

__all__ = ["BUCKET", "form"]

BUCKET = 25 << 20
"""Bytes of a bucket without ``groups=``: encoding one overlaps the exchange of the previous one."""


def form(named: Mapping[str, torch.Tensor], groups: object) -> list[list[torch.Tensor]]:
    """Return the parameters in buckets of one dtype and device each, in the order of exchange.

    That is the order in which gradients become ready: the last parameter comes first.

    Parameters
    ----------
    named : mapping of str to torch.Tensor
        In the same order on all ranks.
    groups : int, list of list of torch.Tensor, or None
        As in Horovod: their number, or the groups; others are groups of their own. None for buckets
        of up to 25 MiB.

    Raises
    ------
    TypeError, ValueError
        They are neither.
    """
    every = list(named.values())
    if groups is None:
        found = _sized(every)
    elif isinstance(groups, list):
        found = _given(every, groups)
    elif isinstance(groups, int) and not isinstance(groups, bool) and groups > 0:
        length = -(-len(every) // groups)
        found = [every[at : at + length] for at in range(0, len(every), length)]
    else:
        raise ValueError(
            "groups= takes a positive number of groups, or a list of lists of parameters, got "
            f"{groups!r}"
        )
    place = {id(each): at for at, each in enumerate(every)}
    ordered = [sorted(group, key=lambda each: place[id(each)]) for group in found if group]
    ordered.sort(key=lambda group: -place[id(group[-1])])
    return [bucket for group in ordered for bucket in _alike(group)]


def _sized(every: Iterable[torch.Tensor]) -> list[list[torch.Tensor]]:
    """Fill buckets from the end of the model."""
    found: list[list[torch.Tensor]] = []
    room = 0
    for each in reversed(list(every)):
        if not found or room < each.nbytes:
            found.append([])
            room = BUCKET
        found[-1].append(each)
        room -= each.nbytes
    return found


def _given(every: Sequence[torch.Tensor], groups: Sequence[Any]) -> list[list[torch.Tensor]]:
    known = {id(each) for each in every}
    seen: set[int] = set()
    for group in groups:
        if not isinstance(group, list | tuple):
            raise TypeError(
                "groups= must consist of lists of parameters, got a "
                f"{type(group).__name__} in place of a list"
            )
        for each in group:
            if not isinstance(each, torch.Tensor):
                raise TypeError(
                    f"groups= must consist of lists of parameters, got the {type(each).__name__} "
                    f"{each!r}"
                )
            if id(each) in seen:
                raise ValueError("a parameter can only be in one of groups=")
            seen.add(id(each))
    found = [[each for each in group if id(each) in known] for group in groups]
    return found + [[each] for each in every if id(each) not in seen]


def _alike(group: Iterable[torch.Tensor]) -> list[list[torch.Tensor]]:
    """Divide a group by dtype and device, of which a buffer has one."""
    found: dict[tuple[torch.dtype, torch.device], list[torch.Tensor]] = {}
    for each in group:
        found.setdefault((each.dtype, each.device), []).append(each)
    return list(found.values())
