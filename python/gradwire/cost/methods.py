"""Ways to average gradients: dense, or a codec with an exchange."""

import dataclasses
from typing import Self

from gradwire._validate import require
from gradwire.cost.calibration import Calibration, CodecCost
from gradwire.cost.exchanges import MODELS, PLAIN_RING, ExchangeModel, model_of
from gradwire.cost.network import Network, Payload, information_bits
from gradwire.exchange import Exchange

SLOT_SHARE = 1.0 / 64.0
SLOT_BYTES = 40.0
"""The room in a slot beyond the frame: a share of it, and bytes per tensor."""


@dataclasses.dataclass(frozen=True)
class Method:
    """A way to average gradients.

    Attributes
    ----------
    name : str
        Name of the method in tables.
    exchange : ExchangeModel
        How the ranks combine their values.
    value_bits : float
        Bits of a dense value, without a codec.
    cost : CodecCost or None
        Measured cost of the codec, if there is one.
    cast_seconds : float
        Seconds per entry of the casts around a dense exchange.
    clear_seconds : float
        Seconds per entry of clearing the tensor to decode into.
    own : bool
        Whether the exchange is the codec's own, which may depend on the number of ranks.
    """

    name: str
    exchange: ExchangeModel
    value_bits: float = 32.0
    cost: CodecCost | None = None
    cast_seconds: float = 0.0
    clear_seconds: float = 0.0
    own: bool = False

    @property
    def state_bytes(self) -> float:
        """Bytes of state per entry of the model."""
        return 0.0 if self.cost is None else self.cost.state_bytes

    def on(self, network: Network) -> Self:
        """Return the method with the exchange that `attach` uses on this network."""
        if self.cost is None or not self.own or network.node_size > 1:
            return self
        codec = self.cost.codec
        parts = codec.sparsify, codec.quantize, codec.memory
        part = codec.exchange.for_ranks(network.ranks, *parts)
        return dataclasses.replace(self, exchange=MODELS[part.kind])

    def payload(self, numel: int, frames: int = 1) -> Payload:
        """Return the payload of one rank for a bucket of ``frames`` tensors, each with a frame."""
        cost = self.cost
        if cost is None:
            return Payload.dense(numel, self.value_bits)
        entries = cost.share * numel
        bits = 0.0
        if cost.codec.sparsify.selects and not cost.codec.sparsify.shared and entries:
            bits = information_bits(numel, entries)
        values, header = cost.entry_bits, cost.header
        if self.exchange.slots:
            bits *= 1.0 + SLOT_SHARE
            values *= 1.0 + SLOT_SHARE
            header += SLOT_BYTES
        elif self.exchange.sums:
            # Values are summed in the quantizer's dtype; all other bits are of positions.
            summed = 16.0 if cost.codec.quantize.summed_as != "float32" else 32.0
            bits, values = bits + max(0.0, values - summed), summed
        return Payload(numel, entries, values, bits, header, frames)

    def encode_seconds(self, numel: int, ranks: int, frames: int = 1) -> float:
        """Return the seconds of encoding a bucket on one of ``ranks`` ranks that exchange it."""
        if ranks == 1:
            return 0.0
        if self.cost is None:
            return self.cast_seconds * numel
        share = self.cost.share
        return self.exchange.encodes(ranks) * self.cost.encode(numel, share * numel, frames)

    def decode_seconds(self, numel: int, ranks: int, frames: int = 1) -> float:
        """Return the seconds of decoding and averaging a bucket on one rank."""
        if ranks == 1 or self.cost is None:
            return 0.0
        times = self.exchange.decodes(ranks)
        pieces = self.exchange.pieces(ranks)
        entries = self.cost.share * numel
        once = self.cost.decode(numel, entries, 0)
        return times * once + pieces * frames * self.cost.decode.fixed + self.clear_seconds * numel


def fp32() -> Method:
    """Return plain DDP: an all-reduce of float32 in one ring of all ranks.

    Returns
    -------
    Method
    """
    return Method("fp32", PLAIN_RING)


def bf16(calibration: Calibration | None = None) -> Method:
    """Return torch's bfloat16 hook: casts, and an all-reduce of bfloat16 in one ring of all ranks.

    Parameters
    ----------
    calibration : Calibration, optional
        Has the measured time of the casts, which take none without it.

    Returns
    -------
    Method
    """
    cast = 0.0 if calibration is None else calibration.cast_seconds
    return Method("bf16", PLAIN_RING, 16.0, cast_seconds=cast)


def compressed(
    name: str, calibration: Calibration, exchange: Exchange | ExchangeModel | None = None
) -> Method:
    """Return a calibrated codec as a method, with its own exchange or another one.

    Its own exchange may depend on the number of ranks, as with `gradwire.exchange.ByRanks`:
    `predict` uses the one that `attach` would.

    Parameters
    ----------
    name : str
        Name of the codec in the calibration.
    calibration : Calibration
        The measured cost of the codec.
    exchange : gradwire.exchange.Exchange, optional
        The codec's own by default.

    Returns
    -------
    Method

    Raises
    ------
    ValueError
        The calibration has no such codec, or there is no model of the exchange.
    TypeError
        The exchange is none.
    """
    known = ", ".join(calibration.codecs) or "none"
    message = "the calibration has no codec {!r}, but {}: calibrate again"
    require(name in calibration.codecs, message, name, known)
    cost = calibration.codecs[name]
    is_own = exchange is None
    model = model_of(cost.codec.exchange if exchange is None else exchange)
    return Method(name, model, cost=cost, clear_seconds=calibration.clear_seconds, own=is_own)
