"""What PowerSGD computes from sums has the same bits at every SIMD level of NumPy and torch."""

import base64

import numpy as np
import pytest

from gradwire.exchange import LowRank
from tests.support import run_python

torch = pytest.importorskip("torch")

SCRIPT = """
import hashlib
import numpy as np, torch
from gradwire._orthonormal import orthonormalize
from gradwire.torch.exchange.powersgd import _product

draw = np.random.default_rng(0)
digest = hashlib.sha256()
for rank, rows, columns in ((1, 7, 5), (2, 1023, 65), (4, 2048, 33), (3, 50_001, 3)):
    p = draw.standard_normal((rank, rows)).astype(np.float32)
    orthonormalize(p)
    digest.update(p)
    transposed = torch.from_numpy(draw.standard_normal((rank, columns)).astype(np.float32))
    out, term = torch.empty(2, rows, columns)
    digest.update(_product(torch.from_numpy(p).T, transposed, out, term).numpy())
print(digest.hexdigest())
print(torch.backends.cpu.get_cpu_capability())
"""
FEATURES = """
try:
    from numpy._core import _multiarray_umath as core
except ImportError:  # before 2.0
    from numpy.core import _multiarray_umath as core
print(*(each for each in core.__cpu_dispatch__ if core.__cpu_features__[each]))
"""


@pytest.mark.full
def test_every_simd_level_gives_the_same_bits():
    found = run_python(FEATURES).split()
    levels = [(None, []), ("default", found), ("avx2", found[1:])]
    digests = set()
    for level, disabled in levels:
        environment = {"NPY_DISABLE_CPU_FEATURES": " ".join(disabled)} if disabled else {}
        if level is not None:
            environment["ATEN_CPU_CAPABILITY"] = level
        digest, capability = run_python(SCRIPT, **environment).splitlines()
        digests.add(digest)
        if level == "default":
            assert capability in ("DEFAULT", "NO AVX")
    assert len(digests) == 1


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_state_that_is_not_finite_is_refused_and_nothing_changes(value):
    from gradwire.torch.engine.low_rank_state import LowRankState

    state = LowRankState(LowRank(2), (6, 4), "weight", keeps=True)
    state.matrix(torch.ones(24))
    state.take(torch.ones(4, 2))
    before = state.state_dict()
    q = np.full(8, value, np.float32)
    residual = np.full(24, value, np.float32)
    for what, damaged in (("q", base64.b64encode(q.tobytes()).decode()), ("residual", residual)):
        with pytest.raises(ValueError, match=f"{what} has values that are NaN or infinite"):
            state.load_state_dict({**before, what: damaged})
        after = state.state_dict()
        assert after["q"] == before["q"]
        assert np.array_equal(after["residual"], before["residual"])
