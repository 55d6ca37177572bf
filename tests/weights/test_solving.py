"""Packing by a Gram matrix: what solvers gain, solvers of one's own, and what is refused."""

import dataclasses

import numpy as np
import pytest

from gradwire import weights
from gradwire.errors import NonFiniteError
from gradwire.quantize import Affine
from gradwire.weights import COMQ, GPTQ, Budget, Gram, MagR

ROWS, COLS = 48, 192
FITS = ["squares", "range", "zero"]


def gram_of(seed, cols=COLS, samples=600):
    random = np.random.default_rng(seed)
    x = random.normal(size=(samples, cols)) @ np.diag(1 / np.arange(1, cols + 1) ** 0.5)
    x = x @ np.linalg.qr(random.normal(size=(cols, cols)))[0] + 0.05
    return Gram(x.T @ x, samples, x.mean(axis=0))


@pytest.fixture(scope="module")
def gram():
    return gram_of(1)


@pytest.fixture(scope="module")
def matrix():
    random = np.random.default_rng(2)
    w = random.normal(size=(ROWS, COLS))
    w[random.random(w.shape) < 0.01] *= 6
    return w.astype(np.float32)


def error_of(w, packed, gram):
    """As `Packed.error`, by numpy."""
    lost, exact = (each.astype(np.float64) for each in (packed.unpack() - w, w))
    squares = [np.einsum("ij,jk,ik->", each, gram.matrix, each) for each in (lost, exact)]
    return float(np.sqrt(squares[0] / squares[1]))


class Nearest:
    """A solver of one's own, as short as can be."""

    def solve(self, w, gram, affine):
        packed = weights.pack(w, affine)
        blocks = packed.unpack().reshape(len(w), -1, affine.block)
        low, high = blocks.min(-1), blocks.max(-1)
        steps = (high - low) / (2**affine.bits - 1)
        codes = np.rint((blocks - low[..., None]) / np.maximum(steps, 1e-30)[..., None])
        return codes.astype(np.uint8).reshape(w.shape), steps, low


@pytest.mark.parametrize("fit", ["squares", "range", "zero", "sawb"])
@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("block", [32, 64, COLS])
def test_outputs_change_less_from_nearest_to_gptq_to_comq(matrix, gram, fit, bits, block):
    affine = Affine(bits, block, fit=fit)
    packed = [
        weights.pack(matrix, affine),
        *(weights.pack(matrix, affine, gram=gram, rounding=each) for each in (GPTQ(), COMQ())),
    ]
    assert [(each.bits, each.block, each.nbytes) for each in packed[1:]] == 2 * [
        (bits, block, packed[0].nbytes)
    ]
    nearest, gptq, comq = (gram.error(matrix, each) for each in packed)
    assert gram.error(matrix, packed[2]) == pytest.approx(error_of(matrix, packed[2], gram))
    assert comq <= gptq * (1 + 1e-9)
    assert comq < (0.75 if bits < 8 else 0.95) * nearest
    if fit in ("squares", "range"):
        assert gptq < 0.9 * nearest


@pytest.mark.parametrize("noise", [0.0, 1e-6, 1e-3], ids=["rank one", "nearly", "almost"])
def test_comq_is_best_without_its_damping_on_nearly_singular_inputs(noise):
    """Of two codes the one with the smaller damped objective may have 39 times the error."""
    random = np.random.default_rng(1)
    for _ in range(60):
        cols, rows = int(random.choice([48, 96, 160])), int(random.choice([1, 3, 20]))
        affine = Affine(int(random.choice([2, 3, 6, 8])), cols, str(random.choice(FITS)))
        x = np.outer(random.standard_normal(50), random.standard_normal(cols))
        x += noise * random.standard_normal(x.shape)
        gram = Gram(x.T @ x, len(x), x.mean(0))
        w = random.standard_normal((rows, cols)).astype(np.float32)
        made = [weights.pack(w, affine, gram=gram, rounding=each) for each in (COMQ(), GPTQ())]
        comq, gptq, nearest = (gram.error(w, each) for each in [*made, weights.pack(w, affine)])
        assert comq <= min(gptq, nearest) * (1 + 1e-9), (affine, rows)


def test_bases_by_least_squares_are_better_than_steps_alone(matrix, gram):
    affine = Affine(2, 64)
    errors = [
        gram.error(matrix, weights.pack(matrix, affine, gram=gram, rounding=COMQ(bases=each)))
        for each in (False, True)
    ]
    assert errors[1] < 0.99 * errors[0]


def test_inputs_that_do_not_depend_on_each_other_leave_the_nearest_codes(matrix):
    affine = Affine(4, 64, fit="range")
    same = Gram(np.eye(COLS), 10, np.zeros(COLS))
    packed = weights.pack(matrix, affine, gram=same, rounding=GPTQ())
    assert packed.frame == weights.pack(matrix, affine).frame


def test_rows_in_groups_are_solved_by_the_matrix_of_their_own(matrix):
    grams = [gram_of(seed) for seed in (3, 4)]
    both = Gram(
        np.stack([each.matrix for each in grams]), 600, np.stack([each.mean for each in grams])
    )
    affine = Affine(3, 64)
    packed = weights.pack(matrix, affine, gram=both)
    halves = np.split(matrix, 2)
    for half, own, gram in zip(halves, np.split(packed.unpack(), 2), grams, strict=True):
        np.testing.assert_array_equal(weights.pack(half, affine, gram=gram).unpack(), own)
    assert both.error(matrix, packed) < both.error(matrix, weights.pack(matrix, affine))


