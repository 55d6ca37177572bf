"""The text task, which ``make demo`` has with less held-out text."""

from torch import nn

from benches.harness.text import TextNet, characters, python_sources

from .windows import Windows

HELD_OUT = 1024


class Text(Windows):
    """A character-level transformer on Python source code: windows of 64 characters."""

    def __init__(self, **options: int) -> None:
        data = "the Python standard library's top-level modules"
        super().__init__(data, python_sources(), characters, **{"held_out": HELD_OUT, **options})

    def new(self) -> nn.Module:
        return TextNet(self.length)
