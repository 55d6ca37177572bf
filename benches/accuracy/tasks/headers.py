"""A recurrent network on the C and C++ headers of the torch wheel."""

from torch import Tensor, nn

from .windows import Windows, octets, wheel

NARROW, WIDE = 128, 256


class HeadersNet(nn.Module):
    """An embedding of bytes, one LSTM layer, and a head: 0.49 M parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.byte = nn.Embedding(256, NARROW)
        self.layer = nn.LSTM(NARROW, WIDE, batch_first=True)
        self.head = nn.Linear(WIDE, 256)

    def forward(self, text: Tensor) -> Tensor:
        logits: Tensor = self.head(self.layer(self.byte(text))[0])
        return logits


class Headers(Windows):
    """Headers, one byte at a time: windows of 64, each from an empty state."""

    def __init__(self, held_out: int = 1024) -> None:
        super().__init__("the torch wheel's headers", wheel(".h"), octets, held_out=held_out)

    def new(self) -> nn.Module:
        return HeadersNet()
