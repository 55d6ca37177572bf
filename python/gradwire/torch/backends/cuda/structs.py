"""The structs of ``csrc/bucket/piece.h``, and their contents for a codec's parts."""

import ctypes as c
from typing import Any

from gradwire import memory, quantize, sparsify
from gradwire._codec import Codec

# Those with kernels, and their ids in frames.
_FIRST = ("all", "threshold", "topk", "sid", "sampled_topk", "chunk_topk")
SPARSIFIERS = {name: number for number, name in enumerate(_FIRST)} | {"random_k": 8, "custom": 11}
DISTRIBUTIONS = ("exponential", "pareto")
MODES = ("fixed", "paper", "adaptive", "tracking")
MEMORIES = ("none", "residual", "low_pass", "momentum_correction", "adam_correction")
INDICES = ("auto", "elias-fano", "rice", "bitmap")
QUANTIZERS = (
    *("float32", "bfloat16", "float16", "float16_scaled", "float8_e5m2", "float8_e4m3", "uniform"),
    *("sign_scale", "two_means", "ternary", "codebook", "exponent"),
)
CHUNKS = 1  # a pattern of positions: so many of each chunk, whoever selects them
STATUS = ("ok", "non_finite", "limit", "unsupported", "skipped", "positions")


def _fields(**types: Any) -> list[tuple[str, Any]]:
    return list(types.items())


class Sparsify(c.Structure):
    """Options of the sparsifier: how entries are selected."""

    _fields_ = _fields(
        kind=c.c_uint32,
        counted=c.c_uint32,
        ratio=c.c_double,
        k=c.c_uint64,
        threshold=c.c_float,
        banded=c.c_uint32,
        band_low=c.c_double,
        band_high=c.c_double,
        chunk=c.c_uint32,
        tile_rows=c.c_uint32,
        tile_columns=c.c_uint32,
        width=c.c_uint32,
        first_ratio=c.c_double,
        distribution=c.c_uint32,
        mode=c.c_uint32,
        start_stages=c.c_uint32,
        most_stages=c.c_uint32,
        sample_ratio=c.c_double,
        upper=c.c_double,
        lower=c.c_double,
        strided=c.c_uint32,
        resample=c.c_uint32,
        seed=c.c_uint64,
        run=c.c_uint32,
        scaled=c.c_uint32,
    )


class Memory(c.Structure):
    """Options of the memory, for entries that are not sent."""

    _fields_ = _fields(
        kind=c.c_uint32,
        decay=c.c_float,
        beta=c.c_float,
        momentum=c.c_float,
        nesterov=c.c_uint32,
        masking=c.c_uint32,
        clips=c.c_uint32,
        clip=c.c_float,
        beta2=c.c_double,
        eps=c.c_double,
        narrow=c.c_uint32,
        seed=c.c_uint64,
    )


class Quantize(c.Structure):
    """Options of the quantizer: how values are coded."""

    _fields_ = _fields(
        kind=c.c_uint8,
        bits=c.c_uint8,
        magnitude=c.c_uint8,
        norm=c.c_uint8,
        stochastic=c.c_bool,
        block=c.c_uint32,
        clip=c.c_float,
        seed=c.c_uint64,
    )


class Pattern(c.Structure):
    """The regular pattern of positions, if they are known beforehand."""

    _fields_ = _fields(kind=c.c_uint32, size=c.c_uint32, k=c.c_uint32)


class Maybe(c.Structure):
    """An optional number."""

    _fields_ = _fields(value=c.c_float, there=c.c_uint32)


class Controller(c.Structure):
    """The learned state of SIDCo's controller."""

    _fields_ = _fields(
        stages=c.c_uint32,
        seen=c.c_uint32,
        misses=c.c_uint32,
        rest=c.c_uint32,
        rests=c.c_uint32,
        unused=c.c_uint32,
        last=c.c_double,
        sum=c.c_double,
        aim=c.c_double,
    )


class Tracker(c.Structure):
    """The state that a sparsifier keeps between steps."""

    _fields_ = _fields(bound=Maybe, threshold=Maybe, location=Maybe, controller=Controller)


class Tracked(c.Structure):
    """A `Tracker`, and the sparsifier that it belongs to."""

    _fields_ = _fields(sparsify=Sparsify, tracker=Tracker)


class State(c.Structure):
    """The mutable state of a tensor, without its buffers."""

    _fields_ = _fields(
        step=c.c_uint64,
        tensor=c.c_uint64,
        stream=c.c_uint64,
        moment_steps=c.c_uint64,
        rate=c.c_double,
        current=c.c_uint32,
        undoable=c.c_uint32,
        tracked=Tracked,
        previous=Tracked,
        previous_moment_steps=c.c_uint64,
    )


