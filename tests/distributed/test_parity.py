"""What comes out is what plain DDP gives, less what is in the residuals, alike on every rank."""

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import gradwire
from gradwire.exchange import LeaderIndices
from gradwire.memory import Residual
from gradwire.quantize import BFloat16, Float16
from gradwire.torch.transport.process_group import ProcessGroupChannel
from tests.distributed.codecs import CODECS, OWNED, OWNERS, SEVERAL, SUMS
from tests.distributed.ranks import alike, on, together
from tests.distributed.scenarios.common import (
    Given,
    Sums,
    attached,
    counted,
    fingerprint,
    gradients_of,
    integers,
    network,
    residuals,
    train,
)

EVERYTHING = {
    "topk": gradwire.topk(ratio=1.0),
    "dense": gradwire.dense(),
    "reduce": CODECS["reduce"],
    "leader": gradwire.topk(ratio=1.0, exchange=LeaderIndices()),
    "owners": gradwire.topk(ratio=1.0, exchange=OWNERS),
    "sums": gradwire.dense(exchange=SUMS),
}


@pytest.mark.parametrize("name", EVERYTHING)
@on("ranks")
def test_ranks_that_send_everything_equal_plain_ddp_bit_for_bit(rank, size, name):
    plain = DistributedDataParallel(network())
    train(plain, rank, range(6))
    with attached(network(), EVERYTHING[name]) as (model, _):
        train(model, rank, range(6))
    pairs = zip(plain.parameters(), model.parameters(), strict=True)
    difference = max(float((one - other).detach().abs().max()) for one, other in pairs)
    # A third is not exact: plain DDP divides before it adds up, this divides once, after it.
    assert difference <= (0.0 if size == 2 else 1e-6)


TOPK = CODECS["default"]
MODES = {
    "one-bucket": {},
    "several-buckets": SEVERAL,
    "bucket-view": {**SEVERAL, "gradient_as_bucket_view": True},
    "static-graph": {**SEVERAL, "static_graph": True},
    "find-unused": {**SEVERAL, "find_unused_parameters": True},
    "batched-copy": {**SEVERAL, "batched_grad_copy": True},
    "lazy-allocation": {**SEVERAL, "lazy_bucket_allocation": True},
    "cap-list": {"bucket_cap_mb_list": [0.01, 0.02]},
}
LOSSY = {
    "bfloat16": (gradwire.topk(ratio=0.05, quantize=BFloat16()), 0.0),
    "float16": (gradwire.topk(ratio=0.05, quantize=Float16()), 0.0),
    "trimmed": (gradwire.threshold(12.0), 0.0),
    "sidco": (gradwire.sidco(ratio=0.05), 0.0),
    "leader": (CODECS["leader"], 0.0),
    "owners": (CODECS["scattered"], 0.0),
    "owners-bfloat16": (OWNED["bfloat16"], 0.0),  # of integers, all of them
    "owners-blocks": (OWNED["blocks"], 1e-3),
    "owners-signs": (OWNED["signs"], 1e-3),
    "onebit": (CODECS["quantized"], 2e-3),
    "signsgd": (gradwire.signsgd(exchange=SUMS), 2e-3),
    "qsgd": (OWNED["qsgd-kept"], 2e-3),
    "adaptive": (OWNED["adaptive"], 2e-3),
    "float8": (gradwire.float8(memory=Residual(), exchange=SUMS), 2e-3),
}


@pytest.mark.parametrize(
    ("codec", "tolerance", "ddp", "options"),
    [
        *((TOPK, 0.0, each, {}) for each in MODES.values()),
        (TOPK, 0.0, SEVERAL, {"min_ndim": 2}),
        (CODECS["leader"], 0.0, MODES["static-graph"], {}),
        *((codec, tolerance, SEVERAL, {}) for codec, tolerance in LOSSY.values()),
    ],
    ids=[*MODES, "by-dimensions", "leader-static-graph", *LOSSY],
)
@on("ranks")
def test_nothing_is_lost_over_steps(rank, size, codec, tolerance, ddp, options):
    """Integers, so that sums of two ranks are exact; buckets are rebuilt on the way."""
    sums, counts = Sums(), [0]
    with attached(Given(), codec, options=options, **ddp) as (model, handle):
        for step in range(8):
            model.zero_grad()
            model(sums.give(integers(1, rank, step))).backward()
            sums.take(model.module)
            counts.append(handle.report().collectives)
        left = residuals(handle)
        trimmed = sum(each.trimmed for each in handle.report().parameters)
    # Thirds are rounded, once for each entry and step.
    sums.check(left, tolerance if size == 2 else max(tolerance, 2e-3))
    assert "bias" not in left, "small tensors are to travel dense"
    assert any(each.any() for each in left.values()), "the test must leave a rest"
    assert codec != LOSSY["trimmed"][0] or sum(together(trimmed)) > 0
    if codec == TOPK and ddp in [MODES[name] for name in ("several-buckets", "bucket-view")]:
        first, *later = np.diff(counts).tolist()
        assert first == 1
        assert set(later) == {later[-1]}
        assert later[-1] > 1


