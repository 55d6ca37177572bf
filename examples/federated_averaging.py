"""Federated averaging with compressed updates, in numpy alone.

    python examples/federated_averaging.py run/    # repeat it to continue

In each round, six of ten clients train on their own two classes and send their changes.
A client that is absent keeps its residual until it comes back.
"""

import pickle
import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import gradwire

FEATURES, CLASSES, CLIENTS, PRESENT, ROUNDS = 256, 10, 10, 6, 40
NUMEL = FEATURES * CLASSES
CODEC = gradwire.topk(ratio=0.05)
CENTRES = np.random.default_rng(1).standard_normal((CLASSES, FEATURES), dtype=np.float32)
Vector = NDArray[np.float32]


def batch(random: np.random.Generator, classes: list[int]) -> tuple[Vector, NDArray[np.int64]]:
    """Return points around the centres of these classes."""
    targets = random.choice(classes, 64)
    noise = random.standard_normal((64, FEATURES), dtype=np.float32)
    return CENTRES[targets] + 6 * noise, targets


def train(weights: Vector, random: np.random.Generator, classes: list[int]) -> Vector:
    """Return the weights of a softmax regression after five steps of SGD."""
    for _ in range(5):
        inputs, targets = batch(random, classes)
        scores = inputs @ weights.reshape(FEATURES, CLASSES)
        slope = np.exp(scores - scores.max(axis=1, keepdims=True))
        slope /= slope.sum(axis=1, keepdims=True)
        slope[np.arange(len(targets)), targets] -= 1
        weights = weights - np.float32(0.01 / len(targets)) * (inputs.T @ slope).ravel()
    return weights


if __name__ == "__main__":
    file = Path(sys.argv[1], "federated.pkl")
    weights, first = np.zeros(NUMEL, np.float32), 0
    states = [CODEC.init_state(NUMEL) for _ in range(CLIENTS)]  # each client keeps its own
    if file.exists():  # its own file: never unpickle what others may have written
        weights, first, states = pickle.loads(file.read_bytes())
    sent = 0
    for number in range(first, first + ROUNDS):
        total = np.zeros(NUMEL, np.float32)
        for client in np.random.default_rng([2, number]).choice(CLIENTS, PRESENT, replace=False):
            random = np.random.default_rng([3, number, client])
            trained = train(weights, random, [client, (client + 1) % CLASSES])
            frame = CODEC.encode(trained - weights, states[client])  # what the client sends
            gradwire.decode_add(frame, total, scale=1 / PRESENT)  # what the server does with it
            sent += frame.nbytes
        weights = weights + total
    inputs, targets = batch(np.random.default_rng(4), list(range(CLASSES)))
    right = np.mean((inputs @ weights.reshape(FEATURES, CLASSES)).argmax(axis=1) == targets)
    smaller = 4 * NUMEL * PRESENT * ROUNDS / sent
    print(
        f"round {first + ROUNDS}: {right:.0%} right, {smaller:.0f} times fewer bytes than float32"
    )
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(pickle.dumps((weights, first + ROUNDS, states)))
