"""The names of an optimizer's parameters."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from gradwire.torch.engine.parameter import plain_names

__all__ = ["name_all"]


def name_all(
    parameters: list[torch.nn.Parameter], named: Iterable[tuple[str, torch.nn.Parameter]] | None
) -> dict[str, torch.nn.Parameter]:
    """Return the parameters of an optimizer by name, in the order of the names.

    Parameters
    ----------
    parameters : list of torch.nn.Parameter
    named : iterable of (str, torch.nn.Parameter), optional
        Names of these and perhaps more parameters. By default they are numbered.

    Raises
    ------
    ValueError, TypeError
        A name is missing or not unique.
    """
    if named is None:
        return {f"parameter{at}": each for at, each in enumerate(parameters)}
    given: list[Any] = []
    if isinstance(named, Iterable):
        given = list(named.items() if isinstance(named, Mapping) else named)
    pairs = all(isinstance(each, tuple) and len(each) == 2 for each in given)
    if not isinstance(named, Iterable) or not pairs:
        raise TypeError(
            "named_parameters= takes pairs of a name and a parameter, such as "
            f"model.named_parameters(), got {_described(given or named)}"
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


def _described(given: object) -> str:
    if isinstance(given, list):
        return f"a {type(given[0]).__name__} in place of a pair"
    return f"a {type(given).__name__}"
