"""Children of `fork`: threads stay behind in the parent, and the package goes on without them."""

import os

import pytest

from tests.support import run_python

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")

SCRIPT = """
import os, sys
import numpy as np
import gradwire

gradwire.set_num_threads(4)
x = np.random.default_rng(1).standard_normal(3_000_000).astype(np.float32)
codec = gradwire.sidco(0.01)
state = codec.init_state(x.size)
codec.encode(x, state)              # the pool is running now
saved = state.state_dict()
read, write = os.pipe()
child = os.fork()
if child == 0:
    frame = codec.encode(x, state)
    out = gradwire.decode(frame)
    os.write(write, frame.header()["checksum"].to_bytes(4, "little"))
    os._exit(0 if np.array_equal(out + state.residual, x + saved["residual"]) else 1)
frame = codec.encode(x, state)      # the parent's goes on as well
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
print(int.from_bytes(os.read(read, 4), "little") == frame.header()["checksum"])
"""


def test_a_forked_child_encodes_the_same_bytes_as_its_parent():
    # Warnings about fork with threads are what this test is about.
    assert run_python(SCRIPT, PYTHONWARNINGS="ignore").strip() == "True"


def test_a_child_that_was_forked_before_the_first_encode_works_too():
    script = SCRIPT.replace("codec.encode(x, state)              #", "#", 1)
    assert script != SCRIPT
    assert run_python(script).strip() == "True"


def test_multiprocessing_by_fork_takes_frames_and_states():
    out = run_python(
        """
        import multiprocessing
        import numpy as np
        import gradwire

        def work(pair):
            x, state = pair
            frame = state.codec.encode(x, state)
            return frame, state

        x = np.random.default_rng(1).standard_normal(300_000).astype(np.float32)
        codec = gradwire.topk(0.01)
        if __name__ == "__main__":
            with multiprocessing.get_context("fork").Pool(2) as pool:
                results = pool.map(work, [(x * i, codec.init_state(x.size)) for i in (1, 2, 3)])
            for i, (frame, state) in zip((1, 2, 3), results):
                assert np.array_equal(gradwire.decode(frame) + state.residual, x * np.float32(i))
            print("done")
        """,
        PYTHONWARNINGS="ignore",
    )
    assert out.strip() == "done"
