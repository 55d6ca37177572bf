"""Every Python block of the page on Horovod runs under horovodrun, as a reader would type them."""

from tests.docs.guides import blocks
from tests.horovod.launcher import HorovodRanks as Ranks


def test_the_blocks_of_the_page_run_and_leave_equal_models(two: Ranks) -> None:
    first, second = two.run("guide.page", name="horovod")
    assert first == second
    assert len(first) == sum(1 for _ in blocks("horovod")) - 1 == 2
