"""Frames are exchanged: gathered by all ranks, or cut by ranges and summed by their owners."""

import dataclasses
from typing import ClassVar, Literal

from gradwire.exchange.base import Exchange
from gradwire.extension import Quantizer as ExternalQuantizer
from gradwire.memory.base import Memory
from gradwire.quantize.base import Quantizer
from gradwire.sparsify.base import Sparsifier
from gradwire.sparsify.thresholds import TwoSided


@dataclasses.dataclass(frozen=True, repr=False)
class AllGather(Exchange):
    """Every rank receives the frames of all ranks and decodes them in rank order.

    Works with every codec. The bytes that a rank receives grow with the number of ranks.

    Parameters
    ----------
    mean : {"ranks", "senders"}
        Divisor of the sum at each position: the number of ranks, or of those that sent an entry
        there. The mean over ranks is the mean of the gradients and conserves them: applied values
        plus residuals equal the input. The mean over senders makes a larger step where few ranks
        sent an entry, by up to the number of ranks. Parameters that are sent uncompressed are
        always averaged over ranks.

    References
    ----------
    Lin, Han, Mao, Wang, Dally, "Deep Gradient Compression: Reducing the Communication Bandwidth
    for Distributed Training", ICLR 2018: over ranks.

    Peng, Quesnelle, Kingma, "DeMo: Decoupled Momentum Optimization", arXiv 2411.19870: senders.
    """

    mean: Literal["ranks", "senders"] = "ranks"
    kind: ClassVar[str] = "all_gather"
    gathers_frames: ClassVar[bool] = True
    divides: ClassVar[bool] = False

    @property
    def means_senders(self) -> bool:
        """Whether ``mean`` says so."""
        return self.mean == "senders"

    def check(self, sparsify: Sparsifier, quantize: Quantizer, memory: Memory) -> None:
        """Accept every codec, but for means over senders, which are not those of estimates."""
        if memory.estimates and self.means_senders:
            raise ValueError(
                f"{memory!r} needs the mean over all ranks: use gradwire.exchange.AllGather(mean="
                '"ranks")'
            )


@dataclasses.dataclass(frozen=True, repr=False)
class Owners(Exchange):
    """The base class of exchanges in which each rank owns a range, and encodes its sums."""

    gathers_frames: ClassVar[bool] = False
    divides: ClassVar[bool] = True

    def check_quantizer(self, quantize: Quantizer) -> None:
        """Raise a ValueError for a quantizer from another package, whose codes cannot be cut."""
        if isinstance(quantize, ExternalQuantizer):
            raise ValueError(
                f"{type(self).__name__} splits frames without decoding their values, and cannot "
                f"split those of {type(quantize).__name__}, which comes from another package; use "
                "exchange=gradwire.exchange.AllGather()"
            )


@dataclasses.dataclass(frozen=True, repr=False)
class ReduceScatter(Owners):
    """Every rank sums the entries of a range of positions, and sends the largest sums to all ranks.

    The entries of a bucket are divided among N ranks. A rank's frames are cut by range, without
    decoding a value, and the parts are sent to their owners. Each owner sums the parts, in rank
    order and float32; adds its own residual there, which no frame has; selects the largest sums,
    three for two entries that a rank sent there on average; encodes them with the codec's
    quantizer; and sends them to all ranks. If all entries are requested, as by a ratio of 1, all
    sums are sent. Sums that are not selected, and rounding errors, go into the
    owner's residual: as with `AllGather`, N times the applied values plus the residuals of all
    ranks equal the input, exactly for float32 values except for the rounding of sums.

    With k entries a rank, k go out and 1.2 k come in, whatever the number of ranks, in four
    successive messages: see docs/exchanges-inside.md.

    The codec needs a memory with a residual: not `gradwire.memory.NoMemory`.
    """

    kind: ClassVar[str] = "reduce_scatter"

    def check(self, sparsify: Sparsifier, quantize: Quantizer, memory: Memory) -> None:
        """Refuse to send every entry, values that cannot be cut, and sums that nothing keeps."""
        if not sparsify.selects:
            raise ValueError(
                "ReduceScatter needs a sparsifier that selects entries, and "
                f"{type(sparsify).__name__} sends every entry; use "
                "exchange=gradwire.exchange.QuantizedAllReduce(), AllReduce() or AllGather()"
            )
        self.check_quantizer(quantize)
        if not memory.keeps:
            raise ValueError(
                "ReduceScatter keeps a part of the sums in residuals of their owners, but "
                f"{memory!r} has none; use memory=gradwire.memory.Residual(), or "
                "exchange=gradwire.exchange.AllGather()"
            )