@on("one")
def test_one_rank_alone_sends_nothing(rank):
    with attached(network(), gradwire.topk(ratio=1.0)) as (model, handle):
        train(model, rank, range(3))
        plain = network()
        train(plain, rank, range(3))
        assert fingerprint(plain) == fingerprint(model)
        assert handle.report().wire_bytes == 0.0


@on("two")
def test_a_bucket_is_one_collective(rank):
    """And nothing that torch itself has, whoever calls it: two ranks gather by messages."""
    ours = ("all_gather", "all_to_all", "all_reduce", "broadcast", "gather", "all_gather_object")
    torchs = (*ours, "all_gather_into_tensor", "barrier", "send", "recv")
    with attached(network(), gradwire.topk(ratio=0.01), **SEVERAL) as (model, handle):
        train(model, rank, range(3))
        before = handle.report().collectives
        with counted(ProcessGroupChannel, ours) as calls, counted(dist, torchs) as others:
            train(model, rank, range(3, 5))
            buckets = handle.report().collectives - before
    assert buckets > 2
    assert calls == {"all_gather": buckets}
    assert not others


@on("two")
def test_ranks_round_by_chance_each_for_itself(rank):
    codec = gradwire.qsgd(bits=3, norm="max", memory=Residual())
    with attached(Given(), codec) as (model, handle):
        gradients = integers(1, 0, 0)
        model(gradients).backward()
        sent = gradients["a"].numpy().ravel() - residuals(handle)["a"]
        alike(gradients_of(model.module)["a"].tobytes())
    one, other = together(sent.tobytes())
    assert one != other, "both ranks would be wrong in the same direction"


@pytest.mark.parametrize("name", ["topk", "reduce", "default leader"])
@on("two")
def test_four_dtypes_come_out_as_in_plain_ddp(rank, name):
    """Where everything is sent; by a leader, all ranks have the same."""
    codec = EVERYTHING.get(name, CODECS["leader"])
    mixed = {"a": torch.float16, "b": torch.bfloat16, "c": torch.float64, "bias": torch.bfloat16}
    with attached(Given(mixed), codec, **SEVERAL) as (model, _):
        reference = DistributedDataParallel(Given(mixed), **SEVERAL)
        for step in range(4):
            found = []
            for each in (model, reference):
                each.zero_grad()
                each(integers(5, rank, step)).backward()
                found.append(gradients_of(each.module))
            ours, plain = found
            assert ours.keys() == plain.keys()
            alike({key: each.tobytes() for key, each in ours.items()})
            assert all(each.any() for each in ours.values())
            for key, values in ours.items() if name in EVERYTHING else ():
                np.testing.assert_array_equal(values, plain[key], err_msg=key)


@pytest.mark.parametrize("name", ["default", "leader"])
@on("two")
def test_join_lets_finished_ranks_send_their_rest(rank, size, name):
    """Rank r has 3 + 2 r batches; finished ranks still have residuals to send, and lead."""
    sums = Sums()
    with attached(Given(), CODECS[name], **SEVERAL) as (model, handle):
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        with model.join():
            for step in range(3 + 2 * rank):
                optimizer.zero_grad()
                model(sums.give(integers(4, rank, step))).backward()
                optimizer.step()
                before = np.abs(residuals(handle)["a"]).sum()
        left = residuals(handle)
        assert rank == 1 or np.abs(left["a"]).sum() < before
        # join() copies the last rank's parameters to all: there, all updates were applied.
        for key, parameter in model.module.named_parameters():
            sums.applied[key] = -parameter.detach().double().numpy().ravel() * size
        sums.check(left)
        alike(fingerprint(model))
