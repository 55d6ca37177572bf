"""attach(model, "auto") over a real link whose speed changes while a model trains."""

import time

import pytest

pytest.importorskip("torch", reason="the bench needs the extra [torch]")

from benches.harness.processes import joined

FAST = 100_000_000_000
SLOW = 10_000_000
LIMIT = 900.0
"""Seconds in which a decision has to have come. It takes a few where steps become longer. On a
faster link, those with the codec do not change: there it takes a hundred times as long as probes.
"""


@pytest.mark.night
@pytest.mark.timeout(4 * LIMIT)
def test_it_compresses_on_a_slow_link_and_is_dense_on_a_fast_one_and_back():
    with joined(2, "tests.benches.slow_auto") as (ranks, why_not):
        if why_not is not None:
            pytest.skip(f"no shaped link: {why_not}")
        ranks.shape(SLOW)
        # Encodes are so slow that the codec pays only where an exchange takes longer than they do,
        # however loaded the machine is: dense, a step takes 0.2 s on the slow link, and next to
        # nothing on the fast one; with the codec, some 0.05 s on both.
        ranks.ask(do="begin", min_ratio=0.1)

        def until(compressed: bool) -> str:
            deadline = time.monotonic() + LIMIT
            while True:
                first, second = ranks.ask(do="steps", contestant="auto", count=4)
                assert first["kinds"] == second["kinds"]
                assert first["decision"] == second["decision"]
                # While probes go on, it says what was decided before them.
                said = str(first["decision"])
                if said.startswith("Using ") and said.startswith("Using the codec") == compressed:
                    return said
                assert time.monotonic() < deadline, first

        assert "the codec at ratio 0.1" in until(compressed=True)
        ranks.shape(FAST)
        assert "codec" not in until(compressed=False).partition(":")[0]
        ranks.shape(SLOW)
        assert "the codec at ratio 0.1" in until(compressed=True)
