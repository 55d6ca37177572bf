"""Sums on the wire, leaders, and means over senders, over real processes."""

import dataclasses
import time
import warnings
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
import torch.distributed as dist

import gradwire
import gradwire.torch.ddp
from gradwire.exchange import (
    AllGather,
    AllReduce,
    ByRanks,
    LeaderIndices,
    QuantizedAllReduce,
    ReduceScatter,
)
from gradwire.memory import LowPass
from gradwire.quantize import BFloat16, Float16
from gradwire.sparsify import RandomK
from gradwire.torch.ddp import GradientError
from tests.distributed.codecs import CODECS, SEVERAL
from tests.distributed.ranks import alike, on, together
from tests.distributed.scenarios.common import (
    SHAPES,
    Given,
    attached,
    bits_left,
    fingerprint,
    gradients_of,
    integers,
    network,
    residuals,
    train,
)


def led(rank, steps, codec=CODECS["leader"]):
    """Train; of each step and parameter, tell what was put in, what came out, and what is left."""
    with attached(Given(), codec, **SEVERAL) as (model, handle):
        for step in range(steps):
            before, gradients = residuals(handle), integers(11, rank, step)
            model.zero_grad()
            model(gradients).backward()
            after, averages = residuals(handle), gradients_of(model.module)
            for name, each in before.items():
                turn = handle._parameters[name].turn
                gradient = gradients[name].numpy().ravel()
                yield step, name, turn, each, gradient, averages[name], after[name]


