"""Decisions of "auto" that are given, one after another; and how a model is averaged now."""

import contextlib
import itertools
from collections.abc import Iterable, Iterator
from typing import Any
from unittest import mock

from gradwire._auto import SETTINGS, Setting
from gradwire.torch.auto import controller

UNCOMPRESSED, BFLOAT16, CODEC = SETTINGS
EVERYTHING = "everything"
"""How a model is averaged in the last step with the codec, which leaves no residual."""


class Scripted:
    """Decides what it was told, at looks that come after every measured step, later every third."""

    keeps = False

    def __init__(self, setting: Setting, script: list[Setting], *, settled: bool) -> None:
        self.setting, self._script, self.settled = setting, script, settled
        self.seconds = dict.fromkeys(SETTINGS, 0.1)

    def look(self, seconds: float, elapsed: float) -> None:
        assert seconds > 0.0
        assert elapsed > 0.0
        if self._script:
            self.setting = self._script.pop(0)

    @property
    def due(self) -> int:
        return 1 if self._script else 3

    def leave_out(self, setting: Setting) -> None:
        self._script[:] = [each for each in self._script if each != setting]
        self.setting = UNCOMPRESSED if self.setting == setting else self.setting


@contextlib.contextmanager
def scripted(*settings: Setting, settled: bool = True) -> Iterator[None]:
    """Replace decisions by these, one after another; the last one stays.

    The first is made after three steps, each further one after three with the one before.
    """
    script = list(settings)
    with mock.patch.object(
        controller, "Decider", lambda _, setting: Scripted(setting, script, settled=settled)
    ):
        yield


def ratios(handle: Any) -> dict[str, Any]:
    """What each compressed parameter is sent with now; None where it is dense."""
    return {
        name: None if each.paused else each.codec.sparsify.ratio
        for name, each in handle._parameters.items()
        if each.state is not None
    }


def mode_of(handle: Any) -> str:
    """How the model is averaged now."""
    return str(handle._scheduler.mode)


def phases(every: Iterable[Any]) -> list[Any]:
    """What follows what."""
    return [each for each, _ in itertools.groupby(every)]
