"""Write your own sparsifier, and compare its bytes and error with `gradwire.topk`.

python own_codec.py    # needs only numpy

It keeps the largest entry of every block, which needs no search over the whole tensor. Memories,
frames, checkpoints, DDP and the command line work with it as they do with built-in parts.
"""

import dataclasses
import time
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

import gradwire
from gradwire import extension
from gradwire.memory import Residual


@dataclasses.dataclass(frozen=True, repr=False)
class LargestOfBlocks(extension.Sparsifier):
    """The entry of largest magnitude in every block of `size` entries."""

    size: int = 100
    kind: ClassVar[str] = "largest_of_blocks"

    def select(self, values: NDArray[np.float32], *, step: int, key: int) -> NDArray[np.intp]:
        """Return the positions to send, in ascending order."""
        starts = np.arange(0, values.size, self.size)
        blocks = np.pad(np.abs(values), (0, -values.size % self.size)).reshape(-1, self.size)
        positions: NDArray[np.intp] = starts + blocks.argmax(axis=1)
        return positions

    def max_count(self, numel: int) -> int:
        """Return the largest number of entries that `select` may return."""
        return -(-numel // self.size)


def check(codec: gradwire.Codec) -> None:
    """Check that sent and kept values add up, and that its configuration can rebuild it."""
    for numel in (0, 1, 99, 100, 101, 5000):
        x, state = np.random.default_rng(1).standard_normal(numel, "f4"), codec.init_state(numel)
        frame = codec.encode(x, state)
        assert state.residual is not None
        assert frame.nbytes <= codec.max_encoded_len(numel)
        np.testing.assert_array_equal(gradwire.decode(frame) + state.residual, x)
    assert gradwire.Codec.from_config(codec.get_config()) == codec


def compare(codecs: dict[str, gradwire.Codec], numel: int = 1_000_000, steps: int = 100) -> None:
    """Print what each codec sends of partly similar gradients, and what never arrives."""
    common = np.random.default_rng(0).standard_normal(numel, "f4") ** 3
    for name, codec in codecs.items():
        state, wanted, sent = codec.init_state(numel), np.zeros(numel), np.zeros(numel, np.float32)
        nbytes, seconds, first = 0, 0.0, 0.0
        for step in range(steps):
            x = common + np.random.default_rng(step + 1).standard_normal(numel, "f4")
            began = time.perf_counter()
            frame = codec.encode(x, state)
            seconds += time.perf_counter() - began
            gradwire.decode_add(frame, sent)
            wanted, nbytes = wanted + x, nbytes + frame.nbytes
            if step == 0:
                first = float(np.linalg.norm(wanted - sent) / np.linalg.norm(wanted))
        error = np.linalg.norm(wanted - sent) / np.linalg.norm(wanted)
        size, spent = nbytes / steps, 1e3 * seconds / steps
        print(f"{name:16} {size:7,.0f} bytes {spent:5.1f} ms   error {first:.3f}, then {error:.3f}")


if __name__ == "__main__":
    own = gradwire.Codec(sparsify=LargestOfBlocks(100), memory=Residual())
    check(own)
    print("1,000,000 entries; bytes and ms a step; error after the first step and after all 100")
    compare({"topk(0.01)": gradwire.topk(0.01), "largest of 100": own})
