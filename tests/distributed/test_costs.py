"""Links that are measured on process groups of real processes."""

import math

from gradwire.cost import Network, Payload, RingAllReduce, simulate
from tests.distributed.ranks import Ranks


def test_all_ranks_get_the_same_link_and_a_group_of_one_has_none(two: Ranks) -> None:
    first, second = two.run("costs.links")
    for name in ("found", "again"):
        assert first[name] == second[name]
        assert 0 < first[name].bandwidth < math.inf
        assert first[name].latency >= 0
    payload, network = Payload.dense(1000), Network(2, first["found"])
    assert simulate(RingAllReduce(), payload, network).seconds > 0

    for told in (first["told"], second["told"]):
        assert told[0] == "a link takes two ranks, and this process group has one"
        assert told[1] == "seconds must be above 0, got 0"
        assert told[2] == "seconds must be finite and not negative, got -1.0"
