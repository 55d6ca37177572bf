"""What holds on every device: a class of tests, run on the CPU here and by `tests/gpu` on GPUs.

A rank returns what it makes of gradients that are given, on the CPU, so that what a device gives
can be compared with what the CPU gives, bit for bit.
"""

import contextlib
import re
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist

import gradwire
import gradwire.torch
from gradwire.exchange import AllGather, AllReduce, LeaderIndices, QuantizedAllReduce, ReduceScatter
from gradwire.quantize import BFloat16
from gradwire.torch import backends
from gradwire.torch.backends.cuda.preload import preload
from gradwire.torch.backends.staging import Staging
from gradwire.torch.ddp import GradientError
from tests.distributed.codecs import NARROW, OWNED, SEVERAL
from tests.distributed.ranks import alike
from tests.distributed.scenarios.common import (
    Given,
    attached,
    fingerprint,
    integers,
    network,
    plain,
)

__all__ = ["CODECS", "DeviceSuite", "crossed", "given", "gradients"]

STEPS = 4
CODECS = {
    "gather": gradwire.topk(0.1, exchange=AllGather()),
    "bfloat16": gradwire.topk(0.1, memory=NARROW),
    "reduce": gradwire.randomk(ratio=0.2),
    "dense": gradwire.dense(quantize=BFloat16(), exchange=AllReduce()),
    "leader": gradwire.topk(0.1, exchange=LeaderIndices()),
    "owners": gradwire.topk(0.1, exchange=ReduceScatter()),
    "sums": gradwire.onebit(column=32, exchange=QuantizedAllReduce()),
}


def own(device, rank):
    """The device of a rank: ranks share a GPU if there are fewer than ranks."""
    if device != "cuda":
        return torch.device(device)
    chosen = torch.device("cuda", rank % torch.cuda.device_count())
    torch.cuda.set_device(chosen)
    return chosen


def gradients(module):
    """The bits of all gradients, in float32."""
    return {
        name: each.grad.float().cpu().numpy().tobytes()
        for name, each in module.named_parameters()
        if each.grad is not None
    }


def steps_of(rank, device, codec, options, ddp, half=False):
    """Exchange gradients that are given; after each step, yield averages and the handle."""
    on = own(device, rank)
    dtypes = {"b": torch.bfloat16, "c": torch.float16} if half else None
    module = Given(dtypes).to(on)
    with attached(module, codec, options=options, **ddp) as (model, handle):
        for step in range(STEPS):
            model.zero_grad()
            values = {name: each.to(on) for name, each in integers(3, rank, step).items()}
            yield lambda values=values: model(values).backward(), module, handle


def given(rank, device, codec, ddp, half=False):
    """Return averages, the checkpoint, and by what they were made."""
    averages = []
    for backward, module, handle in steps_of(rank, device, codec, {}, ddp, half):
        backward()
        averages.append(gradients(module))
        of = {type(backends.backend_for(each).bucket(each)) for each in module.parameters()}
        (bucket,) = of
        state, report = plain(handle.state_dict()), handle.report()
    return {
        "averages": averages,
        "state": state,
        "bucket": bucket.__module__,
        "loaded": preload.cache_info().currsize > 0,
        "carried_by": report.carried_by,
        "exchange": report.exchange,
        "wire": report.wire_bytes,
    }


def crossed(rank, device, codec, hierarchy=None):
    """Count the bytes that a step copies between the device and the host."""
    counted, averages = {"down": 0, "up": 0}, []
    copy, upload, write = Staging._copy, Staging.upload, Staging.write

    def count_down(self, tensor):
        counted["down"] += tensor.nbytes
        return copy(self, tensor)

    def count_upload(self, values, *rest):
        counted["up"] += values.nbytes
        return upload(self, values, *rest)

    def count_write(self, tensor, host):
        counted["up"] += host.nbytes
        write(self, tensor, host)

    with (
        patch.object(Staging, "_copy", count_down),
        patch.object(Staging, "upload", count_upload),
        patch.object(Staging, "write", count_write),
    ):
        options = {"hierarchy": hierarchy}
        for backward, module, handle in steps_of(rank, device, codec, options, {}):
            counted |= {"down": 0, "up": 0}
            backward()
            averages.append(gradients(module))
            found, report = dict(counted), handle.report()
            state = plain(handle.state_dict())
    return found | {
        "wire": report.wire_bytes,
        "carried_by": report.carried_by,
        "averages": averages,
        "state": state,
    }


@contextlib.contextmanager
def no_waits(device):
    """Make it an error if the device is waited for, where torch can notice that."""
    if device.type != "cuda":
        yield
        return
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def trained(rank, device, with_adam):
    """Train with an optimizer and no wait of the program's own thread."""
    on = own(device, rank)
    module = network().to(on)
    if with_adam:
        codec, optimizer = gradwire.adam(0.05), torch.optim.AdamW(module.parameters(), lr=1e-3)
    else:
        codec, optimizer = gradwire.topk(0.05), torch.optim.SGD(module.parameters(), lr=0.05)
    with attached(module, codec, options={"optimizer": optimizer}, **SEVERAL) as (model, handle):
        random = torch.Generator().manual_seed(rank)
        data = [torch.randn(8, 32, generator=random).to(on) for _ in range(6)]
        for step, inputs in enumerate(data):
            # The first passes lay out buckets, and allocate.
            with no_waits(on) if step > 2 else contextlib.nullcontext():
                optimizer.zero_grad()
                model(inputs).square().mean().backward()
                optimizer.step()
        assert handle.step == 6
    alike(fingerprint(module.cpu()))