@on("ranks")
def test_the_mean_of_what_is_decoded_is_what_is_decoded_of_the_mean(rank, size):
    for step, name, turn, before, gradient, average, after in led(rank, 4):
        inputs = np.stack(together(before + gradient))
        leader = (step + turn) % size
        # The leader's largest; ties to the lower position.
        order = np.argsort(-np.abs(inputs[leader]), kind="stable")
        chosen = np.zeros(inputs.shape[1], bool)
        chosen[order[: inputs.shape[1] // 20]] = True
        chosen &= inputs[leader] != 0
        np.testing.assert_allclose(average[chosen], inputs.mean(0)[chosen], rtol=1e-6)
        assert not average[~chosen].any()
        np.testing.assert_array_equal(after, np.where(chosen, 0.0, inputs[rank]))
        alike(average.tobytes())
        # Leaders are staggered over buckets: of 0.01 MiB, from the last parameter, whose gradient
        # comes first.
        assert turn == {"c": 0, "b": 0, "a": 1}[name] or step > 0


@on("ranks")
def test_memories_follow_the_rule_of_scalecom_entry_by_entry(rank):
    beta = 0.25  # exact, as are the integers of the gradients for some steps
    codec = dataclasses.replace(CODECS["leader"], memory=LowPass(beta))
    for _, _, _, before, gradient, average, after in led(rank, 4, codec):
        sent = average != 0
        assert sent.any()
        kept = np.where(sent, (1 - beta) * before, before + beta * gradient)
        # A sum that happens to be zero looks like an entry that was not sent.
        same = np.isclose(after, kept, rtol=1e-6, atol=1e-6)
        assert same[sent].all()
        assert same.sum() >= same.size - 3


class Large(torch.nn.Module):
    """A parameter of 120,000 entries, whose gradient the caller gives."""

    def __init__(self):
        super().__init__()
        self.a = torch.nn.Parameter(torch.zeros(300, 400))

    def forward(self, gradient):
        return (self.a * gradient).sum()


def written():
    """The bytes that the kernel has taken from this process: the real ones on the wire."""
    fields = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(fields["wchar"])


def wire_bytes(rank, codec, steps):
    """Bytes a step that were counted, and that the report says."""
    random = np.random.default_rng(rank)
    with attached(Large(), codec) as (model, handle):

        def run(steps):
            for _ in range(steps):
                model.zero_grad()
                gradient = random.standard_normal((300, 400), np.float32)
                model(torch.from_numpy(gradient)).backward()

        run(24)  # limits settle
        handle.report(reset=True)
        dist.barrier()
        time.sleep(0.1)
        start = written()
        run(steps)
        time.sleep(0.1)
        counted, said = (written() - start) / steps, handle.report().wire_bytes
        dist.barrier()
        return counted, said


@pytest.mark.parametrize("kind", ["leader", "gathered"])
def test_the_volume_of_an_all_gather_grows_with_the_ranks_and_not_that_of_leaders(kept, kind):
    leader = gradwire.topk(0.1, exchange=LeaderIndices(), quantize=BFloat16())
    codec, steps = (leader, 12) if kind == "leader" else (gradwire.topk(0.01), 6)
    sent = [kept(size, "cpu").run(wire_bytes, codec=codec, steps=steps) for size in (2, 4)]
    two, four = (max(counted for counted, _ in each) for each in sent)
    if kind == "gathered":
        assert 2.7 < four / two < 3.3
        return
    # Less than twice the values and once the positions, whatever the number of ranks.
    assert max(two, four) < 1.1 * 12_000 * (2 * 2 + 4.8 / 8)
    for counted, said in (*sent[0], *sent[1]):
        # Gloo heads every transfer, and an all-reduce has more of them with more ranks.
        assert said < counted < said + 3000


@on("ranks")
def test_the_mean_over_senders_divides_by_those_who_sent(rank, size):
    """Two entries a rank, one of them the same on all."""
    found = []
    for codec in (
        gradwire.topk(k=2),
        gradwire.topk(k=2, exchange=AllGather(mean="senders")),
        gradwire.dense(exchange=AllGather(mean="senders")),
    ):
        with attached(Given({"b": torch.float16}), codec) as (model, _):
            gradients = {name: torch.zeros(shape) for name, shape in SHAPES.items()}
            for name in ("a", "b", "c", "bias"):
                gradients[name].view(-1)[7] = 6.0 * (rank + 1)
                gradients[name].view(-1)[9 + rank] = 12.0
            model(gradients).backward()
            found.append(gradients_of(model.module))
    by_rank, by_sender, dense = found
    own, everyone = [12.0 / size] * size, 6.0 * (size + 1) / 2
    for name in ("a", "b", "c"):
        expected = pytest.approx([everyone, *own], rel=1e-3)
        assert [by_rank[name][7], *by_rank[name][9 : 9 + size]] == expected
        sent = by_sender[name]
        assert [sent[7], *sent[9 : 9 + size]] == [everyone, *([12.0] * size)]
        assert np.count_nonzero(sent) == 1 + size
        # All of a dense frame is sent, zeros too.
        np.testing.assert_allclose(dense[name][9 : 9 + size], own, rtol=1e-3)
    # What travels dense is averaged over ranks in any case.
    assert by_sender["bias"][9] == pytest.approx(12.0 / size)


@on("two")
def test_a_sum_that_leaves_the_range_of_float16_is_an_error_on_all_ranks(rank):
    codec = dataclasses.replace(CODECS["reduce"], quantize=Float16(scaled=False))
    with attached(Given(), codec) as (model, handle):
        model(integers(1, rank, 0)).backward()
        before, gradients = bits_left(handle), integers(1, rank, 1)
        gradients["a"][0, 3] = 60000.0
        model.zero_grad()
        said = r"the gradient of 'a' on rank 0 has 1 non-finite value\(s\)"
        with pytest.raises(GradientError, match=said):
            model(gradients).backward()
        assert before == bits_left(handle)
        model.zero_grad()
        model(integers(1, rank, 2)).backward()


@on("two")
def test_an_average_that_overflows_is_rolled_back_too(rank):
    """Finite float16 gradients on every rank, whose average with the residual is too large."""
    scaler = torch.amp.GradScaler("cpu", init_scale=1.0)
    module = Given({"a": torch.float16})
    options = {"grad_scaler": scaler}
    with attached(module, gradwire.topk(k=1), options=options, **SEVERAL) as (model, handle):
        for step in range(2):
            gradients = integers(7, rank, step)
            gradients["a"] = torch.zeros(SHAPES["a"])
            gradients["a"][0, :2] = torch.tensor([60000.0, 49984.0])  # the second has to wait
            if step == 1:
                before = bits_left(handle)
                assert residuals(handle)["a"][1] == 49984.0
                gradients["a"][0, 0] = 0.0
            model.zero_grad()
            scaler.scale(model(gradients)).backward()
        assert not any(np.isfinite(each).any() for each in gradients_of(module).values())
        assert before == bits_left(handle)


def global_numbers():
    """The random state that belongs to the user."""
    state = np.random.get_state()  # noqa: NPY002  # just this one must not be touched
    return torch.random.get_rng_state().numpy().tobytes(), repr(list(state))


@pytest.mark.parametrize("block", [False, True], ids=["entries", "block"])
@on("ranks")
def test_random_k_sends_values_alone_and_leaves_the_users_numbers(rank, block):
    random = RandomK(ratio=0.1, block=block, seed=5)
    codec = gradwire.Codec(sparsify=random, exchange=AllReduce())
    torch.manual_seed(3)
    np.random.seed(3)  # noqa: NPY002
    before, first = global_numbers(), None
    with attached(Given(), codec, **SEVERAL) as (model, handle):
        for step in range(3):
            inputs = residuals(handle)["a"] + integers(5, rank, step)["a"].numpy().ravel()
            model.zero_grad()
            model(integers(5, rank, step)).backward()
            sent = np.flatnonzero(inputs != residuals(handle)["a"])
            average = gradients_of(model.module)["a"]
            alike(average.tobytes())
            everything, drawn = zip(*together((inputs, sent)), strict=True)
            drawn = np.unique(np.concatenate(drawn))
            assert 200 < drawn.size <= 256
            np.testing.assert_allclose(average[drawn], np.mean(everything, 0)[drawn], rtol=1e-6)
            assert np.isin(np.flatnonzero(average), drawn).all()
            assert first is None or not np.array_equal(sent, first) or step > 1
            first = sent if first is None else first
        assert handle.report().parameters[0].bytes_per_step == 4 * 256  # a tenth, no positions
    assert before == global_numbers()


def drawn_after_growth(rank, folder, save):
    """Go on with another number of ranks, each old one with its own residuals."""
    codec = gradwire.Codec(sparsify=RandomK(ratio=0.1), exchange=AllReduce())
    path = folder / f"rank{rank}.pt"
    with attached(Given(), codec) as (model, handle):
        if not save:
            own = torch.load(path, weights_only=True) if path.exists() else None
            handle.load_state_dict(own, policy="keep")
        for step in range(2):
            model.zero_grad()
            model(integers(5, rank, step)).backward()
        if save:
            torch.save(handle.state_dict(), path)
        else:
            steps = [each.state.step for each in handle._parameters.values() if each.state]
            assert steps == [4, 4, 4]


def test_random_k_goes_on_with_more_ranks(two, three, tmp_path):
    two.run(drawn_after_growth, folder=tmp_path, save=True)
    three.run(drawn_after_growth, folder=tmp_path, save=False)


# The exchange that the number of ranks decides -------------------------------------------------

GATHER, SCATTER, QUANTIZED = map(repr, (AllGather(), ReduceScatter(), QuantizedAllReduce()))


def by_ranks(rank, size, owners):
    """Codecs that leave the exchange to the number of ranks, beside those that say it."""
    selects, sends_all = gradwire.topk(ratio=0.05), gradwire.onebit()
    saved = {}
    for codec, owner in ((selects, owners[0]), (sends_all, owners[1])):
        of = codec.sparsify, codec.quantize, codec.memory
        told = dataclasses.replace(codec, exchange=ByRanks().for_ranks(size, *of))
        runs = []
        gathers = dataclasses.replace(codec, exchange=AllGather())
        for each, expected in ((codec, owner), (told, owner), (gathers, GATHER)):
            with attached(network(), each, **SEVERAL) as (model, handle):
                train(model, rank, range(4))
                report = handle.report()
                assert report.exchange == expected
                runs.append((fingerprint(model), report.collectives, report.wire_bytes))
                saved[each.exchange] = handle.state_dict(), bits_left(handle)
        assert runs[0] == runs[1]
    # A checkpoint of either goes on with the other.
    for one, other in ((ByRanks(), AllGather()), (AllGather(), ByRanks())):
        state, held = saved[one]
        codec = dataclasses.replace(sends_all, exchange=other)
        with attached(network(), codec, **SEVERAL) as (model, handle):
            handle.load_state_dict(state)
            assert held == bits_left(handle)
            train(model, rank, range(4, 6))
            alike(fingerprint(model))
    # Codecs of both kinds share a bucket.
    first = []
    for each in (selects, sends_all, {"a": selects, "*": sends_all}):
        with attached(Given(), each) as (model, handle):
            model(integers(3, rank, 0)).backward()
            first.append(gradients_of(model.module))
            exchange = handle.report().exchange
    assert exchange == ", ".join(dict.fromkeys(owners))
    for name, values in {**first[1], "a": first[0]["a"]}.items():
        np.testing.assert_array_equal(values, first[2][name])


@pytest.mark.parametrize(
    ("size", "owners"),
    [
        (2, [GATHER, GATHER]),
        pytest.param(8, [SCATTER, QUANTIZED], marks=pytest.mark.full),
    ],
    ids=["two", "eight"],
)
def test_the_default_gathers_among_two_ranks_and_has_owners_among_eight(size, owners, kept):
    kept(size, "cpu").run(by_ranks, owners=owners)


@pytest.mark.parametrize(
    ("codec", "options", "expected"),
    [
        (gradwire.topk(0.05), {}, SCATTER),
        (gradwire.topk(0.05), {"hierarchy": 2}, GATHER),
        ({"0.*": gradwire.topk(0.05), "*": gradwire.float8(block=None)}, {}, GATHER),
        (gradwire.onebit(exchange=AllGather()), {}, GATHER),
    ],
    ids=["ranks", "nodes", "one of two", "told"],
)
@on("four")
def test_the_default_gathers_where_owners_cannot_be(rank, size, codec, options, expected):
    with (
        mock.patch.object(ByRanks, "MANY", size),
        attached(network(), codec, options=options) as (model, handle),
    ):
        train(model, rank, range(1))
        assert handle.report().exchange == expected


@on("ranks")
def test_frames_that_exceed_a_dense_all_reduce_are_told(size):
    for codec in (gradwire.topk(0.01), gradwire.onebit(), gradwire.float8(), gradwire.dense()):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with attached(network(), codec):
                pass
        said = [str(each.message) for each in caught if each.category is RuntimeWarning]
        assert len(said) == (size == 3 and codec == gradwire.dense())
        for text in said:
            # Of 10 240 entries in three parameters, twice 4 bytes and a header each, or 4/3 of 4.
            assert "With 3 ranks, each receives 82.21 kB of frames per step" in text
            assert "a dense all-reduce would bring it 54.61 kB" in text