def test_inputs_that_are_zero_or_constant_change_nothing_for_the_others(matrix, gram):
    dead = gram.matrix.copy()
    dead[5, :] = dead[:, 5] = 0
    affine = Affine(3, 64)
    packed = weights.pack(matrix, affine, gram=Gram(dead, 600, gram.mean))
    assert np.isfinite(packed.unpack()).all()
    assert packed.error(matrix) < 0.6
    constant = Gram(np.ones((COLS, COLS)), 600, np.ones(COLS))  # of rank one
    packed = weights.pack(matrix, affine, gram=constant)
    assert constant.error(matrix, packed) < 0.01
    assert packed.error(matrix) < 1


def test_magr_makes_the_largest_weights_smaller_and_packs_these(matrix, gram):
    affine = Affine(2, COLS)
    made = MagR(alpha=1e-2).prepare(matrix, gram.matrix, affine)
    assert np.abs(made).max() < 0.9 * np.abs(matrix).max()
    packed = weights.pack(matrix, affine, gram=gram, prepare=MagR(alpha=1e-2))
    assert packed.frame == weights.pack(made, affine, gram=gram).frame


def test_a_solver_of_ones_own_is_packed_as_it_says(matrix, gram):
    affine = Affine(3, 64)
    packed = weights.pack(matrix, affine, gram=gram, rounding=Nearest())
    codes, steps, bases = Nearest().solve(matrix, gram.matrix, affine)
    expected = np.repeat(bases, 64, 1) + np.repeat(steps, 64, 1) * codes
    np.testing.assert_allclose(packed.unpack(), expected, rtol=2e-3, atol=2e-3)


ANSWERS = {
    "codes of another shape": (lambda c, s, b: (c[:-1], s, b), "an array of shape"),
    "a code beyond the bits": (lambda c, s, b: (np.full_like(c, 8), s, b), "code"),
    "a step that is negative": (lambda c, s, b: (c, -s, b), "step"),
    "a base that is not a number": (lambda c, s, b: (c, s, np.nan * b), "not finite"),
    "a base beyond the range": (lambda c, s, b: (c, s, 1e9 * b), "base"),
    "a code that is no byte": (lambda c, s, b: (c.astype(int) + 300, s, b), "no codes"),
}


@pytest.mark.parametrize("wrong", ANSWERS)
def test_an_answer_that_is_no_grid_is_refused(matrix, gram, wrong):
    change, message = ANSWERS[wrong]

    class Wrong(Nearest):
        def solve(self, w, gram, affine):
            return change(*super().solve(w, gram, affine))

    with pytest.raises(ValueError, match=message):
        weights.pack(matrix, Affine(3, 64), gram=gram, rounding=Wrong())


def changed(gram, **cells):
    matrix = gram.matrix.copy()
    for name, value in cells.items():
        row, col = map(int, name.removeprefix("at_").split("_"))
        matrix[row, col] = value
    return dataclasses.replace(gram, matrix=matrix)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"rounding": COMQ()}, ValueError, "pass gram="),
        ({"prepare": MagR()}, ValueError, "pass gram="),
        ({"gram": "own", "more": (4,), "quantize": Affine(4, 64, "range")}, ValueError, "more="),
        ({"gram": "own", "quantize": Affine(4, None)}, ValueError, "give a block"),
        (
            {"gram": "own", "quantize": Affine(4, 64, "range", "stochastic")},
            ValueError,
            "cannot be rounded randomly",
        ),
        ({"gram": gram_of(1, COLS // 2)}, ValueError, "96"),
        ({"gram": {"at_3_4": 1e9}}, ValueError, "symmetric"),
        ({"gram": {"at_3_3": -1.0}}, ValueError, "negative"),
        ({"gram": {"at_3_3": np.nan}}, ValueError, "finite"),
    ],
)
def test_what_cannot_be_solved_is_refused_with_the_tensors_name(
    matrix, gram, options, error, message
):
    own = options.get("gram")
    if own == "own" or isinstance(own, dict):
        options = {**options, "gram": gram if own == "own" else changed(gram, **own)}
    options = {"quantize": Affine(3, 64), **options}
    with pytest.raises(error, match=message) as caught:
        weights.pack(matrix, name="layer", **options)
    if error is ValueError and "gram" in options and "more" not in options:
        assert "'layer'" in str(caught.value)


def test_a_weight_that_is_not_finite_is_refused_as_without_a_gram(matrix, gram):
    wrong = matrix.copy()
    wrong[1, 2] = np.inf
    with pytest.raises(NonFiniteError, match="'layer'"):
        weights.pack(wrong, Affine(3, 64), name="layer", gram=gram)


@pytest.mark.parametrize(
    ("make", "options", "error", "message"),
    [
        (COMQ, {"sweeps": 0}, ValueError, "sweeps must be at least 1"),
        (COMQ, {"start": "zero"}, ValueError, "start"),
        (COMQ, {"bases": 1}, TypeError, "bases"),
        (GPTQ, {"damp": -1}, ValueError, "damp must be finite and not negative"),
        (MagR, {"alpha": float("inf")}, ValueError, "alpha must be finite"),
        (MagR, {"steps": 0}, ValueError, "steps must be at least 1"),
        (Budget, {"bits": 0.0, "choices": ()}, ValueError, "at least one number of bits"),
        (Budget, {"bits": float("nan")}, ValueError, "bits must be finite"),
        (Budget, {"bits": "4"}, TypeError, "bits must be a real number"),
        (Budget, {"bits": 4, "choices": (2, 9)}, ValueError, "bits must be at most 8"),
        (Budget, {"bits": 4, "choices": (1,), "grid": Affine(4, fit="zero")}, ValueError, "2 bits"),
    ],
)
def test_options_that_make_no_sense_are_refused(make, options, error, message):
    with pytest.raises(error, match=message):
        make(**options)
