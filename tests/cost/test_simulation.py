"""Seconds, nodes and limits of the simulator."""

import math
from typing import Any

import pytest

from gradwire.cost import Link, Network, Payload, Support, simulate
from gradwire.cost.exchanges import (
    GatheredFrames,
    PlainRing,
    RingAllReduce,
    SharedPositions,
    SparseReduceScatter,
)
from tests.cost.test_exchanges import EVERY

NUMEL = 1_000_000
LINK = Link(1e9, latency=50e-6, overhead=5e-6)


@pytest.mark.parametrize(("exchange", "payload"), EVERY, ids=repr)
def test_one_rank_costs_nothing(exchange, payload):
    found = simulate(exchange, payload, Network(1, LINK))
    assert (found.seconds, found.sent, found.sent_inside, found.buffers) == (0, 0, 0, 0)


@pytest.mark.parametrize(("exchange", "payload"), EVERY, ids=repr)
def test_an_infinite_link_costs_only_latency(exchange, payload):
    found = simulate(exchange, payload, Network(8, Link(math.inf, latency=1e-3)))
    assert found.seconds == pytest.approx(1e-3 * sum(phase.rounds for phase in found.phases))
    assert simulate(exchange, payload, Network(8, Link(math.inf))).seconds == 0


@pytest.mark.parametrize(("exchange", "payload"), EVERY, ids=repr)
def test_a_slower_link_takes_longer(exchange, payload):
    def seconds(link):
        return simulate(exchange, payload, Network(16, link)).seconds

    speeds = [seconds(Link(rate, 1e-5)) for rate in (1e10, 1e9, 1e8)]
    assert speeds == sorted(speeds)
    assert speeds[0] < speeds[2]
    assert seconds(Link(1e9, 1e-4)) > seconds(Link(1e9, 1e-5))


def test_a_dense_step_of_two_ranks_moves_the_gradient_once():
    found = simulate(RingAllReduce(), Payload.dense(NUMEL), Network(2, LINK))
    assert found.sent == 4 * NUMEL
    assert found.seconds == pytest.approx(8 * 4 * NUMEL / 1e9 + 2 * 55e-6)


def test_nodes_share_their_link():
    """Eight ranks in two nodes: the link between nodes carries what two ranks would send."""
    nodes = Network(8, LINK, node_size=4)
    flat = Network(2, LINK)
    for exchange, payload in [
        (RingAllReduce(), Payload.dense(NUMEL)),
        (GatheredFrames(), Payload.sparse(NUMEL, 10_000)),
    ]:
        divided, whole = (simulate(exchange, payload, each) for each in (nodes, flat))
        assert 4 * divided.sent == pytest.approx(whole.sent, rel=0.02)  # each has headers
        assert divided.seconds == pytest.approx(whole.seconds, rel=0.02)


def test_inside_a_node_a_rank_sends_its_share_to_each_other_twice():
    inside = Link(1e11, latency=1e-6)
    found = simulate(GatheredFrames(), Payload.sparse(NUMEL, 1000),
                     Network(8, LINK, node_size=4, inside=inside))  # fmt: skip
    share = 4 * NUMEL / 4
    assert found.sent_inside == 2 * 3 * share
    alone = simulate(GatheredFrames(), Payload.sparse(NUMEL, 1000),
                     Network(8, LINK, node_size=4))  # fmt: skip
    spent = 2 * 3 * 8 * share / 1e11 + (1 + 3) * 1e-6
    assert found.seconds - alone.seconds == pytest.approx(spent)


def test_plain_ddp_is_never_divided():
    """All ranks form one ring: all bytes cross the link, and one hop in four has its latency."""
    inside, payload = Link(1e11, 1e-6), Payload.dense(NUMEL)
    flat = simulate(PlainRing(), payload, Network(8, LINK))
    nodes = simulate(PlainRing(), payload, Network(8, LINK, node_size=4, inside=inside))
    assert nodes.sent + nodes.sent_inside == flat.sent == 2 * 7 / 8 * 4 * NUMEL
    assert nodes.sent == flat.sent / 4
    wire = 8 * flat.sent / 1e9
    assert nodes.seconds == pytest.approx(wire + 4 * 55e-6 + 10 * 1e-6)  # 4 of 14 rounds
    assert flat.seconds == pytest.approx(wire + 14 * 55e-6)


def test_a_ring_inside_one_node_does_not_use_the_link():
    inside, payload = Link(1e11, 1e-6), Payload.dense(NUMEL)
    alone = simulate(PlainRing(), payload, Network(4, LINK, node_size=4, inside=inside))
    flat = simulate(PlainRing(), payload, Network(4, inside))
    assert alone.seconds == flat.seconds > 0
    assert (alone.sent, alone.sent_inside) == (0, flat.sent)


