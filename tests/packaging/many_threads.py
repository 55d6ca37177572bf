"""Threads that use one module at a time, for Python without a GIL: `python many_threads.py`."""

import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np

import gradwire

THREADS, ROUNDS = 8, 40


def frames(seed: int, codec: gradwire.Codec) -> list[bytes]:
    """Return the frames of one tensor, whose state no other thread uses."""
    rng = np.random.default_rng(seed)
    state = codec.init_state(20_000)
    out = []
    for _ in range(ROUNDS):
        x = rng.standard_normal(20_000, dtype=np.float32)
        frame = bytes(codec.encode(x, state))
        assert gradwire.decode(frame).shape == x.shape
        out.append(frame)
    return out


def shared(codec: gradwire.Codec) -> None:
    """Encode one tensor's state from all threads: each call succeeds, or says that it is in use."""
    state = codec.init_state(200_000)
    x = np.ones(200_000, np.float32)

    def encode(_: int) -> int:
        try:
            codec.encode(x, state)
        except gradwire.GradwireError:
            return 0
        return 1

    with ThreadPoolExecutor(THREADS) as pool:
        assert sum(pool.map(encode, range(200))) > 0


def main() -> None:
    enabled = getattr(sys, "_is_gil_enabled", lambda: True)
    before = enabled()
    codec = gradwire.topk(0.01)
    alone = [frames(seed, codec) for seed in range(THREADS)]
    with ThreadPoolExecutor(THREADS) as pool:
        together = list(pool.map(frames, range(THREADS), [codec] * THREADS))
    assert together == alone, "threads change each other's frames"
    shared(codec)
    assert enabled() == before, "a module switched the GIL on"
    print(f"{THREADS} threads agree with one; the GIL is {'on' if before else 'off'}")


if __name__ == "__main__":
    main()
