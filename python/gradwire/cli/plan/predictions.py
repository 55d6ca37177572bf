"""Predict every method at every number of ranks."""

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
from gradwire.cost.prediction import (
    Steps,
    backward_within,
    fastest,
    fastest_by_backward,
    pays_within,
)

_SCATTER = "/scatter"


@dataclasses.dataclass(frozen=True)
class Optimizer:
    """An optimizer, as far as a codec must suit it."""

    name: str
    codec: str  # the preset that `attach` uses by default
    state_bytes: int  # per parameter
    momentum: bool
    first_moment: bool

    def suits(self, codec: Codec) -> bool:
        """Tell whether `attach` takes the codec with this optimizer, and accuracy stays.

        A first moment averages again what error feedback has delayed. SGD's momentum does the same
        to the late sums that a sparse codec sends.
        """
        memory = codec.memory
        if memory.updates or memory.corrects:
            return memory.updates == self.first_moment
        late = self.first_moment or (self.momentum and codec.sparsify.selects)
        return not (memory.keeps and late)

    def replaced_by(self, codec: Codec | None) -> bool:
        """Tell whether the codec's state takes the place of the optimizer's."""
        return codec is not None and (codec.memory.updates or codec.memory.corrects)


OPTIMIZERS = {
    "adamw": Optimizer("AdamW", "adam", 8, momentum=True, first_moment=True),
    "adam": Optimizer("Adam", "adam", 8, momentum=True, first_moment=True),
    "sgd": Optimizer("SGD", "topk", 0, momentum=False, first_moment=False),
    "sgd-momentum": Optimizer("SGD with momentum", "dgc", 4, momentum=True, first_moment=False),
}


@dataclasses.dataclass(frozen=True)
class Scenario:
    """The workload, the optimizer and the networks of a plan."""

    workload: Workload  # a step without any exchange
    optimizer: Optimizer
    ranks: tuple[int, ...]
    link: Link  # between nodes
    node_size: int
    inside: Link
    ratio: float  # share of the entries that codecs send


@dataclasses.dataclass(frozen=True)
class Row:
    """One method: its predictions for each number of ranks, and where it beats dense training."""

    method: Method
    suits: bool  # the optimizer
    predictions: tuple[Prediction, ...]
    memory: tuple[float, ...]  # bytes of the optimizer's state, the codec's and buffers
    # Ranges in which it is the fastest, for each number of ranks; None if it is dense.
    links: tuple[tuple[float, float], ...] | None = None  # in bits/s
    passes: tuple[tuple[float, float], ...] | None = None  # backward passes, in seconds


@dataclasses.dataclass(frozen=True)
class Plan:
    """All methods."""

    scenario: Scenario
    rows: tuple[Row, ...]

    def winners(self) -> list[Row]:
        """Return the fastest method that suits the optimizer, for each number of ranks."""
        suited = [row for row in self.rows if row.suits]
        return [
            min(suited, key=lambda row: row.predictions[at].step)
            for at in range(len(self.scenario.ranks))
        ]

    def speedup(self, row: Row, at: int) -> float:
        """Return how many times as fast a method's step is as that of plain DDP in float32."""
        return self.rows[0].predictions[at].step / row.predictions[at].step

    def to_json(self) -> dict[str, Any]:
        """Return plain lists, dicts, strings and numbers."""
        scenario = self.scenario
        return {
            "model_size": scenario.workload.numel,
            "ranks": list(scenario.ranks),
            "link": dataclasses.asdict(scenario.link),
            "node_size": scenario.node_size,
            "ratio": scenario.ratio,
            "optimizer": scenario.optimizer.name,
            "backward_seconds": scenario.workload.backward,
            "compute_seconds": scenario.workload.compute,
            "winners": [row.method.name for row in self.winners()],
            "methods": [self._plain(row) for row in self.rows],
        }

    def _plain(self, row: Row) -> dict[str, Any]:
        return {
            "method": row.method.name,
            "suits_optimizer": row.suits,
            "exchanges": [type(each.method.exchange).__name__ for each in row.predictions],
            "step_seconds": [each.step for each in row.predictions],
            "speedup": [self.speedup(row, at) for at in range(len(row.predictions))],
            "exposed_seconds": [each.exposed for each in row.predictions],
            "sent_bytes": [each.sent for each in row.predictions],
            "sent_inside_bytes": [each.sent_inside for each in row.predictions],
            "memory_bytes": list(row.memory),
            **_ends("pays_{}_bits_per_second", row.links),
            **_ends("pays_{}_backward_seconds", row.passes),
        }


def _ends(name: str, ranges: tuple[tuple[float, float], ...] | None) -> dict[str, Any]:
    """Return the ends of ranges, below and above which a method pays, for JSON."""
    lows = highs = None
    if ranges is not None:
        lows = [low for low, _ in ranges]
        highs = ["always" if math.isinf(high) else high for _, high in ranges]
    return {name.format("below"): highs, name.format("above"): lows}


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
    dense = [_steps(scenario.workload, baselines, each) for each in networks]
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
    return codec.get_config() | {"exchange": None}


def _steps(workload: Workload, methods: list[Method], network: Network) -> tuple[Steps, Steps]:
    """Return the fastest method's step over the bandwidth, and over the backward pass."""
    by_backward = fastest_by_backward(workload, methods, network)
    return fastest(workload, methods, network), by_backward


def _row(
    scenario: Scenario,
    method: Method,
    networks: list[Network],
    dense: list[tuple[Steps, Steps]] | None,
) -> Row:
    workload, optimizer = scenario.workload, scenario.optimizer
    codec = None if method.cost is None else method.cost.codec
    suits = codec is None or optimizer.suits(codec)
    predictions = tuple(predict(workload, method, each) for each in networks)
    state, replaced = optimizer.state_bytes * workload.numel, optimizer.replaced_by(codec)
    memory = tuple(
        each.memory + (0 if replaced and each.network.nodes > 1 else state) for each in predictions
    )
    if dense is None:
        return Row(method, suits, predictions, memory)
    links, passes = [], []
    for network, (by_link, by_backward) in zip(networks, dense, strict=True):
        own_by_link, own_by_backward = _steps(workload, [method], network)
        links.append(pays_within(own_by_link, by_link, network.link.bandwidth))
        passes.append(backward_within(own_by_backward, by_backward, workload.backward))
    return Row(method, suits, predictions, memory, tuple(links), tuple(passes))