def skipped(rank, size, device):
    """Train with a loss scaler, and one step of one rank that overflows."""
    on = own(device, rank)
    module = network().to(on)
    scaler = torch.amp.GradScaler(on.type, init_scale=8.0, growth_interval=100)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
    options = {"grad_scaler": scaler}
    with attached(module, gradwire.topk(0.05), options=options, **SEVERAL) as (model, handle):
        random = torch.Generator().manual_seed(rank)
        for step in range(5):
            inputs, bad = torch.randn(8, 32, generator=random).to(on), step == 3
            before = plain(handle.state_dict())
            optimizer.zero_grad()
            factor = torch.inf if bad and rank == size - 1 else 1.0
            scaler.scale(model(inputs).square().mean() * factor).backward()
            if bad:
                every = [each.grad for each in module.parameters() if each.grad is not None]
                assert not any(bool(each.isfinite().any()) for each in every)
            scaler.step(optimizer)
            scaler.update()
            assert not bad or before == plain(handle.state_dict())
        assert "on rank 1" in str(handle.error)
        assert (handle.step, scaler.get_scale()) == (4, 4.0)
    alike(fingerprint(module.cpu()))


def refused(rank, device):
    """Without a scaler, a gradient that is not finite is an error on every rank."""
    on = own(device, rank)
    module = Given().to(on)
    with attached(module, gradwire.topk(ratio=0.1)) as (model, handle):
        for step in range(3):
            values = integers(3, rank, step)
            model.zero_grad()
            if step == 1 and rank == 1:
                values["a"][0, 5] = torch.nan
            values = {name: each.to(on) for name, each in values.items()}
            if step != 1:
                model(values).backward()
                continue
            said = re.escape("the gradient of 'a' on rank 1 has 1 non-finite value(s)")
            with pytest.raises(GradientError, match=f"{said}.*flat position 5"):
                model(values).backward()
        assert handle.step == 2
        alike(gradients(module))


def moved(rank, device):
    """Save on one device and go on on the other, in both directions; return all averages."""
    averages, saved = [], None
    group = dist.new_group(backend="gloo")  # NCCL takes no model on the CPU
    for where, steps in ((device, range(2)), ("cpu", range(2, 4)), (device, range(4, 6))):
        on = own(where, rank)
        module = Given().to(on)
        over = group if where == "cpu" else None
        with attached(module, gradwire.topk(ratio=0.1), process_group=over) as (model, handle):
            if saved is not None:
                handle.load_state_dict(saved)
            for step in steps:
                model.zero_grad()
                values = integers(5, rank, step)
                model({name: each.to(on) for name, each in values.items()}).backward()
                averages.append(gradients(module))
            saved = handle.state_dict()
    return averages


class DeviceSuite:
    """Tests of training on the device ``device``, with the ranks of the fixture ``there``."""

    device: str
    module: str
    """Where buckets of the device are made."""
    carried_by: str = "gloo"
    """What moves frames between the ranks."""

    @pytest.fixture
    def cpu(self, two):
        """Ranks to compare with: tensors on the CPU, in place."""
        return two

    def compare(self, cpu, there, codec, ddp, half=False):
        """Hold averages and states to those of the CPU; return what is found."""
        options = {"codec": codec, "ddp": ddp, "half": half}
        expected = cpu.run(given, device="cpu", **options)
        found = there.run(given, device=self.device, **options)
        for one, other in zip(found, expected, strict=True):
            assert one["carried_by"] == self.carried_by
            for what in ("averages", "state", "wire"):
                assert one[what] == other[what], what
        return found

    @pytest.mark.parametrize("half", [False, True], ids=["float32", "with-halves"])
    @pytest.mark.parametrize("ddp", [{}, SEVERAL | {"gradient_as_bucket_view": True}], ids=str)
    @pytest.mark.parametrize("exchange", CODECS)
    def test_averages_and_states_are_those_of_the_cpu_bit_for_bit(
        self, cpu, there, exchange, ddp, half
    ):
        for each in self.compare(cpu, there, CODECS[exchange], ddp, half):
            assert each["bucket"] == self.module
            assert each["loaded"] == self.module.endswith("cuda.buckets")

    @pytest.mark.parametrize("codec", OWNED.values(), ids=OWNED)
    def test_owners_merge_as_on_the_cpu_bit_for_bit(self, cpu, there, codec):
        self.compare(cpu, there, codec, SEVERAL)

    @pytest.mark.parametrize("with_adam", [False, True], ids=["sgd", "adam"])
    def test_replicas_stay_equal_and_the_program_never_waits(self, there, with_adam):
        there.run(trained, device=self.device, with_adam=with_adam)

    def test_a_step_that_overflows_on_one_rank_is_rolled_back_on_all(self, there):
        there.run(skipped, device=self.device)

    def test_a_gradient_that_is_not_finite_is_an_error_on_every_rank(self, there):
        there.run(refused, device=self.device)

    def test_a_checkpoint_goes_on_on_another_device_bit_for_bit(self, cpu, there):
        assert there.run(moved, device=self.device) == cpu.run(moved, device="cpu")
