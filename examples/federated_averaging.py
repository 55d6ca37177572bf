"""Federated averaging with compressed updates, in numpy alone.

    python examples/federated_averaging.py --save run/    # again: goes on with the next rounds

Each round, some of ten clients train on data that they alone have, and send what changed. A client
that is absent keeps its residual until it comes back.
"""

import argparse
import pickle
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import gradwire

FEATURES, HIDDEN, CLASSES, CLIENTS = 64, 128, 10, 10
NUMEL = (FEATURES + CLASSES) * HIDDEN
Vector = NDArray[np.float32]
CENTRES = np.random.default_rng(1).standard_normal((CLASSES, FEATURES)).astype(np.float32)


def batch(random: np.random.Generator, classes: list[int]) -> tuple[Vector, NDArray[np.int64]]:
    """Return points around the centres of these classes."""
    targets = random.choice(classes, 64)
    return CENTRES[targets] + random.standard_normal((64, FEATURES), dtype=np.float32), targets


def forward(weights: Vector, inputs: Vector) -> tuple[Vector, Vector]:
    """Return the hidden layer and the probabilities."""
    first, second = np.split(weights, [FEATURES * HIDDEN])
    hidden = np.maximum(inputs @ first.reshape(FEATURES, HIDDEN), 0)
    scores = hidden @ second.reshape(HIDDEN, CLASSES)
    shifted = np.exp(scores - scores.max(axis=1, keepdims=True))
    return hidden, shifted / shifted.sum(axis=1, keepdims=True)


def train(weights: Vector, random: np.random.Generator, classes: list[int]) -> Vector:
    """Return the weights after five steps of SGD."""
    for _ in range(5):
        inputs, targets = batch(random, classes)
        hidden, slope = forward(weights, inputs)
        slope[np.arange(len(targets)), targets] -= 1
        slope /= len(targets)
        back = (slope @ weights[FEATURES * HIDDEN :].reshape(HIDDEN, CLASSES).T) * (hidden > 0)
        gradient = np.concatenate([(inputs.T @ back).ravel(), (hidden.T @ slope).ravel()])
        weights = weights - np.float32(0.1) * gradient
    return weights


def main() -> None:
    """Run some rounds, after those that were saved."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--save", type=Path, default=Path("run"), metavar="DIR")
    options = parser.parse_args()
    codec, file = gradwire.topk(ratio=0.05), options.save / "federated.pkl"
    weights = np.random.default_rng(0).standard_normal(NUMEL, dtype=np.float32) / np.float32(8)
    states, first, sent = [codec.init_state(NUMEL) for _ in range(CLIENTS)], 0, 0
    if file.exists():  # your own file: never unpickle one from elsewhere
        weights, states, first = pickle.loads(file.read_bytes())
    for number in range(first, first + options.rounds):
        present = np.random.default_rng([2, number]).choice(CLIENTS, 6, replace=False)
        total = np.zeros(NUMEL, np.float32)
        for client in sorted(present):
            random = np.random.default_rng([3, number, client])
            trained = train(weights, random, [client, (client + 1) % CLASSES])
            frame = codec.encode(trained - weights, states[client])  # what a client sends
            gradwire.decode_add(frame, total, scale=1 / len(present))  # what the server does
            sent += frame.nbytes
        weights = weights + total
    inputs, targets = batch(np.random.default_rng(4), list(range(CLASSES)))
    right = np.mean(forward(weights, inputs)[1].argmax(axis=1) == targets)
    per_client = sent / options.rounds / 6
    print(f"round {first + options.rounds}: {right:.0%} right, {per_client:.0f} bytes per client")
    print(f"{4 * NUMEL / per_client:.0f} times fewer than float32")
    options.save.mkdir(parents=True, exist_ok=True)
    file.write_bytes(pickle.dumps((weights, states, first + options.rounds)))


if __name__ == "__main__":
    main()
