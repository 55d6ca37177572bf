"""What is measured on links of known speed between real processes."""

import pytest

pytest.importorskip("torch", reason="the benches need the extra [torch]")

from benches.harness.processes import joined

SPEED = 20_000_000
PAYLOAD = 1448 / 1514
"""Share of a full packet that is not headers."""


@pytest.mark.full
@pytest.mark.timeout(600)
def test_a_link_is_not_found_faster_than_it_is():
    # All-reduces of a few kilobytes fit into what the link lets through at once after a pause.
    with joined(2, "tests.benches.measuring") as (ranks, why_not):
        if why_not is not None:
            pytest.skip(f"no shaped link: {why_not}")
        ranks.shape(SPEED)
        first, second = ranks.ask(do="link", seconds=0.1)
    assert first == second
    assert first["bandwidth"] < PAYLOAD * SPEED
