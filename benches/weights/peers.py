"""What people install to pack weights, where it is installed: none of it is needed."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch
from torch import Tensor, nn

GROUP = 64


@dataclass(frozen=True)
class Peer:
    """One way to pack a matrix.

    ``pack`` makes of a float32 matrix what holds it; ``multiply`` takes that and rows of x, in
    ``dtype``. Where one of both is None, the package has no such thing for a CPU.
    """

    name: str
    package: str
    pack: Callable[[Tensor], Any]
    multiply: Callable[[Any, Tensor], Tensor] | None = None
    dtype: torch.dtype = torch.bfloat16

    @property
    def title(self) -> str:
        return f"{self.package} {version(self.package)} {self.name}"


def installed() -> Iterator[Peer]:
    """Yield all that can be imported."""
    for package, of_package in PACKAGES.items():
        with suppress(PackageNotFoundError, ImportError, AttributeError):
            version(package)
            yield from of_package()


def works(peer: Peer, matrix: Tensor) -> bool:
    """Tell whether a peer packs a small matrix here, and multiplies with it."""
    try:
        held = peer.pack(matrix)
        if peer.multiply is not None:
            peer.multiply(held, torch.ones(1, matrix.shape[1], dtype=peer.dtype))
    except (ImportError, RuntimeError, NotImplementedError, AssertionError):
        return False
    return True


def _layer(matrix: Tensor, dtype: torch.dtype) -> nn.Sequential:
    layer = nn.Linear(matrix.shape[1], matrix.shape[0], bias=False, dtype=dtype, device="meta")
    layer.weight = nn.Parameter(matrix.to(dtype), requires_grad=False)
    return nn.Sequential(layer)


def _call(held: nn.Module, x: Tensor) -> Tensor:
    y: Tensor = held(x)
    return y


def _gguf() -> Iterator[Peer]:
    from gguf import GGMLQuantizationType, quants

    kind = GGMLQuantizationType.Q4_0
    yield Peer("Q4_0, numpy", "gguf", lambda matrix: quants.quantize(matrix.numpy(), kind))


def _bitsandbytes() -> Iterator[Peer]:
    import bitsandbytes
    from bitsandbytes import functional

    def pack(matrix: Tensor) -> Any:
        return functional.quantize_4bit(matrix, quant_type="nf4", blocksize=GROUP)

    def multiply(held: Any, x: Tensor) -> Tensor:
        y: Tensor = bitsandbytes.matmul_4bit(x, held[0].t(), held[1])
        return y

    for dtype in (torch.float32, torch.bfloat16):
        yield Peer(f"nf4, {_short(dtype)} x", "bitsandbytes", pack, multiply, dtype)


def _quanto() -> Iterator[Peer]:
    from optimum import quanto

    def pack(matrix: Tensor) -> Any:
        held = _layer(matrix, torch.bfloat16)
        quanto.quantize(held, weights=quanto.qint4)
        quanto.freeze(held)
        return held

    yield Peer("qint4", "optimum-quanto", pack, _call)


def _torchao() -> Iterator[Peer]:
    from torchao import quantization
    from torchao.quantization.granularity import PerGroup

    configs = {
        "Int8WeightOnly": quantization.Int8WeightOnlyConfig(),
        "IntxWeightOnly int4": quantization.IntxWeightOnlyConfig(
            weight_dtype=torch.int4,  # type: ignore[attr-defined]
            granularity=PerGroup(GROUP),
        ),
        "Int4WeightOnly": quantization.Int4WeightOnlyConfig(group_size=GROUP),
    }

    for name, config in configs.items():

        def pack(matrix: Tensor, config: Any = config) -> Any:
            held = _layer(matrix, torch.bfloat16)
            quantization.quantize_(held, config)
            return held

        yield Peer(name, "torchao", pack, _call)


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


PACKAGES: dict[str, Callable[[], Iterator[Peer]]] = {
    "gguf": _gguf,
    "bitsandbytes": _bitsandbytes,
    "optimum-quanto": _quanto,
    "torchao": _torchao,
}
