"""In the steady state a compressed step takes no memory that is new to the process."""

import sys
from typing import Any

import pytest

from tests.distributed.ranks import Ranks

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="the kernel counts faults otherwise"
)

TOLERANCE = 32
"""4 MB of gradients or of residuals, taken anew, would be 1,024 faults a step. On a busy machine as
on a quiet one, a step takes 2 to 5, with compression and without.
"""


@pytest.mark.parametrize(
    ("preset", "options"),
    [
        ("adam", {}),
        pytest.param("topk", {"ratio": 0.01}, marks=pytest.mark.full),
        pytest.param("sidco", {"ratio": 0.01}, marks=pytest.mark.full),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_compressed_step_takes_no_page_fault_beyond_those_of_ddp(
    expendable: Ranks, preset: str, options: dict[str, Any]
) -> None:
    for first, compressed, last in expendable.run(
        "page_faults.beside_dense", preset=preset, options=options
    ):
        assert compressed <= max(first, last) + TOLERANCE, (first, compressed, last)
