"""Do encodes get through beside kernels that wait, and is a lost device said?

    python3 -m tests.gpu.liveness lazy | held | poison

``lazy``: one block spins, as one of a collective does that waits for another rank, while a process
makes its first encode. All kernels were loaded before, so the encode ends first: CUDA may wait for
the device where it loads one.
``held``: blocks hold a multiprocessor each until the host lets them go, as collectives do; up to
how many of them does an encode end? The flag is memory of the host, so nothing stays stuck.
``poison``: another thread spoils the context; the next encode raises a `DeviceError`.

The last line is the answer, as JSON.
"""

import json
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import torch

import gradwire
import gradwire.torch
from gradwire.torch import backends
from gradwire.torch.backends import cuda

NUMEL = 25_000_000
SPIN = 4.0
"""Seconds that a block spins, far more than an encode takes."""
PATIENCE = 2.0
"""Seconds after which an encode is taken to wait for what holds the multiprocessors."""
HELD = (0, 16, 24, 32, 33, 40, 48, 66)
HOLD = """
extern "C" __global__ void hold(const volatile unsigned* flag) {
    extern __shared__ char room[];
    if (threadIdx.x == 0) while (*flag == 0) __nanosleep(500);
    __syncthreads();
}
"""


def started(work: Callable[[], object]) -> tuple[threading.Thread, list[float]]:
    """Begin work in a thread with a stream of its own; return the seconds that it takes, later."""
    took: list[float] = []

    def run() -> None:
        began = time.perf_counter()
        with torch.cuda.stream(torch.cuda.Stream()):
            work()
        took.append(time.perf_counter() - began)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, took


def encoder(codec: gradwire.Codec) -> Callable[[], object]:
    x = torch.randn(NUMEL, device="cuda")
    state = cuda.init_state(codec, NUMEL, "w", 0)
    torch.cuda.synchronize()
    return lambda: cuda.encode(codec, x, state, None)


def lazy() -> dict[str, Any]:
    """Which calls have ended when the block that spins is still there?"""
    encode, other = encoder(gradwire.topk(ratio=0.001)), torch.randn(1000, device="cuda")
    backends.preload([other])
    # In kHz, which CUDA 13 does not tell of every device.
    clock = getattr(torch.cuda.get_device_properties(0), "clock_rate", 0) or 1_500_000
    side, event = torch.cuda.Stream(), torch.cuda.Event()
    with torch.cuda.stream(side):
        torch.cuda._sleep(int(SPIN * 1000 * clock))
        event.record()
    works = {"encode": started(encode), "sum": started(lambda: other.sum().item())}
    while not event.query() and any(thread.is_alive() for thread, _ in works.values()):
        time.sleep(0.001)
    first = {name: bool(took) for name, (_, took) in works.items()}
    for thread, _ in works.values():
        thread.join()
    return {"ok": first["encode"], "ended before": first}


def held() -> dict[str, Any]:
    """How long does an encode take beside so many multiprocessors that are held?"""
    hold = torch.cuda._compile_kernel(HOLD, "hold")
    properties = torch.cuda.get_device_properties(0)
    room = properties.shared_memory_per_block_optin  # so that a block has a multiprocessor alone
    hold.set_shared_memory_config(room)
    flag = torch.zeros(1, dtype=torch.int32).pin_memory()
    side = torch.cuda.Stream()
    count = properties.multi_processor_count
    found: dict[str, Any] = {"multiprocessors": count}
    for name, codec in (("topk", gradwire.topk(0.001)), ("sidco", gradwire.sidco(0.001))):
        encode = encoder(codec)
        for _ in range(3):
            encode()
        rows = found[name] = {}
        for blocks in (each for each in HELD if each < count):
            flag.fill_(0)
            if blocks:
                grid, block = (blocks, 1, 1), (64, 1, 1)
                hold(grid=grid, block=block, args=[flag], shared_mem=room, stream=side)
                time.sleep(0.05)
            thread, took = started(encode)
            thread.join(PATIENCE)
            waited = thread.is_alive()
            flag.fill_(1)
            thread.join()
            torch.cuda.synchronize()
            rows[blocks] = "waited" if waited else round(1e3 * took[0], 3)
    # A collective of NCCL takes at most 32 blocks.
    found["ok"] = all(found[name][b] != "waited" for name in ("topk", "sidco") for b in HELD[:4])
    return found


def poison() -> dict[str, Any]:
    """What does an encode raise after another thread has spoiled the context?"""
    encode = encoder(gradwire.topk(ratio=0.001))
    encode()
    x, far = torch.zeros(4, device="cuda"), torch.tensor([99], device="cuda")

    def spoil() -> None:
        try:
            x[far].sum().item()
        except RuntimeError as error:
            print(error)

    thread = threading.Thread(target=spoil)
    thread.start()
    thread.join()
    try:
        encode()
    except Exception as error:
        return {"ok": type(error).__name__ == "DeviceError", "raised": f"{type(error)}: {error}"}
    return {"ok": False, "raised": None}


def main(name: str) -> int:
    """Run a scenario, and print its answer."""
    scenarios = {"lazy": lazy, "held": held, "poison": poison}
    if not torch.cuda.is_available():
        print(json.dumps("needs a GPU"))
        return 2
    torch.cuda.init()
    used = gradwire.torch.backend("cuda")
    if used.name != "cuda":
        print(json.dumps(f"needs kernels: {used.reason}"))
        return 2
    answer = scenarios[name]()
    print(json.dumps(answer), flush=True)
    return 0 if answer["ok"] else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
