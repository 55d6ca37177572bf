"""``gradwire plan``: predict the step time of dense training and of codecs, on any link."""

import argparse
import dataclasses
import json
import math
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gradwire._codec import Codec
from gradwire.cli.codecs import build, unfit
from gradwire.cost import (
    Calibration,
    Link,
    Method,
    Network,
    Prediction,
    Workload,
    bf16,
    calibrate,
    compressed,
    fp32,
    predict,
)
from gradwire.cost.prediction import by_link, pays_within
from gradwire.report.text import columns, size

_DESCRIPTION = """\
Predict the time of a training step with plain DDP, in float32 and bfloat16, and with codecs, for a
range of ranks on a link, and print the link speed below which each codec pays off. A long backward
pass hides an uncompressed exchange.

The codecs are first measured on this machine for a few seconds each. --save keeps the result, and
--calibration reuses it. Encoding takes processor time from the backward pass, as in training on
CPUs; with --no-shared, it only overlaps with it. Byte counts are exact if they do not depend on
gradients; otherwise they are measured on heavy-tailed random numbers.
"""


@dataclasses.dataclass(frozen=True)
class Optimizer:
    """An optimizer, as far as a codec must suit it."""

    name: str
    codec: str  # the preset that `attach` uses by default
    state_bytes: int  # per parameter
    momentum: bool
    first_moment: bool

    def suits(self, method: Method) -> bool:
        """Tell whether `attach` takes the method with this optimizer, and accuracy stays.

        A first moment averages again what error feedback has delayed. SGD's momentum does the same
        to the late sums that a sparse codec sends.
        """
        if method.cost is None:
            return True
        codec = method.cost.codec
        memory = codec.memory
        if memory.updates or memory.corrects:
            return memory.updates == self.first_moment and not memory.estimates
        late = self.first_moment or (self.momentum and codec.sparsify.selects)
        return not (memory.keeps and late)


OPTIMIZERS = {
    "adamw": Optimizer("AdamW", "adam", 8, momentum=True, first_moment=True),
    "adam": Optimizer("Adam", "adam", 8, momentum=True, first_moment=True),
    "sgd": Optimizer("SGD", "topk", 0, momentum=False, first_moment=False),
    "sgd-momentum": Optimizer("SGD with momentum", "dgc", 4, momentum=True, first_moment=False),
}


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gradwire plan",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--model-size", type=count, required=True, metavar="N",
        help="parameters of the model, such as 25M")  # fmt: skip
    add("--backward", type=seconds, required=True, metavar="TIME",
        help="time of the backward pass, which exchanges overlap, such as 500ms")  # fmt: skip
    add("--link", type=rate, required=True, metavar="RATE",
        help="speed of each node's link, such as 1gbit")  # fmt: skip
    add("--ranks", type=ranks, default=ranks("2..64"), metavar="N,...",
        help="numbers of ranks: a list, or a range such as 2..10000, of which powers of two and "
        "the ends are shown (default: 2..64)")  # fmt: skip
    add("--latency", type=seconds, default=50e-6, metavar="TIME",
        help="latency of the link (default: 50us)")  # fmt: skip
    add("--node-size", type=count, default=1, metavar="N",
        help="ranks that share a link, uncompressed inside (default: 1)")  # fmt: skip
    add("--inside", type=rate, default=100_000_000_000, metavar="RATE",
        help="speed of a rank's link inside its node (default: 100gbit)")  # fmt: skip
    add("--other", type=seconds, metavar="TIME",
        help="time of the rest: forward pass, optimizer (default: half of --backward)")  # fmt: skip
    add("--optimizer", choices=OPTIMIZERS, default="adamw",
        help="optimizer that the codecs have to suit (default: adamw)")  # fmt: skip
    add("--shared", action=argparse.BooleanOptionalAction, default=True,
        help="the backward pass runs on the cores that encode (default: yes)")  # fmt: skip
    add("--codecs", metavar="NAME,...",
        help="presets; `gradwire codecs` lists them (default: the one that suits "
        "--optimizer)")  # fmt: skip
    add("--ratio", type=float, default=0.01,
        help="fraction of the entries to send (default: %(default)s)")  # fmt: skip
    add("--calibration", type=Path, metavar="FILE", help="use what --save wrote; do not measure")
    add("--save", type=Path, metavar="FILE", help="write the measurements")
    add("--json", action="store_true", help="print JSON instead of a table")
    return parser


