"""Frames of every preset with values as floats, and with the same values in fewer bits.

Bits are of the third frame of a state, header and positions included. Times are medians of rounds
in which both take turns, with the threads of the process.
"""

import dataclasses
import statistics
import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

import gradwire
from gradwire.presets import PRESETS
from gradwire.quantize import BFloat16, Float16, Float32, Lossless, Quantizer

NUMEL, ROUNDS, STEPS = 1 << 22, 15, 3
COLUMNS = 2048
FLOATS = (Float32, BFloat16, Float16, Lossless)
SUMS = {"all_reduce", "leader_indices"}
TIMED = {"topk", "adam", "dense"}

Array = NDArray[np.float32]
LAWS: dict[str, Callable[[np.random.Generator, int], NDArray[np.float64]]] = {
    "Gauss": lambda draw, numel: draw.normal(size=numel),
    "Laplace": lambda draw, numel: draw.laplace(size=numel),
    "Student t, 3": lambda draw, numel: draw.standard_t(3, numel),
}


@dataclasses.dataclass(frozen=True)
class Row:
    """One preset with one float."""

    preset: str
    #: What values are rounded to.
    format: str
    #: Bits an entry that is sent by law: of the float itself, and without loss.
    plain: dict[str, float]
    lossless: dict[str, float]
    #: Times without loss as multiples of the float's own; none where they are not measured.
    encode: float | None
    decode: float | None


def measure(progress: Callable[[str], None], quick: bool = False) -> list[Row]:
    """Measure every preset that has values as floats."""
    numel = NUMEL // 8 if quick else NUMEL
    rows = []
    for name, codec in codecs():
        # Of the presets that can, only these; of others what they send by themselves.
        for plain, lossless in floats(codec.quantize):
            pair = [codec.replace(quantize=each) for each in (plain, lossless)]
            bits = {law: [_bits(each, _gradients(law, numel)) for each in pair] for law in LAWS}
            times = _times(pair, _gradients("Laplace", numel)) if name in TIMED else (None, None)
            plains, shorter = ({law: found[i] for law, found in bits.items()} for i in (0, 1))
            rows.append(Row(name, str(lossless.format), plains, shorter, *times))
            progress(f"frames: {name}, {lossless.format}: {shorter['Laplace']:.1f} bits an entry")
    return rows


def codecs() -> list[tuple[str, gradwire.Codec]]:
    """Return the presets that send frames of values as floats, by their examples.

    Exchanges that add values up on the wire send no frames.
    """
    made = ((name, preset.build(**preset.example)) for name, preset in PRESETS.items())
    return [
        (name, codec.for_shape((NUMEL // COLUMNS, COLUMNS)))
        for name, codec in made
        if isinstance(codec.quantize, FLOATS) and codec.exchange.kind not in SUMS
    ]


def floats(used: Quantizer) -> list[tuple[Quantizer, Lossless]]:
    """Return which floats are measured for a preset that uses this one: its own, and bfloat16."""
    half = BFloat16(), Lossless("bfloat16")
    return [(Float32(), Lossless("float32")), half] if isinstance(used, Float32) else [half]


def _gradients(law: str, numel: int) -> list[Array]:
    draw = np.random.default_rng(7)
    return [LAWS[law](draw, numel).astype(np.float32) for _ in range(2)]


def _state(codec: gradwire.Codec, numel: int) -> gradwire.State:
    state = codec.init_state(numel)
    if state.learning_rate is not None:
        state.learning_rate = 1e-3
    return state


def _bits(codec: gradwire.Codec, gradients: list[Array]) -> float:
    state = _state(codec, gradients[0].size)
    frames = [codec.encode(gradients[step % 2], state) for step in range(STEPS)]
    return 8 * len(frames[-1]) / frames[-1].count


def _times(pair: list[gradwire.Codec], gradients: list[Array]) -> tuple[float, float]:
    out = np.zeros_like(gradients[0])
    states = [_state(codec, out.size) for codec in pair]
    encodes: list[list[float]] = [[], []]
    decodes: list[list[float]] = [[], []]
    for turn in range(ROUNDS):
        for codec, state, encode, decode in zip(pair, states, encodes, decodes, strict=True):
            start = time.perf_counter()
            frame = codec.encode(gradients[turn % 2], state)
            middle = time.perf_counter()
            gradwire.decode_add(frame, out)
            encode.append(middle - start)
            decode.append(time.perf_counter() - middle)
    one, other = ([statistics.median(each) for each in found] for found in (encodes, decodes))
    return one[1] / one[0], other[1] / other[0]


def table(rows: list[Row]) -> str:
    """Return the table of all presets."""

    def bits(row: Row, law: str) -> str:
        return f"{row.plain[law]:.1f} → {row.lossless[law]:.1f}"

    def times(row: Row) -> str:
        return "" if row.encode is None else f"{row.encode:.2f}, {row.decode:.2f}"

    lines = [
        f"| preset | values | {' | '.join(LAWS)} | time: encode, decode |",
        "|---|---|" + "---:|" * (len(LAWS) + 1),
    ]
    for row in rows:
        cells = (f"`{row.preset}`", row.format, *(bits(row, law) for law in LAWS), times(row))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)
