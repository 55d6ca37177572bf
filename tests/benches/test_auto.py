"""attach(model, "auto") over a real link whose speed changes while a model trains."""

import time
from contextlib import ExitStack

import pytest

pytest.importorskip("torch", reason="the bench needs the extra [torch]")

from benches.compare.exchange import Rank, together
from gradwire.cli.training.link import open_link

FAST = 100_000_000_000
SLOW = 10_000_000
LIMIT = 400.0
"""Seconds in which a decision has to have come; it takes a few."""


@pytest.mark.timeout(4 * LIMIT)
def test_it_compresses_on_a_slow_link_and_is_dense_on_a_fast_one_and_back(tmp_path):
    with ExitStack() as stack:
        link, why_not = open_link(2)
        stack.enter_context(link)
        if why_not is not None:
            pytest.skip(f"no shaped link: {why_not}")
        link.set_rate(SLOW)
        ranks = []
        for number in range(2):
            ranks.append(Rank(link, number, str(tmp_path), "benches.auto.rank"))
            stack.callback(ranks[-1].close)
        together(ranks)

        def ask(**command):
            for each in ranks:
                each.tell(**command)
            return together(ranks)

        # Encodes are so slow that the codec pays only where an exchange takes longer than they do,
        # however loaded the machine is: dense, a step takes 0.2 s on the slow link, and next to
        # nothing on the fast one; with the codec, some 0.05 s on both.
        ask(
            do="begin",
            methods=["auto"],
            layers=1,
            width=256,
            bucket_mb=0.3,
            max_ratio=0.1,
            slow=0.03,
        )

        def until(compressed: bool) -> str:
            deadline = time.monotonic() + LIMIT
            while True:
                first, second = ask(do="steps", method="auto", count=4)
                assert first["kinds"] == second["kinds"]
                assert first["decision"] == second["decision"]
                settled = first["decision"].startswith("It averages")
                if settled and ("codec" in first["kinds"]) == compressed:
                    return str(first["decision"])
                assert time.monotonic() < deadline, first

        assert "the codec at ratio 0.1" in until(compressed=True)
        link.set_rate(FAST)
        assert "codec" not in until(compressed=False).partition(":")[0]
        link.set_rate(SLOW)
        assert "the codec at ratio 0.1" in until(compressed=True)
