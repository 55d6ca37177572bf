"""A parameter server over sockets: workers send compressed gradients, the server compressed steps.

    python examples/parameter_server.py --save run/    # a server and 3 workers; again: goes on

The model is a linear regression, in numpy. Messages are a length and a frame.
"""

import argparse
import json
import multiprocessing
import socket
import struct
from pathlib import Path
from typing import Any

import numpy as np

import gradwire

NUMEL, RATE = 2_000, 0.2
CODEC, DENSE = gradwire.topk(ratio=0.05), gradwire.dense()
LONGEST = DENSE.max_encoded_len(NUMEL)


def send(link: Any, frame: Any) -> None:
    """Send a frame after its length."""
    link.write(struct.pack("<I", len(frame)) + bytes(frame))
    link.flush()


def receive(link: Any) -> bytes:
    """Receive a frame. Whatever the other side claims, memory for one frame is taken, no more."""
    (nbytes,) = struct.unpack("<I", link.read(4).ljust(4, b"\0"))
    if nbytes > LONGEST:
        raise gradwire.CorruptFrameError(f"{nbytes} bytes announced, the limit is {LONGEST}")
    return bytes(link.read(nbytes))


def resume(file: Path, state: gradwire.State) -> dict[str, Any]:
    """Load the state of one side and return what else was saved with it, if it was saved."""
    if not file.exists():
        return {}
    with np.load(file) as saved:
        found = dict(saved)
    about = json.loads(str(found.pop("about")))
    state.load_state_dict({**about, "residual": found.pop("residual")})
    return found


def save(file: Path, state: gradwire.State, **arrays: Any) -> None:
    """Save the residual and the rest of a state, which is JSON, and other arrays."""
    about = state.state_dict()
    residual = about.pop("residual")
    np.savez(file, residual=residual, about=json.dumps(about), **arrays)


def serve(listener: socket.socket, workers: int, steps: int, file: Path) -> None:
    """Average what the workers send, step, and send every worker the same step."""
    state = CODEC.init_state(NUMEL)
    weights = resume(file, state).get("weights", np.zeros(NUMEL, np.float32))
    links = {}
    for _ in range(workers):
        link = listener.accept()[0].makefile("rwb")
        links[link.read(1)[0]] = link
        send(link, DENSE.encode(weights))
    for _ in range(steps):
        total = np.zeros(NUMEL, np.float32)
        for rank in sorted(links):  # always in the same order, so that a run can be repeated
            try:
                gradwire.decode_add(receive(links[rank]), total)
            except (gradwire.GradwireError, OSError) as error:
                print(f"worker {rank} is left out: {type(error).__name__}: {error}", flush=True)
                links.pop(rank).close()
        step = CODEC.encode(total * np.float32(-RATE / max(len(links), 1)), state)
        gradwire.decode_add(step, weights)
        for link in links.values():
            send(link, step)
    save(file, state, weights=weights)


def work(address: tuple[str, int], rank: int, steps: int, file: Path) -> None:
    """Train on batches of this worker's own."""
    state = CODEC.init_state(NUMEL)
    resume(file, state)
    hidden = np.random.default_rng(0).standard_normal(NUMEL, dtype=np.float32)
    link = socket.create_connection(address).makefile("rwb")
    link.write(bytes([rank]))
    link.flush()
    weights = gradwire.decode(receive(link), max_numel=NUMEL)
    for _ in range(steps):
        random = np.random.default_rng([1, rank, state.step])
        inputs = random.standard_normal((256, NUMEL), dtype=np.float32)
        errors = inputs @ (weights - hidden)
        send(link, CODEC.encode(errors @ inputs / np.float32(len(inputs)), state))
        gradwire.decode_add(receive(link), weights)
    print(f"worker {rank}: step {state.step}, loss {np.mean(errors**2):.3f}", flush=True)
    save(file, state)


def main() -> None:
    """Start a server and its workers on this machine."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--save", type=Path, default=Path("run"), metavar="DIR")
    options = parser.parse_args()
    options.save.mkdir(parents=True, exist_ok=True)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ranks = [
            multiprocessing.Process(
                target=work,
                args=(listener.getsockname(), r, options.steps, options.save / f"worker{r}.npz"),
            )
            for r in range(options.workers)
        ]
        for rank in ranks:
            rank.start()
        serve(listener, options.workers, options.steps, options.save / "server.npz")
    for rank in ranks:
        rank.join()


if __name__ == "__main__":
    main()
