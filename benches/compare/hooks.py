"""torch's own communication hooks for DDP as contestants: their code, run on our own bucket.

A process group of one rank replaces the link, so that only the work of the hook is timed. A hook
compresses, reduces and decompresses in one call. All of that counts as its encode, and nothing
remains to decode. Its bytes are those that a rank sends in a ring all-reduce, between two ranks, of
the tensors that the hook reduces. The `exchange` section runs the same hooks end to end.
"""

from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import HashStore
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

from .contestant import Array, Contestant

# Ranks that torch advises to try, and the paper uses.
POWER_RANKS = (1, 2, 4)
SIDE = 1000  # of the square layers that a long tensor is made of


def layers(flat: Tensor) -> list[Tensor]:
    """Return views of a tensor as the layers of a model: square matrices, and a bias of the rest.

    Of a million entries and more the matrices are 1000 x 1000, of less there is one.
    """
    numel = flat.numel()
    side = min(SIDE, int(numel**0.5))
    number = numel // side**2
    whole = flat[: number * side**2].view(number, side, side)
    rest = flat[number * side**2 :]
    return [*whole.unbind(), *([rest] if len(rest) else [])]


class Bucket:
    """The methods of DDP's bucket that a hook calls."""

    def __init__(self, numel: int, device: str) -> None:
        self.flat = torch.zeros(numel, device=device)
        self.layers = layers(self.flat)

    def buffer(self) -> Tensor:
        return self.flat

    def gradients(self) -> list[Tensor]:
        return self.layers

    def index(self) -> int:
        return 0

    def is_last(self) -> bool:
        return True


def group(device: str) -> Any:
    """Return a new group of this process alone: of NCCL for a GPU, else of Gloo.

    Hooks go on in the threads of the group. They take over the number of threads that torch is set
    to when they begin, so every case needs threads of its own.
    """
    if not dist.is_initialized():
        transport = "gloo" if device == "cpu" else "nccl"
        dist.init_process_group(transport, store=HashStore(), rank=0, world_size=1)
    return dist.new_group([0])


class Hook(Contestant):
    """A hook of torch; DDP has put the gradient into the bucket before it is called."""

    def __init__(self, numel: int, ratio: float, device: str = "cpu") -> None:
        super().__init__(numel, ratio)
        self.group = group(device)
        self.bucket: Any = Bucket(numel, device)

    def ready(self, gradient: Array | Tensor) -> None:
        self.bucket.flat.copy_(torch.as_tensor(gradient))

    def decode_add(self, wire: Tensor, out: Array | Tensor) -> None:
        """Do nothing: the encode has left the result in the bucket."""

    def count(self, wire: Tensor) -> int:
        return self.numel


class HalfHook(Hook):
    name = "torch bf16 hook"
    setting = "bf16_compress_hook of torch, the whole of it but the link"

    def encode(self, gradient: Array | Tensor) -> Tensor:
        return default_hooks.bf16_compress_hook(self.group, self.bucket).wait()

    def nbytes(self, wire: Tensor) -> int:
        return 2 * self.numel


class PowerSGD(Hook):
    """powerSGD_hook with its error feedback and warm start (Vogels et al., NeurIPS 2019)."""

    rank: ClassVar[int]

    def __init__(self, numel: int, ratio: float, device: str = "cpu") -> None:
        super().__init__(numel, ratio, device)
        self.state = power_state(self.group, self.rank, batched=device != "cpu")
        # The hook leaves the first steps alone, for DDP's sake.
        self.state.iter = self.state.start_powerSGD_iter

    def encode(self, gradient: Array | Tensor) -> Tensor:
        return powerSGD_hook.powerSGD_hook(self.state, self.bucket).wait()

    def nbytes(self, wire: Tensor) -> int:
        factors = self.state.p_memory_dict[0].numel() + self.state.q_memory_dict[0].numel()
        matrices = sum(layer.numel() for layer in self.bucket.layers if layer.dim() > 1)
        return int(4 * (factors + self.numel - matrices))


def power_state(
    process_group: Any, rank: int, *, batched: bool = False
) -> powerSGD_hook.PowerSGDState:
    """Return the setting in which PowerSGD does best here, the same end to end.

    Stacking layers of one shape copies them all twice, which costs more on a CPU than it saves; a
    GPU would have a hundred small products to start instead.
    """
    return powerSGD_hook.PowerSGDState(
        process_group,
        matrix_approximation_rank=rank,
        start_powerSGD_iter=2,
        batch_tensors_with_same_shape=batched,
    )


def _power(number: int) -> type[PowerSGD]:
    attributes = {
        "name": f"torch PowerSGD, rank {number}",
        "setting": (
            f"powerSGD_hook of torch, rank {number}, error feedback and warm start, layers of "
            "1000 x 1000 one by one; the whole hook but the link. Every entry is sent, "
            "approximately: how well depends on the gradient's rank, which ours here have not"
        ),
        "rank": number,
    }
    return type(f"PowerSGD{number}", (PowerSGD,), attributes)


ALL: tuple[type[Hook], ...] = (HalfHook, *(_power(number) for number in POWER_RANKS))
