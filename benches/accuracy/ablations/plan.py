"""Which runs answer which question, most telling first."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from .methods import WARM_UPS, presets, warm_up_name

ONE_BIT_FIRST = ("two means of 1024", "sign, one mean", "two means of 128", "signs of 10%")
ONE_BIT_REST = (
    "signs of 3%",
    "signs of 1%",
    "signs of 0.5%",
    "two means of 10%",
    "signs of 30%",
    "two means of 32",
    "two means of 512",
    "sign, one rms",
)


@dataclass(frozen=True)
class Run:
    """One training run."""

    method: str
    rate: float
    task: str = "text"
    ranks: int = 2
    seed: int = 0
    steps: int = 800


def plan() -> Mapping[str, list[Run]]:
    """Return all runs by question."""
    return {
        "ranks": list(_ranks()),
        "why": list(_why()),
        "one-bit": list(_one_bit()),
        "presets": list(_presets()),
        "ranks-seeds": list(_rank_seeds()),
        "sgd": list(_sgd()),
        "clipping": list(_clipping()),
        "ratios": list(_ratios()),
        "moments": list(_moments()),
        "many-ranks": list(_many_ranks()),
        "presets-rates": list(_preset_rates()),
        "sgd-fashion": list(_sgd_fashion()),
        "sgd-seeds": list(_sgd_seeds()),
        "warm-up": list(_warm_up()),
    }


def _grid(method: str, *rates: float, **common: Any) -> Iterator[Run]:
    for rate in rates:
        yield Run(method, rate, **common)


def _ranks() -> Iterator[Run]:
    yield from _grid("updates", 4e-3, 8e-3, 2e-3)
    yield from _grid("dense", 2e-3, 4e-3, 1e-3)
    yield from _grid("updates", 8e-3, 16e-3, 4e-3, ranks=8)
    yield from _grid("updates", 4e-3, 2e-3, 8e-3, ranks=1)
    yield from _grid("updates", 16e-3, 8e-3, 32e-3, ranks=16)
    yield from _grid("updates", 8e-3, 4e-3, 16e-3, ranks=4)
    yield from _grid("updates, v shared every 10", 8e-3, 4e-3, ranks=8)
    yield from _grid("updates, v shared every 100", 8e-3, 4e-3, ranks=8)


def _rank_seeds() -> Iterator[Run]:
    for seed in (1, 2):
        yield from _grid("dense", 2e-3, seed=seed)
        yield from _grid("updates", 4e-3, 8e-3, seed=seed)
        yield from _grid("updates", 4e-3, 8e-3, 16e-3, ranks=8, seed=seed)
        yield from _grid("updates", 2e-3, 4e-3, ranks=1, seed=seed)
        yield from _grid("updates", 8e-3, 16e-3, ranks=16, seed=seed)
        yield from _grid("updates", 4e-3, 8e-3, 16e-3, ranks=4, seed=seed)


def _many_ranks() -> Iterator[Run]:
    yield from _grid("dense", 2e-3, 4e-3, task="text32")
    yield from _grid("updates", 16e-3, 32e-3, 8e-3, task="text32", ranks=32)
    yield from _grid("updates", 4e-3, 8e-3, task="text32", ranks=2)
    yield from _grid("updates", 8e-3, 16e-3, task="text32", ranks=8)


def _why() -> Iterator[Run]:
    yield from _grid("topk, AdamW", 2e-3, 1e-3, 4e-3)
    yield from _grid("topk, AdamW without beta1", 2e-3, 4e-3)
    yield from _grid("gradients, v of all", 4e-3, 2e-3)
    yield from _grid("gradients, v of all, beta1 0.9", 2e-3, 1e-3)
    yield from _grid("updates, beta1 0.9", 2e-3)
    yield from _grid("updates, v of all", 4e-3, 2e-3)
    yield from _grid("steps", 4e-3)
    yield from _grid("everything, updates", 4e-3, 2e-3)
    yield from _grid("dense without beta1", 2e-3)
    yield from _grid("gradients, v of all", 1e-3)
    yield from _grid("updates, beta1 0.9", 4e-3, 1e-3)
    yield from _grid("topk, embeddings dense", 2e-3)
    yield from _grid("updates, embeddings dense", 4e-3)
    yield from _grid("updates, head dense", 4e-3)


def _one_bit() -> Iterator[Run]:
    for method in (*ONE_BIT_FIRST, *ONE_BIT_REST):
        yield from _grid(method, 4e-3)
    for method in ONE_BIT_FIRST:
        yield from _grid(method, 2e-3, 8e-3)
        yield from _grid(method, 8e-3, ranks=8)


def _presets() -> Iterator[Run]:
    names = [name for name, _ in presets()]
    for way, rate in (("updates", 4e-3), ("AdamW without beta1", 2e-3), ("AdamW", 2e-3)):
        for name in names:
            yield from _grid(f"{name}, {way}", rate)


def _preset_rates() -> Iterator[Run]:
    names = [name for name, _ in presets()]
    rates = {"updates": (8e-3, 2e-3), "AdamW without beta1": (1e-3, 4e-3), "AdamW": (1e-3, 4e-3)}
    for way, found in rates.items():
        for name in names:
            yield from _grid(f"{name}, {way}", *found)


def _sgd() -> Iterator[Run]:
    yield from _sgd_digits(0)


def _sgd_seeds() -> Iterator[Run]:
    for seed in (1, 2):
        yield from _sgd_digits(seed)


def _sgd_digits(seed: int) -> Iterator[Run]:
    names = ("dense", "topk", "dgc", "dgc unmasked")
    small = ("topk 0.1%", "dgc 0.1%", "dgc unmasked 0.1%")
    for name in (*names, *small):
        yield from _grid(f"{name}, SGD", 0.15, 0.075, task="digits", steps=1000, seed=seed)
    rates = 1.5, 0.75, 3.0
    yield from _grid("topk, SGD without momentum", *rates, task="digits", steps=1000, seed=seed)


def _sgd_fashion() -> Iterator[Run]:
    small = ("topk 0.1%", "dgc 0.1%", "dgc unmasked 0.1%")
    for name in ("dense", "topk", "dgc", "dgc unmasked", "dgc exact unmasked", *small):
        yield from _grid(f"{name}, SGD", 0.1, 0.2, 0.05, task="fashion", steps=1400)
    rates = 0.8, 1.6, 0.4
    yield from _grid("topk, SGD without momentum", *rates, task="fashion", steps=1400)
    plain: dict[str, Any] = {"task": "fashion without norm", "steps": 1400}
    yield from _grid("topk, SGD", 0.1, 0.2, 0.05, **plain)
    yield from _grid("topk, SGD without momentum", 0.5, 1.0, 0.25, **plain)
    yield from _grid("dense, SGD", 0.1, 0.2, **plain)


def _clipping() -> Iterator[Run]:
    yield from _grid("dense, clip 1", 2e-3, 4e-3)
    yield from _grid("updates, clip 1.4", 4e-3)
    yield from _grid("updates, clip 1", 4e-3)
    yield from _grid("updates, clip after", 4e-3)


def _ratios() -> Iterator[Run]:
    yield from _grid("updates, 0.2%", 4e-3, 2e-3)
    yield from _grid("updates, 0.2%, first tenth 5%", 4e-3)
    yield from _grid("updates, 0.1%", 2e-3, 4e-3)
    short: dict[str, Any] = {"steps": 300}
    yield from _grid("dense", 2e-3, 4e-3, **short)
    yield from _grid("updates", 4e-3, 8e-3, **short)
    yield from _grid("updates, 5%", 4e-3, **short)
    yield from _grid("updates, first tenth 5%", 4e-3, **short)
    yield from _grid("updates, first fifth 10%", 4e-3, **short)


def _moments() -> Iterator[Run]:
    yield from _grid("updates, beta2 0.99", 4e-3)
    yield from _grid("updates, beta2 0.95", 4e-3)
    yield from _grid("updates, bfloat16", 4e-3)
    yield from _grid("updates, float8", 4e-3)
    yield from _grid("signs of momentum", 5e-4)
    yield from _grid("signs of gradients", 1e-3)


def _warm_up() -> Iterator[Run]:
    settings = ["adam(0.01)", *(warm_up_name(*each) for each in WARM_UPS)]
    tasks = (
        ("control", 640, 2e-3),
        ("noise", 400, 8e-3),
        ("noise", 400, 16e-3),
        ("text", 300, 4e-3),
    )
    for seed in range(3):
        for task, steps, rate in tasks:
            for name in settings[: 5 if seed == 0 else 3]:
                yield Run(name, rate, task, seed=seed, steps=steps)
        for name in ("dense", *settings[:3]):
            yield Run(name, 2e-3, "noise", seed=seed, steps=400)
        for name in ("dense", "updates, 5%"):
            yield Run(name, 16e-3, "noise", seed=seed, steps=400)