@dataclasses.dataclass(frozen=True, repr=False)
class QuantizedAllReduce(Owners):
    """Every rank sums a range of quantized entries, quantizes the sums, and sends them to all.

    As `ReduceScatter`, but owners send all of the sums. Codes and scales are cut unchanged, and the
    sums are encoded with new scales; applied values and residuals again equal the input, except for
    the rounding of sums. Without a memory (`gradwire.memory.NoMemory`) the rounding errors of both
    quantizations are dropped. The second one has its own random numbers, from the quantizer's seed,
    the tensor, the step and the owner, so that its error is independent of the first one's and,
    with an unbiased quantizer, has mean zero. Sums are quantized again, not means. A quantizer of a
    fixed range (`gradwire.quantize.Float16` with ``scaled=False``, `gradwire.quantize.Float8` with
    ``block=None``) saturates there at averages N times smaller. A residual keeps the excess for
    later; without one such a codec is refused.

    Whatever the number of ranks, a rank sends 2 (N - 1) / N frames, and decodes two, in four
    successive messages: see docs/exchanges-inside.md.

    For codecs that send every entry, and for `gradwire.adaptive`, whose owners send as many of the
    sums as with `ReduceScatter`.

    References
    ----------
    Dryden, Moon, Jacobs, Van Essen, "Communication Quantization for Data-Parallel Training of Deep
    Neural Networks", MLHPC 2016, section III: a reduce-scatter of slices of columns that each rank
    quantizes once, and an all-gather of the sums, quantized once more.
    """

    kind: ClassVar[str] = "quantized_all_reduce"

    def check(self, sparsify: Sparsifier, quantize: Quantizer, memory: Memory) -> None:
        """Refuse selections but `gradwire.sparsify.TwoSided`, and ranges that sums would exceed."""
        if sparsify.selects and not isinstance(sparsify, TwoSided):
            raise ValueError(
                "QuantizedAllReduce is for codecs that send every entry, and "
                f"{type(sparsify).__name__} selects some; use "
                "exchange=gradwire.exchange.ReduceScatter(), or AllGather()"
            )
        self.check_quantizer(quantize)
        if quantize.largest is None or memory.keeps:
            return
        raise ValueError(
            f"QuantizedAllReduce quantizes the sums of all ranks, and {quantize!r} saturates at "
            f"{quantize.largest:g} without a scale: with N ranks at averages above "
            f"{quantize.largest:g} / N, and {memory!r} does not keep what is cut off; use a "
            "quantizer that scales (Float16(), or Float8 with block=256), "
            "memory=gradwire.memory.Residual(), or exchange=gradwire.exchange.AllGather()"
        )


def owners_for(sparsify: Sparsifier, quantize: Quantizer, memory: Memory) -> Owners | None:
    """Return the reduce-scatter that suits these parts of a codec, if there is one."""
    part = ReduceScatter() if sparsify.selects else QuantizedAllReduce()
    try:
        part.check(sparsify, quantize, memory)
    except ValueError:
        return None
    return part


@dataclasses.dataclass(frozen=True, repr=False)
class ByRanks(Exchange):
    """The default: an all-gather among few ranks; from eight on, a reduce-scatter if possible.

    `attach` decides once it knows how many ranks exchange gradients. Among fewer than eight it is
    `AllGather`. From eight on it is `ReduceScatter` for a codec that selects entries, and
    `QuantizedAllReduce` for one that sends all of them. It stays `AllGather` where these are not
    possible: with a codec that they refuse, in a hierarchy, with FSDP2 and Horovod. Everything but
    `attach`, such as `gradwire.torch.all_reduce`, always gathers.

    docs/exchanges.md says why eight. States and frames are the same, so a checkpoint of one can be
    resumed with the other.
    """

    kind: ClassVar[str] = "by_ranks"
    gathers_frames: ClassVar[bool] = True
    divides: ClassVar[bool] = False
    MANY: ClassVar[int] = 8
    """Least number of ranks for owners."""

    def check(self, sparsify: Sparsifier, quantize: Quantizer, memory: Memory) -> None:
        """Accept every codec."""

    def for_ranks(
        self, ranks: int, sparsify: Sparsifier, quantize: Quantizer, memory: Memory
    ) -> Exchange:
        """Return the exchange of a codec with these parts among ``ranks`` ranks."""
        owners = owners_for(sparsify, quantize, memory) if ranks >= self.MANY else None
        return owners or AllGather()
