"""Sums on the wire, leaders, and means over senders, over real processes."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.distributed.ranks import Nursery, Ranks
from tests.distributed.test_failures import LIMIT
from tests.distributed.test_parity import check_conservation

SEVERAL = {"bucket_cap_mb": 0.01}
LEADER = ("topk", {"ratio": 0.05, "exchange": "LeaderIndices"})
REDUCE = ("dense", {"memory": "Residual", "exchange": "AllReduce"})
HALF = ("dense", {"memory": "Residual", "exchange": "AllReduce", "quantize": "BFloat16"})
LEADER_HALF = ("sidco", {"ratio": 0.05, "exchange": "LeaderIndices", "quantize": "BFloat16"})
ALL = {
    "leader": LEADER,
    "leader-bfloat16": LEADER_HALF,
    "reduce": REDUCE,
    "reduce-bfloat16": HALF,
}


@pytest.mark.parametrize("codec", ALL.values(), ids=ALL)
@pytest.mark.parametrize("ddp", [{}, SEVERAL], ids=["one-bucket", "several"])
def test_replicas_are_bit_identical(
    ranks: Ranks, codec: tuple[str, dict[str, Any]], ddp: dict[str, Any]
) -> None:
    results = ranks.run("parity.replicas", codec=codec, ddp=ddp)
    assert len({fingerprint for fingerprint, _ in results}) == 1


def test_two_ranks_that_sum_everything_equal_plain_ddp_bit_for_bit(two: Ranks) -> None:
    assert two.run("parity.against_plain", codec=REDUCE) == [0.0, 0.0]


def test_a_leader_who_chooses_everything_equals_plain_ddp_bit_for_bit(two: Ranks) -> None:
    codec = ("topk", {"ratio": 1.0, "exchange": "LeaderIndices"})
    assert two.run("parity.against_plain", codec=codec) == [0.0, 0.0]


@pytest.mark.parametrize("ddp", [{}, SEVERAL, {**SEVERAL, "static_graph": True}], ids=str)
def test_nothing_is_lost_over_steps_with_leaders(two: Ranks, ddp: dict[str, Any]) -> None:
    check_conservation(two.run("parity.conservation", ddp=ddp, options={}, codec=LEADER))


def test_the_mean_of_what_is_decoded_is_what_is_decoded_of_the_mean(ranks: Ranks) -> None:
    results = ranks.run("exchanges.leader_steps", steps=4)
    for step in range(4):
        for name in results[0][step]["average"]:
            inputs = np.stack([result[step]["input"][name] for result in results])
            average = results[0][step]["average"][name]
            leader = (step + results[0][step]["turns"][name]) % len(results)
            # The leader's largest; ties to the lower position.
            order = np.argsort(-np.abs(inputs[leader]), kind="stable")
            chosen = np.zeros(inputs.shape[1], bool)
            chosen[order[: inputs.shape[1] // 20]] = True
            chosen &= inputs[leader] != 0
            np.testing.assert_allclose(average[chosen], inputs.mean(0)[chosen], rtol=1e-6)
            assert not average[~chosen].any()
            for rank, result in enumerate(results):
                left = np.where(chosen, 0.0, inputs[rank])
                np.testing.assert_array_equal(result[step]["after"][name], left)
                np.testing.assert_array_equal(result[step]["average"][name], average)


def test_memories_follow_the_rule_of_scalecom_entry_by_entry(ranks: Ranks) -> None:
    beta = 0.25  # exact, as are the integers of the gradients for some steps
    for result in ranks.run("exchanges.leader_steps", steps=4, beta=beta):
        for step in result:
            for name, before in step["before"].items():
                sent = step["average"][name] != 0
                assert sent.any()
                kept = np.where(sent, (1 - beta) * before, before + beta * step["gradient"][name])
                # A sum that happens to be zero looks like an entry that was not sent.
                same = np.isclose(step["after"][name], kept, rtol=1e-6, atol=1e-6)
                assert same[sent].all()
                assert same.sum() >= same.size - 3


def test_leaders_rotate_and_are_staggered_over_buckets(two: Ranks) -> None:
    turns = two.run("exchanges.leader_steps", steps=1)[0][0]["turns"]
    # Counted in buckets of 0.01 MiB, from the last parameter, whose gradient comes first.
    assert turns == {"c": 0, "b": 0, "a": 1}


@pytest.mark.parametrize(
    ("exchange", "quantize"),
    [
        ("leader", "BFloat16"),
        pytest.param("scalecom", "Float32", marks=pytest.mark.full),
    ],
)
def test_the_volume_of_leader_indices_does_not_grow_with_the_ranks(
    nursery: Nursery, exchange: str, quantize: str
) -> None:
    counted = {}
    for world_size in (2, 4):
        ranks = Ranks(nursery, world_size)
        results = ranks.run(
            "exchanges.wire_bytes",
            exchange=exchange,
            quantize=quantize,
            ratio=0.1,
            steps=12,  # whole rounds of leaders
        )
        ranks.stop()
        for result in results:
            # Gloo heads every transfer, and an all-reduce has more of them with more ranks.
            assert result["said"] < result["counted"] < result["said"] + 3000
        counted[world_size] = max(result["counted"] for result in results)
    values, positions = 12_000 * (4 if quantize == "Float32" else 2), 12_000 * 4.8 / 8
    for world_size, nbytes in counted.items():
        # Less than twice the values and once the positions, whatever the number of ranks.
        assert nbytes < 1.1 * (2 * values + positions), world_size


def test_the_volume_of_an_all_gather_grows_with_the_ranks(nursery: Nursery) -> None:
    counted = []
    for world_size in (2, 4):
        ranks = Ranks(nursery, world_size)
        results = ranks.run(
            "exchanges.wire_bytes", exchange="gather", quantize="Float32", ratio=0.01, steps=6
        )
        ranks.stop()
        counted.append(max(result["counted"] for result in results))
    assert 2.7 < counted[1] / counted[0] < 3.3


def test_the_mean_over_senders_divides_by_those_who_sent(ranks: Ranks) -> None:
    size = ranks.world_size
    for by_rank, by_sender, dense in ranks.run("exchanges.senders"):
        for name in ("a", "b", "c"):
            own = [12.0 / size] * size
            everyone = 6.0 * (size + 1) / 2
            expected = pytest.approx([everyone, *own], rel=1e-3)
            assert [by_rank[name][7], *by_rank[name][9 : 9 + size]] == expected
            found = by_sender[name]
            assert [found[7], *found[9 : 9 + size]] == [everyone, *([12.0] * size)]
            assert np.count_nonzero(found) == 1 + size
            # All of a dense frame is sent, zeros too.
            np.testing.assert_allclose(dense[name][9 : 9 + size], own, rtol=1e-3)
        # What travels dense is averaged over ranks in any case.
        assert by_sender["bias"][9] == pytest.approx(12.0 / size)


@pytest.mark.parametrize("exchange", ["leader", "all_reduce"])
def test_an_unused_parameter_keeps_its_residual(two: Ranks, exchange: str) -> None:
    for found in two.run("exchanges.zero_everywhere", exchange=exchange):
        assert found["kept"]
        assert found["flowed"] or exchange == "all_reduce"


@pytest.mark.parametrize("who", [0, 1])
@pytest.mark.parametrize("exchange", ["leader", "all_reduce"])
def test_a_failure_to_encode_reaches_every_rank(two: Ranks, exchange: str, who: int) -> None:
    for found in two.run("exchanges.encoding_fails", exchange=exchange, who=who):
        assert f"rank {who} could not encode: " in found["first"]
        assert (
            f"gradwire stopped after an earlier error: rank {who} could not encode: "
            in found["later"]
        )
        assert found["kept"] == "ExchangeError"


@pytest.mark.parametrize("slow", [False, True], ids=["", "slow"])
def test_a_rank_without_memory_for_messages_is_an_error_of_all(two: Ranks, slow: bool) -> None:
    for found in two.run("exchanges.no_memory", slow=slow):
        assert len(found) == 3
        for name, (said, kept) in found.items():
            assert "rank 1 could not encode: MemoryError: no memory for messages" in said, name
            assert kept, name


def test_a_sum_that_leaves_the_range_of_float16_is_an_error_on_all_ranks(two: Ranks) -> None:
    for found in two.run("exchanges.float16_overflow"):
        assert "the gradient of 'a' on rank 0 has 1 non-finite value(s)" in found["text"]
        assert found["rolled_back"]


def test_ranks_out_of_step_do_not_add_up_each_other(short_lived: Ranks) -> None:
    for text in short_lived.run("exchanges.in_step"):
        assert "did not run the same backward passes" in text


def test_four_dtypes_come_out_of_a_sum_as_in_plain_ddp(two: Ranks) -> None:
    for result in two.run("modes.dtypes", codec=REDUCE):
        for ours, plain in zip(result["ours"], result["plain"], strict=True):
            assert ours.keys() == plain.keys()
            for name, values in ours.items():
                np.testing.assert_array_equal(values, plain[name], err_msg=name)


def test_leaders_lead_in_four_dtypes(two: Ranks) -> None:
    first, second = two.run("modes.dtypes", codec=LEADER)
    for ours, theirs in zip(first["ours"], second["ours"], strict=True):
        for name, values in ours.items():
            assert values.any()
            np.testing.assert_array_equal(values, theirs[name], err_msg=name)


def test_join_lets_finished_ranks_lead_and_send_their_rest(two: Ranks) -> None:
    results = two.run("modes.uneven_inputs", codec=LEADER)
    assert results[0]["fingerprint"] == results[1]["fingerprint"]
    check_conservation(results)


@pytest.mark.full
@pytest.mark.parametrize("codec", ["leader", "all_reduce"])
@pytest.mark.parametrize("how", ["raises", "dies"])
def test_a_rank_that_stops_does_not_hang_the_others(
    short_lived: Ranks, how: str, codec: str
) -> None:
    (kind, seen), _ = short_lived.try_run("failures.one_rank_fails", how=how, exchange=codec)
    assert kind == "returned", seen
    assert seen["patiences"] < LIMIT
    assert "was not exchanged" in seen["error"]
    assert seen["kept"] == "ExchangeError"
    assert "stopped after an earlier error" in seen["later"]


@pytest.mark.parametrize("block", [False, True], ids=["entries", "block"])
def test_random_k_sends_values_alone_and_leaves_the_users_numbers(
    ranks: Ranks, block: bool
) -> None:
    results = ranks.run("exchanges.drawn", block=block)
    for result in results:
        assert result["untouched"]
        assert result["bytes"] == 4 * 256  # a tenth of a, no positions
        for step in range(3):
            average, mean = result["averages"][step], result["means"][step]
            drawn = np.unique(np.concatenate([each["sent"][step] for each in results]))
            assert 200 < drawn.size <= 256
            np.testing.assert_allclose(average[drawn], mean[drawn], rtol=1e-6)
            assert np.isin(np.flatnonzero(average), drawn).all()
            np.testing.assert_array_equal(average, results[0]["averages"][step])
        assert not np.array_equal(result["sent"][0], result["sent"][1])


def test_random_k_goes_on_with_more_ranks(two: Ranks, three: Ranks, tmp_path: Any) -> None:
    two.run("exchanges.drawn_after_growth", folder=str(tmp_path), save=True)
    for steps in three.run("exchanges.drawn_after_growth", folder=str(tmp_path), save=False):
        assert steps == ["4", "4", "4"]


GATHER = "gradwire.exchange.AllGather()"
SCATTER, QUANTIZED = "gradwire.exchange.ReduceScatter()", "gradwire.exchange.QuantizedAllReduce()"


@pytest.mark.parametrize(
    ("size", "owners"),
    [
        (2, [GATHER, GATHER]),
        pytest.param(8, [SCATTER, QUANTIZED], marks=pytest.mark.full),
    ],
    ids=["two", "eight"],
)
def test_the_default_gathers_among_two_ranks_and_has_owners_among_eight(
    size: int, owners: list[str], kept: Callable[[int, str], Ranks], nursery: Nursery
) -> None:
    ranks = kept(size, "cpu") if size < 8 else Ranks(nursery, size)
    results = ranks.run("exchanges.by_ranks")
    if size == 8:
        ranks.stop()
    for found in results:
        assert all(found["same"]), found["same"]
        assert found["exchanges"] == [each for one in owners for each in (one, one, GATHER)]
        assert found["both"] == ", ".join(dict.fromkeys(owners))
        assert found["replica"] == results[0]["replica"]


def test_the_default_gathers_where_owners_cannot_be(four: Ranks) -> None:
    expected = dict.fromkeys(("nodes", "one of two", "told"), GATHER)
    assert four.run("exchanges.where") == [expected | {"ranks": SCATTER}] * 4


def test_frames_that_exceed_a_dense_all_reduce_are_told(two: Ranks, three: Ranks) -> None:
    assert two.run("exchanges.warned") == [[[]] * 4] * 2
    for *fine, (text,) in three.run("exchanges.warned"):
        assert fine == [[]] * 3
        # Of 10 240 entries in three parameters, twice 4 bytes and a header each, or 4/3 of 4 bytes.
        assert "With 3 ranks, each receives 82.21 kB of frames per step" in text
        assert "a dense all-reduce would bring it 54.61 kB" in text
        assert "exchange=gradwire.exchange.AllReduce()" in text
