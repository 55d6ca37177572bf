"""The gradients that the contestants compress."""

import functools
from collections.abc import Callable, Iterator
from itertools import islice

import numpy as np

from .peers import Array

SEED = 20210405
CHUNK = 1 << 20


def laplace(numel: int, step: int) -> Array:
    """Laplace (double exponential) entries: the distribution that SIDCo's simplest fit assumes."""
    return _in_chunks(numel, step, lambda generator, size: generator.laplace(size=size))


def student(numel: int, step: int) -> Array:
    """Student's t with 3 degrees of freedom: tails as heavy as real gradients have them."""
    return _in_chunks(numel, step, lambda generator, size: generator.standard_t(3, size))


def captured(numel: int, step: int) -> Array:
    """Gradients of the demo's two models while they train, from several points of the training.

    A tensor longer than all of them repeats them, each time with noise of a third of every entry:
    layers keep their scales, and no compressor finds the repetition.
    """
    pool = np.roll(_capture(), -step * len(_capture()) // 7)
    generator = np.random.default_rng((SEED, step))
    out = np.empty(numel, np.float32)
    for start in range(0, numel, len(pool)):
        size = min(len(pool), numel - start)
        blur = generator.standard_normal(size, np.float32) / 3 if start else np.float32(0)
        out[start : start + size] = pool[:size] * (1 + blur)
    return out


LAWS: dict[str, Callable[[int, int], Array]] = {
    "laplace": laplace,
    "student-t3": student,
    "captured": captured,
}

HEADLINE = "student-t3"
"""The distribution with the heaviest tails, as real gradients have them."""


@functools.lru_cache(maxsize=1)
def gradients(law: str, numel: int) -> tuple[Array, ...]:
    """Return the gradients of two steps, kept for the cases that follow with the same ones."""
    return tuple(LAWS[law](numel, step) for step in range(2))


def _in_chunks(
    numel: int,
    step: int,
    draw: Callable[[np.random.Generator, int], "np.ndarray[tuple[int], np.dtype[np.float64]]"],
) -> Array:
    """Draw in float64 by pieces, so that the largest tensor needs no double in memory."""
    generator = np.random.default_rng((SEED, step))
    out = np.empty(numel, np.float32)
    for start in range(0, numel, CHUNK):
        size = min(CHUNK, numel - start)
        out[start : start + size] = 1e-3 * draw(generator, size)
    return out


@functools.cache
def _capture() -> Array:
    """Train both models for a while, once, and keep gradients from early, middle and late."""
    return np.concatenate([*_gradients_of("digits"), *_gradients_of("text")])


def _gradients_of(name: str, points: tuple[int, ...] = (1, 20, 60)) -> Iterator[Array]:
    import torch

    from benches.harness.digits import Digits
    from benches.harness.optimizers import recipe_for
    from benches.harness.rates import rate_for
    from benches.harness.tasks import Task, loss_sum
    from benches.harness.text import Text

    task: Task = Digits() if name == "digits" else Text()
    model = task.model()
    recipe = recipe_for(task.usual, None)
    rate = rate_for(name, "none", None, str(recipe)).value
    optimizer, schedule = recipe.build(model.parameters(), rate, max(points))
    for step, batch in enumerate(islice(task.batches(0, 1), max(points)), start=1):
        optimizer.zero_grad()
        loss, _, number = loss_sum(model, batch)
        (loss / number).backward()  # type: ignore[no-untyped-call]
        if step in points:
            flat = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
            yield torch.cat(flat).numpy()
        optimizer.step()
        schedule.step()