def main(argv: Sequence[str]) -> int:
    """Print a plan; return 0, 1 if a file cannot be read or written, 2 for an invalid command."""
    parser = make_parser()
    options = parser.parse_args(argv)
    options.ranks = [number for number in options.ranks if number % options.node_size == 0]
    if not options.ranks:
        parser.error(f"argument --ranks: none of them fills nodes of {options.node_size}")
    try:
        codecs = _codecs(options)
    except ValueError as error:
        parser.error(f"argument --codecs: {error}")
    try:
        if options.calibration is not None:
            calibration = _load(options.calibration, codecs)
        else:
            calibration = calibrate(codecs, seconds=1.0)
        if options.save is not None:
            calibration.save(options.save)
        rows = _rows(options, [compressed(name, calibration) for name in codecs], calibration)
    except (OSError, ValueError) as error:
        print(f"gradwire plan: {error}", file=sys.stderr)
        return 1
    print(json.dumps([row.to_json() for row in rows], indent=1) if options.json else _table(rows))
    return 0


def _codecs(options: argparse.Namespace) -> dict[str, Codec]:
    names = options.codecs.split(",") if options.codecs else [OPTIMIZERS[options.optimizer].codec]
    codecs = {}
    for name in names:
        if (why := unfit(name)) is not None:
            raise ValueError(why)
        codecs[name] = build(name, options.ratio)
    return codecs


def _load(path: Path, codecs: dict[str, Codec]) -> Calibration:
    """Return a saved calibration for these codecs, whose exchange does not matter to it."""
    calibration = Calibration.load(path)
    costs = dict(calibration.codecs)
    for name, codec in codecs.items():
        if (known := costs.get(name)) is None:
            continue
        if known.codec.get_config() | {"exchange": None} != codec.get_config() | {"exchange": None}:
            raise ValueError(
                f"the calibration has {known.codec!r} as {name!r}, not {codec!r}: give the --ratio "
                "it was made with, or leave out --calibration"
            )
        costs[name] = dataclasses.replace(known, codec=codec)
    return dataclasses.replace(calibration, codecs=costs)


Range = tuple[float, float] | None
"""Links on which a method is faster than both dense ones: from and to; None of these themselves."""


@dataclasses.dataclass(frozen=True)
class Row:
    """A method among some ranks."""

    prediction: Prediction
    speedup: float  # over plain DDP in float32
    suits: bool  # the optimizer
    fastest: bool  # of those that suit it
    memory: float  # bytes of the optimizer's state, the codec's and buffers
    link: Range  # in bits/s

    def to_json(self) -> dict[str, Any]:
        return {
            "ranks": self.prediction.network.ranks,
            "method": self.prediction.method.name,
            "exchange": type(self.prediction.method.exchange).__name__,
            "step_seconds": self.prediction.step,
            "exposed_seconds": self.prediction.exposed,
            "speedup": self.speedup,
            "fastest": self.fastest,
            "suits_optimizer": self.suits,
            "pays_bits_per_second": self.link
            and [self.link[0], "always" if math.isinf(self.link[1]) else self.link[1]],
            "sent_bytes": self.prediction.sent,
            "sent_inside_bytes": self.prediction.sent_inside,
            "memory_bytes": self.memory,
        }


def _rows(
    options: argparse.Namespace, methods: Sequence[Method], calibration: Calibration
) -> list[Row]:
    optimizer = OPTIMIZERS[options.optimizer]
    other = options.backward / 2 if options.other is None else options.other
    workload = Workload(options.model_size, options.backward, other, shared=options.shared)
    link = Link(float(options.link), options.latency, 5e-6)
    inside = Link(float(options.inside), min(options.latency, 5e-6), 5e-6)
    dense = [fp32(), bf16(calibration)]
    rows = []
    for count in options.ranks:
        network = Network(count, link, options.node_size, inside)
        predictions = [predict(workload, method, network) for method in (*dense, *methods)]
        plain = predictions[0].step
        fastest = min(each.step for each in predictions if optimizer.suits(each.method))
        steps = by_link(workload, dense, network)
        for predicted in predictions:
            method, suits = predicted.method, optimizer.suits(predicted.method)
            pays = None
            if method.cost is not None:
                pays = pays_within(by_link(workload, [method], network), steps, link.bandwidth)
            memory = predicted.memory + _state(optimizer, predicted) * workload.numel
            is_fastest = suits and predicted.step == fastest
            rows.append(Row(predicted, plain / predicted.step, suits, is_fastest, memory, pays))
    return rows