def test_the_memory_of_a_gather_grows_and_that_of_a_reduce_scatter_does_not():
    payload = Payload.sparse(25_000_000, 250_000)

    def buffers(exchange, ranks):
        return simulate(exchange, payload, Network(ranks, LINK)).buffers

    assert buffers(GatheredFrames(), 1000) == pytest.approx(1001 * payload.nbytes)
    assert buffers(SparseReduceScatter(), 1000) < buffers(SparseReduceScatter(), 2)
    assert buffers(SharedPositions(), 1000) == buffers(SharedPositions(), 2)
    assert (
        buffers(RingAllReduce(), 1000)
        > 0
        == simulate(RingAllReduce(), Payload.dense(NUMEL), Network(9, LINK)).buffers
    )


def test_distinct_positions_lie_between_one_selection_and_all():
    payload = Payload.sparse(NUMEL, 10_000)
    network = Network(64, LINK)
    found = simulate(GatheredFrames(), payload, network)
    same = simulate(GatheredFrames(), payload, network, Support(1e-9, 0.0))
    independent = simulate(GatheredFrames(), payload, network, Support(1e300, 0.0))
    assert same.distinct == pytest.approx(10_000, rel=1e-3)
    assert independent.distinct == pytest.approx(NUMEL * (1 - 0.99**64))
    assert same.distinct < found.distinct < independent.distinct


@pytest.mark.parametrize("density", [0.5, 0.01, 1e-6])
def test_a_union_grows_with_ranks_and_never_beyond_their_sum(density):
    unions = [Support().union(density, ranks) for ranks in (1, 2, 3, 8, 100, 10_000)]
    assert unions[0] == density
    assert unions == sorted(unions)
    assert unions[1] <= 2 * density
    assert unions[-1] <= 1


def test_the_closed_form_of_a_union_is_the_mean_over_the_distribution():
    """A Beta variable with d = 1/4 and s = 4 has the density 3 (1 - p)^2: a plain integral."""
    steps = 100_000
    grid = [(i + 0.5) / steps for i in range(steps)]
    for ranks in (1, 2, 7):
        missed = sum(3 * (1 - p) ** 2 * (1 - p) ** ranks for p in grid) / steps
        assert Support(4.0, 0.0).union(0.25, ranks) == pytest.approx(1 - missed, rel=1e-6)


def wrong(value: object) -> Any:
    """Return something of another type."""
    return value


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: Link(0), ValueError, "bandwidth must be above 0"),
        (lambda: Link(math.nan), ValueError, "bandwidth must be above 0"),
        (lambda: Link(wrong("1gbit")), TypeError, "bandwidth must be a real number, got '1gbit'"),
        (lambda: Link(1e9, latency=-1), ValueError, "latency must be finite and not negative"),
        (lambda: Network(0, LINK), ValueError, "ranks must be at least 1"),
        (lambda: Network(6, LINK, node_size=4), ValueError, "6 ranks do not fill nodes of 4"),
        (lambda: Network(2, wrong(1e9)), TypeError, "link must be a gradwire.cost.Link"),
        (lambda: Payload(10, 11), ValueError, "11 entries of a tensor that has 10"),
        (lambda: Payload(-1, 0), ValueError, "numel must be at least 0"),
        (lambda: Support().union(0.0, 2), ValueError, "ratio must be greater than 0"),
        (lambda: Support(scale=0.0), ValueError, "scale must be above 0"),
        (
            lambda: simulate(wrong("ring"), Payload.dense(1), Network(2, LINK)),
            TypeError,
            "exchange must be one of gradwire.exchange.{AllGather, .*}, got 'ring'",
        ),
        (
            lambda: simulate(RingAllReduce(), wrong(100), Network(2, LINK)),
            TypeError,
            "payload must be a gradwire.cost.Payload",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_processor_time_is_of_all_that_a_rank_sends():
    link = Link(1e9, latency=1e-4, overhead=1e-5, processor=2e-9)
    dense = simulate(PlainRing(), Payload.dense(NUMEL), Network(4, link))
    assert dense.processor == pytest.approx(6 * 1e-5 + 2e-9 * dense.sent)
    assert dense.before == 0


def test_positions_precede_their_values():
    link = Link(1e9, latency=1e-4)
    payload = Payload.sparse(NUMEL, 1e4, frames=3)
    led = simulate(SharedPositions(), payload, Network(2, link))
    assert led.before == pytest.approx(1e-4 + 8 * payload.position_bytes / 1e9)
    assert led.phases[0].messages == 2  # both ranks lead for some of the tensors
