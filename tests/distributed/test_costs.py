"""Links that are measured on process groups of real processes, and bytes that these send."""

import math

import pytest

from gradwire.cost import Link, Network, Payload, calibrate, compressed, simulate
from gradwire.cost.exchanges import RingAllReduce
from tests.distributed.ranks import Ranks
from tests.distributed.scenarios.costs import LAYERS, SIDE, SLOW, codecs


def test_all_ranks_get_the_same_link_and_a_group_of_one_has_none(two: Ranks) -> None:
    first, second = two.run("costs.links")
    for name in ("found", "again"):
        assert first[name] == second[name]
        assert 0 < first[name].bandwidth < math.inf
        assert first[name].latency >= 0
        assert first[name].overhead + first[name].processor > 0
    payload, network = Payload.dense(1000), Network(2, first["found"])
    assert simulate(RingAllReduce(), payload, network).seconds > 0

    for told in (first["told"], second["told"]):
        assert told[0] == "measuring a link needs two ranks, and this process group has one"
        assert told[1] == "seconds must be above 0, got 0"
        assert told[2] == "seconds must be finite and not negative, got -1.0"


def test_ranks_send_the_bytes_that_the_simulator_says(ranks: Ranks) -> None:
    calibration = calibrate(codecs(), seconds=0.01, numels=(1 << 12, SIDE**2), cold=False)
    sent = ranks.run("costs.bytes_sent")
    network = Network(len(sent), Link(1e9))
    numel = LAYERS * SIDE**2
    dense = simulate(RingAllReduce(), Payload.dense(numel), network).sent
    for name in codecs():
        method = compressed(name, calibration)
        found = simulate(method.exchange, method.payload(numel, LAYERS), network).sent
        mean = sum(each[name][0] for each in sent) / len(sent)
        assert found == pytest.approx(mean, rel=0.06), name
        assert dense == sent[0][name][1]


def test_a_workload_has_the_buckets_that_a_hook_gets(two: Ranks) -> None:
    first, second = two.run("costs.workload")
    found = first["found"]
    assert found == second["found"]
    assert found.buckets == first["seen"]
    assert len(found.buckets) > 2
    assert found.tensors == 10
    assert found.shared
    assert 0 < found.ready[0] < found.ready[-1] == found.backward
    assert found.other >= 1.0
    for each in (first, second):  # without DDP, in one process, and with DDP's own sizes
        assert each["alone"].buckets == [found.numel]
        assert each["alone"].tensors == found.tensors
    for each in (first, second):
        assert each["kept"]
        assert each["exchanged"] == 1
        assert each["progress"][0] == ("step 1 of 4", 0.0)
        assert each["progress"][-2:] == [("step 4 of 4", 0.75), ("done", 1.0)]
        assert each["told"] == [
            "model must be a torch.nn.Module, got function",
            "model has no parameter with requires_grad: no gradient to exchange",
            "step made no forward pass: call the model that is measured",
        ]


def test_a_step_takes_as_long_as_its_slowest_rank(two: Ranks) -> None:
    first, second = two.run("costs.slow_in_turn")
    assert first == second
    assert first.compute >= SLOW
