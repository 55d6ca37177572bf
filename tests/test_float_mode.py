"""Programs that change the floating-point mode get the same frames, and lose nothing."""

import pytest

from tests.support import run_python

pytest.importorskip("torch")

SCRIPT = """
import hashlib, sys
import numpy as np, torch
import gradwire, gradwire.torch

flushes = sys.argv[1] == "flush"
n = 400_000  # enough for three threads
bits = np.random.default_rng(0).integers(1, 1 << 22, (2, n), np.uint32)
steps = bits.view(np.float32)  # every one of them subnormal
if flushes and not torch.set_flush_denormal(True):
    sys.exit("no such mode on this processor")
codecs = [
    gradwire.strom(threshold=1e-39),
    gradwire.topk(0.01),
    gradwire.sidco(0.01),
    gradwire.dense(),
    gradwire.float8(),
    gradwire.onebit(column=100),
    gradwire.terngrad(),
]
for codec in codecs:
    for threads in (1, 3):
        gradwire.set_num_threads(threads)
        state, digest = codec.init_state(n), hashlib.sha256()
        sums = [torch.zeros(n), np.zeros(n, np.float32)]
        for x in steps:
            frame = gradwire.torch.encode(codec, torch.from_numpy(x), state)
            gradwire.torch.decode_add(frame, sums[0], 2.0**-30)
            gradwire.decode_add(frame, sums[1], 1e-39)
            digest.update(bytes(frame))
            digest.update(gradwire.decode(frame).tobytes())
        digest.update(sums[0].numpy().tobytes() + sums[1].tobytes())
        if state.residual is not None:
            digest.update(state.residual.tobytes())
        digest.update(repr(sorted(state.state_dict()["scalars"].items())).encode())
        print(codec.sparsify.kind, digest.hexdigest())
# The program's own mode is what it was.
if flushes:
    half = torch.full((64,), 1.1754944e-38) * 0.5
    assert not half.any()
"""


@pytest.mark.full
def test_flushing_subnormal_numbers_changes_nothing_on_any_number_of_threads():
    expected = run_python(SCRIPT, "keep").splitlines()
    assert len(expected) == 14
    for first in range(0, 14, 2):
        assert len(set(expected[first : first + 2])) == 1
    assert run_python(SCRIPT, "flush").splitlines() == expected
