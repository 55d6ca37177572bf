"""Predict every method at every number of ranks."""

import bisect
import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from gradwire import exchange as exchanges
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
    compressed,
    fp32,
    predict,
)
from gradwire.cost.prediction import Steps, fastest, pays_within
from gradwire.numerics import mantissa_bits

_SCATTER = "/scatter"
_MANTISSAS = {"bfloat16": 7, "float16": 10, "float32": 23}  # of what an all-reduce adds up


@dataclasses.dataclass(frozen=True)
class Scenario:
    """The workload and networks of a plan."""

    workload: Workload  # a step without any exchange
    ranks: tuple[int, ...]
    link: Link  # between nodes
    node_size: int
    inside: Link
    ratio: float  # share of the entries that codecs send


@dataclasses.dataclass(frozen=True)
class Row:
    """One method: its predictions and the links on which it pays, for each number of ranks."""

    method: Method
    predictions: tuple[Prediction, ...]
    pays: tuple[tuple[float, float], ...] | None  # from and to, in bits/s; None if it is dense


@dataclasses.dataclass(frozen=True)
class Plan:
    """All methods."""

    scenario: Scenario
    rows: tuple[Row, ...]

    def winners(self) -> list[Row]:
        """Return the fastest method of each number of ranks."""
        return [
            min(self.rows, key=lambda row: row.predictions[at].step)
            for at in range(len(self.scenario.ranks))
        ]

    def to_json(self) -> dict[str, Any]:
        """Return plain lists, dicts, strings and numbers."""
        scenario = self.scenario
        return {
            "model_size": scenario.workload.numel,
            "ranks": list(scenario.ranks),
            "link": dataclasses.asdict(scenario.link),
            "node_size": scenario.node_size,
            "ratio": scenario.ratio,
            "compute_seconds": scenario.workload.compute,
            "ranks_summed": ranks_summed(),
            "winners": [row.method.name for row in self.winners()],
            "methods": [_plain(row) for row in self.rows],
        }


def _plain(row: Row) -> dict[str, Any]:
    pays = row.pays
    return {
        "method": row.method.name,
        "exchanges": [type(each.method.exchange).__name__ for each in row.predictions],
        "step_seconds": [each.step for each in row.predictions],
        "exposed_seconds": [each.exposed for each in row.predictions],
        "sent_bytes": [each.sent for each in row.predictions],
        "sent_inside_bytes": [each.sent_inside for each in row.predictions],
        "memory_bytes": [each.memory for each in row.predictions],
        "pays_below_bits_per_second": None
        if pays is None
        else ["always" if math.isinf(high) else high for _, high in pays],
        "pays_above_bits_per_second": None if pays is None else [low for low, _ in pays],
    }


def ranks_summed() -> dict[str, int]:
    """Return, per dtype, the number of ranks whose sum on the wire keeps its variance.

    The largest power of two, by the variance retention ratio: gradients and sums have one dtype.
    """
    return {dtype: _most_terms(bits) for dtype, bits in _MANTISSAS.items()}


def _most_terms(mantissa: int) -> int:
    powers = range(63)
    beyond = bisect.bisect(powers, mantissa, key=lambda power: mantissa_bits(1 << power, mantissa))
    return 1 << (beyond - 1)


def build_codecs(names: Sequence[str], ratio: float, node_size: int = 1) -> dict[str, Codec]:
    """Return the codecs of these names, for nodes of ``node_size`` ranks.

    A ValueError for an unknown preset, one that needs an option, or a reduce-scatter that does not
    take the codec or works in nodes.
    """
    codecs = {}
    for name in names:
        preset = name.removesuffix(_SCATTER)
        if why := unfit(preset):
            raise ValueError(f"argument --codecs: {why}")
        codecs[preset] = build(preset, ratio)
        if name.endswith(_SCATTER):
            _scatters(name, codecs[preset], node_size)
    return codecs


def _scatters(name: str, codec: Codec, node_size: int) -> None:
    """Raise a ValueError for codecs that no reduce-scatter supports."""
    if node_size > 1:
        raise ValueError(
            f"argument --codecs: {name} works only without nodes; leave out --node-size, or "
            f"{_SCATTER}"
        )
    if codec.exchange.needs_whole_tensor:
        preset = name.removesuffix(_SCATTER)
        raise ValueError(f"argument --codecs: {preset} has no frames to scatter")
    try:
        selects = codec.sparsify.selects
        own = exchanges.ReduceScatter() if selects else exchanges.QuantizedAllReduce()
        codec.replace(exchange=own)
    except ValueError as error:
        raise ValueError(f"argument --codecs: {name}: {error}") from error


def plan(
    scenario: Scenario, names: Sequence[str], codecs: dict[str, Codec], calibration: Calibration
) -> Plan:
    """Predict plain DDP and these codecs; raise a ValueError if the calibration lacks one."""
    costs = dict(calibration.codecs)
    for name, codec in codecs.items():
        if (known := costs.get(name)) is None:
            continue
        if _measured(known.codec) != _measured(codec):
            raise ValueError(
                f"the calibration has {known.codec!r} as {name!r}, not {codec!r}: give the --ratio "
                "it was made with, or leave out --calibration"
            )
        costs[name] = dataclasses.replace(known, codec=codec)
    calibration = dataclasses.replace(calibration, codecs=costs)
    networks = [
        Network(each, scenario.link, scenario.node_size, scenario.inside) for each in scenario.ranks
    ]
    baselines = [fp32(), bf16(calibration)]
    rows = [_row(scenario, each, networks, None) for each in baselines]
    dense = [fastest(scenario.workload, baselines, each) for each in networks]
    for name in names:
        preset = name.removesuffix(_SCATTER)
        exchange = None
        if name != preset:
            selects = calibration.codecs[preset].codec.sparsify.selects
            exchange = exchanges.ReduceScatter() if selects else exchanges.QuantizedAllReduce()
        method = dataclasses.replace(compressed(preset, calibration, exchange), name=name)
        rows.append(_row(scenario, method, networks, dense))
    return Plan(scenario, tuple(rows))


def _measured(codec: Codec) -> dict[str, Any]:
    """Return the part of a codec that a calibration depends on: all but the exchange."""
    config = codec.get_config()
    return config if codec.exchange.needs_whole_tensor else config | {"exchange": None}


def _row(
    scenario: Scenario, method: Method, networks: list[Network], dense: list[Steps] | None
) -> Row:
    predictions = tuple(predict(scenario.workload, method, each) for each in networks)
    pays = None
    if dense is not None:
        own = [fastest(scenario.workload, [method], each) for each in networks]
        bandwidth = scenario.link.bandwidth
        pays = tuple(pays_within(*each, bandwidth) for each in zip(own, dense, strict=True))
    return Row(method, predictions, pays)
