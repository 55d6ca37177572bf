"""Every Python block of the pages on Horovod runs under horovodrun, as a reader would type them."""

import pytest

from tests.docs.guides import blocks
from tests.horovod.launcher import HorovodRanks as Ranks


@pytest.mark.parametrize("page", ["horovod"])
def test_the_blocks_of_a_page_run_and_leave_equal_models(two: Ranks, page: str) -> None:
    first, second = two.run("guide.page", name=page)
    assert first == second
    assert len(first) == sum(1 for _ in blocks(page)) - 1 == 2