class Piece(c.Structure):
    """One tensor of a bucket."""

    _fields_ = _fields(
        gradient=c.c_void_p,
        numel=c.c_uint64,
        residual=c.c_void_p * 2,
        moment=c.c_void_p * 2,
        state=c.c_void_p,
        frame=c.c_void_p,
        limit=c.c_uint64,
        dtype=c.c_uint32,
        indices=c.c_uint32,
        memory=Memory,
        sparsify=Sparsify,
        quantize=Quantize,
        pattern=Pattern,
        given=c.c_uint32,
        may_trim=c.c_uint32,
        support=c.c_void_p,
        support_count=c.c_uint64,
        named=c.c_uint32,
    )


class Selection(c.Structure):
    """The entries selected of a tensor, and the result of its encode."""

    _fields_ = _fields(
        status=c.c_uint32,
        zero=c.c_uint32,
        count=c.c_uint64,
        target=c.c_uint64,
        trimmed=c.c_uint64,
        nbytes=c.c_uint64,
        bad_count=c.c_uint64,
        bad_first=c.c_uint64,
        has_target=c.c_uint32,
        threshold=c.c_float,
        magnitude=c.c_float,
        peak=c.c_uint32,
        divisor=c.c_float,
        rounding_key=c.c_uint64,
        selection_key=c.c_uint64,
        positions=c.c_void_p,
        values=c.c_void_p,
        tracker=Tracker,
    )


def has_kernels(codec: Codec) -> bool:
    """Tell whether the structs can represent the parts of a codec."""
    return (
        codec.sparsify.kind in SPARSIFIERS
        # A gamma distribution is fitted by the host alone.
        and getattr(codec.sparsify, "distribution", None) in (None, *DISTRIBUTIONS)
        and codec.memory.kind in MEMORIES
        # The kernels keep second moments in float32 only.
        and not (codec.memory.updates and getattr(codec.memory, "low_memory", False))
        and coding_of(codec.quantize) in QUANTIZERS
    )


def sparsify_of(part: sparsify.Sparsifier) -> Sparsify:
    """Return the options of a sparsifier; the caller fills in the stages of a controller."""
    out = Sparsify(kind=SPARSIFIERS[part.kind])
    options = part.get_config()
    for name in (
        *("ratio", "threshold", "first_ratio", "sample_ratio", "upper", "lower"),
        *("strided", "resample", "seed", "scaled"),
    ):
        if options.get(name) is not None:
            setattr(out, name, options[name])
    if options.get("k") is not None:
        out.k, out.counted = options["k"], part.kind != "chunk_topk"
    if options.get("band") is not None:
        out.banded = 1
        out.band_low, out.band_high = options["band"]
    if part.kind == "chunk_topk":
        out.chunk = options["chunk"]
        if options["tile"] is not None and options["columns"] is not None:
            out.tile_rows, out.tile_columns = options["tile"]
            out.width = options["columns"]
    if part.kind == "sid":
        out.distribution = DISTRIBUTIONS.index(options["distribution"])
        fixed = isinstance(options["stages"], int)
        out.mode = 0 if fixed else MODES.index(options["stages"])
    if part.kind == "random_k":
        out.run = options["block"]
    return out


def memory_of(part: memory.Memory) -> Memory:
    """Return the options of a memory."""
    out = Memory(kind=MEMORIES.index(part.kind))
    for name, value in part.for_optimizer({}).get_config().items():
        if name == "clip":
            out.clips, out.clip = value is not None, value or 0.0
        elif name == "low_memory":
            out.narrow = value
        elif name != "kind":
            setattr(out, name, value)
    return out


def quantize_of(part: quantize.Quantizer) -> Quantize:
    """Return the options of a quantizer."""
    options = part.get_config()
    out = Quantize(kind=QUANTIZERS.index(coding_of(part)), seed=options.get("seed", 0))
    out.bits = options.get("bits", 0)
    out.stochastic = options.get("rounding") == "stochastic"
    out.block = options.get("block") or options.get("column") or 0
    out.clip = options.get("clip") or 0.0
    out.norm = options.get("norm") == "max"
    out.magnitude = {"mean": 0, "rms": 1}.get(options.get("scale", "mean"), 2)
    return out


def coding_of(part: quantize.Quantizer) -> str:
    """Return the name of a quantizer's coding in `QUANTIZERS`, if it has kernels."""
    part = part.plain if isinstance(part, quantize.Lossless) else part
    if isinstance(part, quantize.Float16) and part.scaled:
        return "float16_scaled"
    return f"float8_{part.format}" if isinstance(part, quantize.Float8) else part.kind


def pattern_of(codec: Codec) -> Pattern:
    """Return the pattern of positions in a codec's frames."""
    part = codec.sparsify
    if isinstance(part, sparsify.RandomK):
        return Pattern(kind=3 if part.block else 2)
    if isinstance(part, sparsify.ChunkTopK) and (part.tile is None or part.columns is None):
        return Pattern(kind=CHUNKS, size=part.chunk, k=part.k)
    return Pattern()


def tensor_id(name: str | None) -> int:
    """Return the number of a tensor's name: FNV-1a with 64 bits, zero for no name."""
    if not name:
        return 0
    out = 0xCBF29CE484222325
    for byte in name.encode():
        out = (out ^ byte) * 0x100000001B3 % 2**64
    return out
