"""The structs of ``csrc/bucket/piece.h``, as it declares them, and their contents for a codec."""

import ctypes as c
import re
from pathlib import Path
from typing import Any

from gradwire import memory, quantize, sparsify
from gradwire._codec import Codec

_HEADER = Path(__file__).parents[2] / "csrc" / "bucket" / "piece.h"
_DECLARATION = re.compile(r"(?:enum class (\w+) : (\S+)|struct (\w+)) \{(.*?)\}", re.DOTALL)


def _read() -> tuple[dict[str, Any], dict[str, dict[str, int]]]:
    """Read the structs of the header, and the numbers of its enums."""
    types: dict[str, Any] = {
        **{f"std::uint{bits}_t": getattr(c, f"c_uint{bits}") for bits in (8, 32, 64)},
        "float": c.c_float,
        "double": c.c_double,
        "bool": c.c_bool,
    }
    enums: dict[str, dict[str, int]] = {}
    text = re.sub("//.*", "", _HEADER.read_text("utf-8"))
    for enum, base, struct, body in _DECLARATION.findall(text):
        fields, numbers = [], enums.setdefault(enum, {})
        if enum:
            types[enum] = types[base]
            for name, number in re.findall(r"(\w+)(?: = (\d+))?", body):
                numbers[name] = int(number or len(numbers))
            continue
        for kind, names in re.findall(r"(?:const )?(\S+) ([^;]+);", body):
            made = c.c_void_p if kind.endswith("*") else types[kind]
            for name, count in re.findall(r"(\w+)(?:\[(\d)\])?(?: = [^,]+)?(?:, |$)", names):
                fields.append((name, made * int(count) if count else made))
        types[struct] = type(struct, (c.Structure,), {"_fields_": fields})
    return types, enums


_TYPES, _ENUMS = _read()
Sparsify, Memory, Quantize, Pattern = map(
    _TYPES.__getitem__, ("Sparsify", "Memory", "Quantize", "Pattern")
)
Maybe, State, Piece = map(_TYPES.__getitem__, ("Maybe", "State", "Piece"))

# Parts with kernels, and their ids in frames.
SPARSIFIERS = _ENUMS["Sparsifier"]
MEMORIES = ("none", "residual", "low_pass", "momentum_correction", "adam_correction")
INDICES = ("auto", "elias-fano", "rice", "bitmap")
QUANTIZERS = tuple(_ENUMS["Quantizer"])
CHUNKS = _ENUMS["PatternKind"]["chunks"]
STATUS = tuple(_ENUMS["Status"])


def has_kernels(codec: Codec) -> bool:
    """Tell whether the structs can represent the parts of a codec."""
    return (
        codec.sparsify.kind in SPARSIFIERS
        # Other distributions and numbers of stages are fitted by the host alone.
        and getattr(codec.sparsify, "distribution", "pareto") == "pareto"
        and getattr(codec.sparsify, "stages", "adaptive") == "adaptive"
        and codec.memory.kind in MEMORIES
        # The kernels keep second moments in float32 only.
        and not (codec.memory.updates and getattr(codec.memory, "low_memory", False))
        and coding_of(codec.quantize) in QUANTIZERS
    )


def sparsify_of(part: sparsify.Sparsifier) -> Any:
    """Return the options of a sparsifier; `complete_pieces` adds the stages of a controller."""
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
    if part.kind == "random_k":
        out.run = options["block"]
    return out


def memory_of(part: memory.Memory) -> Any:
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


def quantize_of(part: quantize.Quantizer) -> Any:
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


def pattern_of(codec: Codec) -> Any:
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
