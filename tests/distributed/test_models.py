"""Models that plain DDP takes are taken: complex, with sparse gradients, frozen in part."""

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gradwire
import gradwire.torch.ddp
from gradwire.exchange import EXCHANGES
from gradwire.memory import Residual
from gradwire.torch.ddp import GradientError
from tests.distributed.codecs import CODECS, SEVERAL
from tests.distributed.ranks import alike, on
from tests.distributed.scenarios.common import (
    bits_left,
    fingerprint,
    network,
    residuals,
)


class Complex(nn.Module):
    """Complex parameters of two precisions beside a real one."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.short = nn.Parameter(torch.randn(40, 30, dtype=torch.complex64))
        self.long_ = nn.Parameter(torch.randn(20, dtype=torch.complex128))
        self.real = nn.Parameter(torch.randn(50, 40))

    def forward(self, x):
        y = (x @ self.real).to(torch.complex64) @ self.short
        return y.abs().square().sum().double() + (self.long_ * x[0, :20]).abs().square().sum()

    def inputs(self, random):
        return torch.randn(8, 50, generator=random)


class Sparse(nn.Module):
    """An embedding with sparse gradients before a layer."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(300, 24, sparse=True)
        self.linear = nn.Linear(24, 60)

    def forward(self, x):
        return self.linear(self.embedding(x)).square().sum()

    def inputs(self, random):
        return torch.randint(300, (12,), generator=random)


def input_of(module, rank, step):
    return module.inputs(torch.Generator().manual_seed(1000 * step + rank))


def codec_of(exchange):
    """Send all entries by the exchange of this kind: without positions, if it takes that."""
    try:
        return gradwire.dense(memory=Residual(), exchange=exchange())
    except ValueError:
        return gradwire.topk(ratio=1.0, exchange=exchange())


def spoil(rank, ddp, module):
    """Run a backward pass with a gradient that is not finite at one place of rank 1."""

    def hooked(gradient):
        if rank == 1 and gradient.is_sparse:
            gradient = gradient.coalesce()
            gradient.values()[1, 5] = torch.nan
        elif rank == 1:
            gradient = gradient.clone()
            torch.view_as_real(gradient)[2, 5, 1] = torch.inf
        return gradient

    sparse = isinstance(module, Sparse)
    parameter = module.embedding.weight if sparse else module.short
    hook = parameter.register_hook(hooked)
    with pytest.raises(GradientError) as caught:
        ddp(torch.tensor([7, 11, 13]) if sparse else input_of(module, rank, 99)).backward()
    hook.remove()
    error, name = caught.value, "embedding.weight" if sparse else "short"
    assert (error.name, error.rank, error.count) == (name, 1, 1)
    assert error.first == (269 if sparse else 65)


@pytest.mark.parametrize("exchange", EXCHANGES, ids=[each.kind for each in EXCHANGES])
@pytest.mark.parametrize("kind", [Complex, Sparse], ids=["complex", "sparse"])
@on("two")
def test_trains_bit_for_bit_as_plain_ddp(rank, kind, exchange):
    """With all entries sent; a gradient that is not finite is told, and changes nothing."""
    prints = []
    for compressed in (True, False):
        module = kind()
        ddp = DistributedDataParallel(module, **SEVERAL)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=1e-4)
        handle = gradwire.torch.ddp.attach(ddp, codec_of(exchange)) if compressed else None
        for step in range(5):
            if compressed and step == 3:
                spoil(rank, ddp, module)
            optimizer.zero_grad()
            ddp(input_of(module, rank, step)).backward()
            optimizer.step()
        if compressed:
            report = handle.report()
            assert report.wire_bytes > 0
            assert len(report.parameters) == 3
            handle.detach()
        prints.append(alike(fingerprint(ddp)))
    assert prints[0] == prints[1]


@on("two")
def test_sparse_and_dense_gradients_are_skipped_together(rank):
    """Two optimizers share a scaler; what is not finite anywhere must stop both."""
    module = Sparse()
    ddp = DistributedDataParallel(module)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    parts = (module.embedding, module.linear)
    optimizers = [torch.optim.SGD(each.parameters(), lr=1e-3) for each in parts]
    with gradwire.torch.ddp.attach(ddp, CODECS["default"], grad_scaler=scaler) as handle:
        for step, bad in enumerate((None, module.linear, module.embedding, None)):
            before, left = [fingerprint(each) for each in parts], bits_left(handle)
            for optimizer in optimizers:
                optimizer.zero_grad()
            factor = torch.inf if bad is not None and rank == 1 else 1.0
            hooked = (bad or module.linear).weight
            hook = hooked.register_hook(lambda gradient, factor=factor: gradient * factor)
            scaler.scale(ddp(input_of(module, rank, step))).backward()
            hook.remove()
            for optimizer in optimizers:
                scaler.step(optimizer)
            scaler.update()
            after = [fingerprint(each) for each in parts]
            same = [one == other for one, other in zip(before, after, strict=True)]
            assert same == [bad is not None] * 2
            assert (left == bits_left(handle)) == (bad is not None)
    alike(fingerprint(ddp))


@pytest.mark.parametrize(
    "ddp", [{"find_unused_parameters": True}, {"static_graph": True}], ids=["unused", "static"]
)
@on("two")
def test_parameters_may_be_frozen_after_wrapping(rank, ddp):
    """And before `attach`; one is thawed after it. As in DDP alone."""
    prints = []
    for compressed in (True, False):
        module = network()
        model = DistributedDataParallel(module, **ddp)
        module[0].requires_grad_(False)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        codec = codec_of(gradwire.exchange.AllGather)
        handle = gradwire.torch.ddp.attach(model, codec) if compressed else None
        for step in range(6):
            if step == 3 and not ddp.get("static_graph"):
                module[0].requires_grad_(True)
            optimizer.zero_grad()
            inputs = torch.randn(8, 32, generator=torch.Generator().manual_seed(10 * step + rank))
            model(inputs).square().sum().backward()
            optimizer.step()
        if compressed:
            assert set(residuals(handle)) == {"0.weight", "3.weight", "5.weight"}
            handle.detach()
        prints.append(alike(fingerprint(model)))
    assert prints[0] == prints[1]


@on("two")
def test_nothing_is_kept_for_what_was_frozen_when_it_was_wrapped():
    """As for adapters."""
    module = network()
    module[0].requires_grad_(False)
    model = DistributedDataParallel(module)
    module[3].requires_grad_(False)
    with gradwire.torch.ddp.attach(model, CODECS["default"]) as handle:
        assert set(residuals(handle)) == {"3.weight", "5.weight"}


@on("two")
def test_a_weight_that_was_replaced_before_attaching_raises_no_error():
    """In a bucket that DDP still fills."""
    module = network()
    model = DistributedDataParallel(module, find_unused_parameters=True)
    module[5].weight = nn.Parameter(module[5].weight.detach().clone())
    with gradwire.torch.ddp.attach(model, CODECS["default"]):
        for step in range(3):
            inputs = torch.randn(8, 32, generator=torch.Generator().manual_seed(step))
            model(inputs).sum().backward()
    gradient = module[0].weight.grad
    assert gradient.any()
    alike(gradient.numpy().tobytes())
