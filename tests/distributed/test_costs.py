"""The bytes that real processes send are those that the cost model says."""

import pytest

from gradwire.cost import Link, Network, Payload, calibrate, compressed, simulate
from gradwire.cost.exchanges import RingAllReduce
from tests.distributed.ranks import Ranks
from tests.distributed.scenarios.costs import LAYERS, SIDE, codecs


def test_ranks_send_the_bytes_that_the_simulator_says(
    ranks: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gradwire.cost.measuring.NUMELS", (1 << 12, SIDE**2))
    calibration = calibrate(codecs(), seconds=0.01)
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
