"""A transformer of ten million parameters on the sources and headers of the torch wheel."""

from torch import nn

from benches.harness.text import TextNet

from .windows import Windows, octets, wheel


class Code(Windows):
    """Python and C++, one byte at a time: eight windows of 128."""

    def __init__(self, held_out: int = 256) -> None:
        data, texts = "the torch wheel's Python sources and headers", wheel(".py", ".h")
        super().__init__(data, texts, octets, batch=8, length=128, held_out=held_out)

    def new(self) -> nn.Module:
        """Return six blocks of width 384 with six heads: 10.9 M parameters."""
        return TextNet(self.length, width=384, heads=6, depth=6, alphabet=256)