def _state(optimizer: Optimizer, prediction: Prediction) -> int:
    """Return the bytes per parameter of the optimizer's state, which a codec's may replace."""
    cost = prediction.method.cost
    replaced = cost is not None and (cost.codec.memory.updates or cost.codec.memory.corrects)
    return 0 if replaced and prediction.network.nodes > 1 else optimizer.state_bytes


_NOTES = """\
Speed-up over fp32: * the fastest that suits the optimizer; ! costs accuracy with the optimizer, or
`attach` refuses it. It pays if the link is below the given, or in its range.
Sent: bytes of a rank and step to other nodes. Memory of a rank without model and gradients: states
of optimizer and codec, and buffers."""


def _table(rows: Sequence[Row]) -> str:
    def mark(row: Row) -> str:
        return "*" if row.fastest else " " if row.suits else "!"

    table = {
        "ranks": [f"{row.prediction.network.ranks:,}" for row in rows],
        "method": [row.prediction.method.name for row in rows],
        "step": [duration(row.prediction.step) for row in rows],
        "speed-up": [f"{row.speedup:.3g}x {mark(row)}" for row in rows],
        "pays on link": [_link_text(row.link) for row in rows],
        "sent": [size(row.prediction.sent) for row in rows],
        "memory": [size(row.memory) for row in rows],
    }
    return "\n".join([*columns(table, {"method"}), "", _NOTES])


def _link_text(of: Range) -> str:
    if of is None:
        return "-"
    low, high = of
    if high == 0.0:
        return "never"
    if math.isinf(high):
        return "always" if low == 0.0 else f"> {format_rate(low)}"
    return format_rate(high) if low == 0.0 else f"{format_rate(low)} to {format_rate(high)}"


_COUNTS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "b": 10**9, "t": 10**12}
_TIMES = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0}
_RATES = {
    f"{prefix}{bits}": _COUNTS[prefix]
    for prefix in ("", *"kmgt")
    for bits in ("", "/s", "bit", "bit/s", "bps", "bps/s")
}
_MOST = 10**12
_MOST_RANKS = 1_000_000


def _quantity(
    text: str, units: Mapping[str, float], what: str, low: float = 0, high: float = math.inf
) -> float:
    match = re.fullmatch(r"([0-9]*\.?[0-9]+)\s*(\D*)", text.strip().lower())
    number = float(match[1]) * units.get(match[2], -1) if match else -1.0
    if not low <= number <= high:
        raise argparse.ArgumentTypeError(f"{text!r:.40} is not {what}")
    return number


def count(text: str) -> int:
    """Parse a number of things, such as ``25M``."""
    return round(_quantity(text, _COUNTS, "a number from 1 to 10**12: as 25M", 1, _MOST))


def seconds(text: str) -> float:
    """Parse a time, such as ``50us`` or ``0.1s``."""
    return _quantity(text, _TIMES, "a time: give a number and us, ms or s, such as 100ms")


def rate(text: str) -> int:
    """Parse a rate such as ``100mbit``, ``1gbit`` or ``2.5Gbit/s``; return bits per second."""
    what = "a bandwidth: give a number and kbit, mbit or gbit, such as 100mbit"
    return round(_quantity(text, _RATES, what, 1000))


def ranks(text: str) -> list[int]:
    """Parse numbers of ranks: ``2,8,64``, or ``2..10000`` for the ends and powers of two."""
    numbers: set[int] = set()
    for part in text.split(","):
        first, dots, last = part.strip().partition("..")
        ends = [first, last] if dots else [first]
        if not all(end.isdecimal() and 1 <= int(end) <= _MOST_RANKS for end in ends):
            raise argparse.ArgumentTypeError(
                f"{text!r} is not a number of ranks: give a list such as 2,8,64, or a range such "
                f"as 2..10000, from 1 to {_MOST_RANKS}"
            )
        low, high = int(ends[0]), int(ends[-1])
        numbers |= {low, high} | {1 << at for at in range(20) if low <= 1 << at <= high}
    return sorted(numbers)


def duration(time: float) -> str:
    """Format a time in seconds: ``50.1 ms``."""
    for unit, one in (("s", 1.0), ("ms", 1e-3)):
        if time >= 0.9995 * one:
            return f"{time / one:.4g} {unit}"
    return f"{time * 1e6:.3g} µs"


def format_rate(speed: float) -> str:
    """Format a rate in bits per second: ``100 Mbit/s``."""
    for unit, one in (("T", 1e12), ("G", 1e9), ("M", 1e6)):
        if speed >= 0.9995 * one:
            return f"{speed / one:.3g} {unit}bit/s"
    return f"{speed / 1e3:.3g} kbit/s"
