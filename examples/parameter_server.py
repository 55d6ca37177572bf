"""A parameter server over sockets: workers send compressed gradients, it sends compressed steps.

    python examples/parameter_server.py run/    # a server and 3 workers; repeat it to continue

The model is a linear regression in numpy. A message is a length and a frame.
"""

import contextlib
import multiprocessing
import pickle
import socket
import sys
from pathlib import Path
from typing import Any

import numpy as np

import gradwire

NUMEL, RATE, STEPS = 1_000, np.float32(0.03), 100
CODEC, DENSE = gradwire.topk(ratio=0.1), gradwire.dense()
LONGEST = DENSE.max_encoded_len(NUMEL)


def send(link: Any, frame: Any) -> None:
    """Send a frame after its length."""
    link.write(len(frame).to_bytes(4, "little") + bytes(frame))
    link.flush()


def receive(link: Any) -> bytes:
    """Receive a frame. No matter what the sender announces, memory is bounded by one frame."""
    nbytes = int.from_bytes(link.read(4), "little")
    if nbytes > LONGEST:
        raise gradwire.CorruptFrameError(f"{nbytes} bytes announced, the limit is {LONGEST}")
    return bytes(link.read(nbytes))


def serve(listener: socket.socket, workers: int, file: Path) -> None:
    """Average what the workers send, and send every worker the same step."""
    weights, state, links = np.zeros(NUMEL, np.float32), CODEC.init_state(NUMEL), {}
    if file.exists():  # its own file: never unpickle what others may have written
        weights, state = pickle.loads(file.read_bytes())
    for _ in range(workers):
        link = listener.accept()[0].makefile("rwb")
        links[link.read(1)] = link
        send(link, DENSE.encode(weights))
    for _ in range(STEPS):
        total = np.zeros(NUMEL, np.float32)
        for rank in sorted(links):  # in the same order each time, so that a run can be repeated
            try:
                gradwire.decode_add(receive(links[rank]), total)
            except (gradwire.GradwireError, OSError) as error:  # nothing was added
                print(f"without worker {rank[0]}: {type(error).__name__}: {error}", flush=True)
                links.pop(rank).close()
        step = CODEC.encode(total * (-RATE / np.float32(max(len(links), 1))), state)
        gradwire.decode_add(step, weights)
        for link in links.values():
            with contextlib.suppress(OSError):  # the worker is gone: the next round reports it
                send(link, step)
    file.write_bytes(pickle.dumps((weights, state)))


def work(address: tuple[str, int], rank: int, file: Path) -> None:
    """Train on this worker's own batches."""
    state = pickle.loads(file.read_bytes()) if file.exists() else CODEC.init_state(NUMEL)
    hidden = np.random.default_rng(0).standard_normal(NUMEL, dtype=np.float32)
    link = socket.create_connection(address).makefile("rwb")
    link.write(bytes([rank]))
    link.flush()
    weights = gradwire.decode(receive(link), max_numel=NUMEL)
    for _ in range(STEPS):
        random = np.random.default_rng([1, rank, state.step])
        inputs = random.standard_normal((256, NUMEL), dtype=np.float32)
        errors = inputs @ (weights - hidden)
        send(link, CODEC.encode(errors @ inputs / np.float32(256), state))
        gradwire.decode_add(receive(link), weights)
    print(f"worker {rank}: step {state.step}, loss {np.mean(errors**2):.3f}", flush=True)
    file.write_bytes(pickle.dumps(state))


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        for rank in range(3):
            arguments = listener.getsockname(), rank, folder / f"worker{rank}.pkl"
            multiprocessing.Process(target=work, args=arguments).start()
        serve(listener, 3, folder / "server.pkl")
