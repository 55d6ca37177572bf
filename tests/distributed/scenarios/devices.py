"""Training on a device that is passed in: the CPU in CI, and a GPU where there is one.

A scenario returns what it makes of gradients that are given, on the CPU, so that what a device
gives can be compared with what the CPU gives, bit for bit.
"""

import contextlib
import time
import warnings
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import nn, optim

import gradwire
import gradwire.torch
from gradwire.torch import backends
from gradwire.torch.backends import cuda, dispatch, host
from gradwire.torch.backends.cuda import encoding, operators, trial
from gradwire.torch.backends.cuda.preload import preload
from gradwire.torch.backends.cuda.trial import cases
from gradwire.torch.backends.host import Staging
from gradwire.torch.ddp import ExchangeError, GradientError
from gradwire.torch.engine import devices
from gradwire.torch.transport.process_group import ProcessGroups
from tests.distributed.scenarios.common import (
    SMALL_BUCKETS,
    Given,
    attached,
    fingerprint,
    integers,
    network,
    plain,
)
from tests.distributed.scenarios.parity import preset

STEPS = 4

EXCHANGES = {
    "gather": gradwire.exchange.AllGather(),
    "leader": gradwire.exchange.LeaderIndices(),
    "owners": gradwire.exchange.ReduceScatter(),
}


def own(device: str, rank: int) -> torch.device:
    """The device of a rank: ranks share a GPU if there are fewer than ranks."""
    if device != "cuda":
        return torch.device(device)
    chosen = torch.device("cuda", rank % torch.cuda.device_count())
    torch.cuda.set_device(chosen)
    return chosen


def codec(exchange: str | tuple[str, dict[str, Any]]) -> gradwire.Codec:
    """A codec that fits an exchange, or a preset's with these options."""
    if not isinstance(exchange, str):
        made: gradwire.Codec = preset(exchange[0], **exchange[1])
        return made
    if exchange == "dense":
        return gradwire.Codec(
            sparsify=gradwire.sparsify.All(),
            quantize=gradwire.quantize.BFloat16(),
            exchange=gradwire.exchange.AllReduce(),
        )
    if exchange == "reduce":
        return gradwire.randomk(ratio=0.2)
    if exchange == "sums":
        return gradwire.onebit(column=32, exchange=gradwire.exchange.QuantizedAllReduce())
    largest = gradwire.sparsify.TopK(ratio=0.1)
    if exchange == "bfloat16":
        return gradwire.Codec(sparsify=largest, memory=gradwire.memory.Residual(low_memory=True))
    return gradwire.Codec(sparsify=largest, exchange=EXCHANGES[exchange])


def given(
    rank: int,
    world_size: int,
    device: str,
    exchange: str | tuple[str, dict[str, Any]],
    ddp: dict[str, Any],
    half: bool = False,
) -> dict[str, Any]:
    """Exchange gradients that are given; return averages, the checkpoint and the backend's name."""
    on = own(device, rank)
    dtypes = {"b": torch.bfloat16, "c": torch.float16} if half else None
    module = Given(dtypes).to(on)
    averages = []
    with attached(module, codec(exchange), **ddp) as (model, handle):
        for step in range(STEPS):
            model.zero_grad()
            gradients = integers(3, rank, step)
            model({name: each.to(on) for name, each in gradients.items()}).backward()
            averages.append(_gradients(module))
        (bucket,) = {type(backends.backend_for(each).bucket(each)) for each in module.parameters()}
        return {
            "averages": averages,
            "state": plain(handle.state_dict()),
            "bucket": bucket.__module__,
            "backend": gradwire.torch.backend(on).name,
            "loaded": preload.cache_info().currsize > 0,
            "carried_by": handle.report().carried_by,
            "exchange": handle.report().exchange,
            "wire": handle.report().wire_bytes,
        }


def crossed(
    rank: int,
    world_size: int,
    device: str,
    exchange: str | tuple[str, dict[str, Any]],
    hierarchy: int | None = None,
) -> dict[str, Any]:
    """Count the bytes that a step copies between the device and the host."""
    on = own(device, rank)
    module = Given().to(on)
    options = {"hierarchy": hierarchy}
    counted = {"down": 0, "up": 0}
    copy, upload, write = Staging._copy, Staging.upload, Staging.write

    def count_down(self: Staging, tensor: torch.Tensor) -> torch.Tensor:
        counted["down"] += tensor.nbytes
        return copy(self, tensor)

    def count_upload(self: Staging, values: torch.Tensor, *rest: Any) -> torch.Tensor:
        counted["up"] += values.nbytes
        return upload(self, values, *rest)

    def count_write(self: Staging, tensor: torch.Tensor, host: torch.Tensor) -> None:
        counted["up"] += host.nbytes
        write(self, tensor, host)

    with (
        patch.object(Staging, "_copy", count_down),
        patch.object(Staging, "upload", count_upload),
        patch.object(Staging, "write", count_write),
        attached(module, codec(exchange), options=options) as (model, handle),
    ):
        averages = []
        for step in range(STEPS):
            model.zero_grad()
            counted |= {"down": 0, "up": 0}
            gradients = integers(3, rank, step)
            model({name: each.to(on) for name, each in gradients.items()}).backward()
            averages.append(_gradients(module))
        return counted | {
            "wire": handle.report().wire_bytes,
            "carried_by": handle.report().carried_by,
            "averages": averages,
            "state": plain(handle.state_dict()),
        }


def alone(rank: int, world_size: int) -> dict[str, Any]:
    """Make groups of this rank and of all while ranks are bound to devices, and exchange.

    Tell what torch was asked for: of a group that it makes with ranks bound, it asks all of them.
    """
    world: Any = dist.group.WORLD
    part: Any = dist.new_group([rank], backend="carrier", use_local_synchronization=True)
    made, tensors = [], [torch.zeros(3)]
    new_group = dist.new_group

    def recorded(*given: Any, **options: Any) -> Any:
        made.append((len(given[0]), str(world.bound_device_id), options["backend"]))
        return new_group(*given, **options)

    world.bound_device_id = torch.device("cpu", 0)
    transports = [ProcessGroups(part, None), ProcessGroups(world, None)]
    try:
        with patch.object(dist, "new_group", recorded):
            for transport in transports:
                carriers = transport.device_backends(tensors)
                channel = transport.make(carriers)
                transport.connect(channel, carriers, tensors)
        after = str(world.bound_device_id)
    finally:
        world.bound_device_id = None
        for transport in transports:
            transport.leave()
    return {"made": made, "after": after}


class _Tried:
    """What encodes tensors on the CPU: emulated kernels, if they pass the trial, else the host."""

    def __getattr__(self, name: str) -> Any:
        return getattr(cuda if dispatch._kernels(torch.device("cpu"))[0] else host, name)


def _in_use(device: torch.device) -> backends.BackendInUse:
    taken, why = dispatch._kernels(device)
    return backends.BackendInUse("cuda" if taken else "host", why)


@contextlib.contextmanager
def _first_use() -> Iterator[None]:
    """Have the CPU stand for a device that was not used so far, in this block."""
    few = [each._replace(numel=min(each.numel, 300)) for each in cases()[:4]]
    with contextlib.ExitStack() as stack:
        puts: tuple[Any, ...] = (
            patch.object(dispatch, "_IN_PLACE", _Tried()),
            patch.object(backends, "in_use", _in_use),
            patch.object(dispatch, "_extension", lambda: (True, "emulated")),
            *(patch.object(dispatch, each, {}) for each in ("_choices", "_hangs")),
            patch.object(dispatch, "_warned", set()),
            patch.object(devices, "_with_kernels", set()),
            patch.object(trial, "cases", lambda: few),
            patch.object(trial, "PATIENCE", 600.0),
        )
        for put in puts:
            stack.enter_context(put)
        yield


def disagreeing(rank: int, world_size: int, fault: str) -> dict[str, Any]:
    """Attach with kernels that go wrong on rank 1 alone."""
    real = encoding.decode

    def wrong(out: torch.Tensor, *given: Any) -> bool:
        done = real(out, *given)
        out[-1] += 1
        return done

    def hangs(*given: Any) -> bool:
        time.sleep(3)
        return real(*given)

    faults = {"a wrong byte": wrong, "a hang": hangs}
    with (
        _first_use(),
        warnings.catch_warnings(record=True) as caught,
        contextlib.ExitStack() as stack,
    ):
        warnings.simplefilter("always")
        if rank == 1:
            stack.enter_context(patch.object(encoding, "decode", faults.get(fault, real)))
            if fault == "a hang":
                stack.enter_context(patch.object(trial, "PATIENCE", 1.0))
            if fault == "no extension":
                missing = (False, "the extension is not installed")
                stack.enter_context(patch.object(dispatch, "_extension", lambda: missing))
        module = Given()
        try:
            with attached(module, gradwire.topk(ratio=0.1)) as (model, handle):
                model(integers(3, rank, 0)).backward()
                found = {
                    "carried_by": handle.report().carried_by,
                    "averages": _gradients(module),
                    "name": backends.backend_for(*module.parameters()).name,
                    "why": dispatch._kernels(torch.device("cpu"))[1],
                }
        except RuntimeError as error:
            found = {"error": f"{type(error).__name__}: {error}"}
    said = [str(each.message) for each in caught if each.category is RuntimeWarning]
    return found | {"said": said}


class _Failing:
    """Operators of which one raises, as where the device is lost."""

    def __init__(self, name: str) -> None:
        self._name, self._real = name, operators.operators()

    def __getattr__(self, name: str) -> Any:
        return self._fail if name == self._name else getattr(self._real, name)

    def _fail(self, *given: Any) -> None:
        raise RuntimeError("CUDA error: unspecified launch failure\nand what torch says of it")


def lost(rank: int, world_size: int) -> dict[str, Any]:
    """Train until the device of rank 1 is lost in a step; return errors, and what states are."""
    module = Given()
    with attached(module, codec("gather")) as (model, handle), contextlib.ExitStack() as stack:
        for step in range(2):
            model.zero_grad()
            model(integers(3, rank, step)).backward()
        found: dict[str, Any] = {"before": plain(handle.state_dict())}
        if rank == 1:
            planted = patch.object(torch.ops, "planted", _Failing("encode_bucket"), create=True)
            stack.enter_context(planted)
            stack.enter_context(patch.object(operators, "_library", "planted"))
            stack.enter_context(patch.object(host, "is_lost", lambda device: True))
        errors = []
        for step in (2, 3):
            model.zero_grad()
            try:
                model(integers(3, rank, step)).backward()
            except ExchangeError as error:
                errors.append(str(error))
        stack.pop_all().close()
        after = plain(handle.state_dict())
        return found | {"errors": errors, "steps": handle.step, "after": after}


def told(rank: int, world_size: int, kernels: bool) -> list[str]:
    """Attach twice to tensors of a device with kernels, or without; return what is said."""
    world: Any = dist.group.WORLD
    channel = ProcessGroups(world, None).make()
    with (
        patch.object(dispatch, "_warned", set()),
        patch.object(devices, "_with_kernels", set()),
        warnings.catch_warnings(record=True) as caught,
    ):
        warnings.simplefilter("always")
        for _ in range(2):
            found = devices.Devices([torch.empty(3, device="meta"), torch.empty(3)])
            if kernels:
                meta = torch.device("meta")
                found._found[meta] = backends.BackendInUse("cuda", "it is one")
            found.agree(channel)
            found.warn_of_copies({"meta": "nccl"})
            found.warn_of_copies({})
    return [f"{each.category.__name__}: {each.message}" for each in caught]


def trained(rank: int, world_size: int, device: str, with_adam: bool) -> dict[str, Any]:
    """Train with an optimizer and no wait of the program's own thread; return what is left."""
    on = own(device, rank)
    module = network().to(on)
    chosen = gradwire.adam(ratio=0.05) if with_adam else gradwire.topk(ratio=0.05)
    with attached(
        module,
        chosen,
        options={"optimizer": (optimizer := _optimizer(module, with_adam))},
        bucket_cap_mb=SMALL_BUCKETS,
    ) as (model, handle):
        random = torch.Generator().manual_seed(rank)
        data = [torch.randn(8, 32, generator=random).to(on) for _ in range(6)]
        for step, inputs in enumerate(data):
            # The first passes lay out buckets, and allocate.
            with _no_waits(on) if step > 2 else contextlib.nullcontext():
                optimizer.zero_grad()
                model(inputs).square().mean().backward()
                optimizer.step()
        return {"print": fingerprint(module.cpu()), "steps": handle.step}


def skipped(rank: int, world_size: int, device: str) -> dict[str, Any]:
    """Train with a loss scaler, and one step of one rank that overflows."""
    on = own(device, rank)
    module = network().to(on)
    scaler = torch.amp.GradScaler(on.type, init_scale=8.0, growth_interval=100)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
    found: dict[str, Any] = {}
    with attached(
        module,
        gradwire.topk(ratio=0.05),
        options={"grad_scaler": scaler},
        bucket_cap_mb=SMALL_BUCKETS,
    ) as (model, handle):
        random = torch.Generator().manual_seed(rank)
        for step in range(5):
            inputs = torch.randn(8, 32, generator=random).to(on)
            bad = step == 3
            if bad:
                found["before"] = plain(handle.state_dict())
            optimizer.zero_grad()
            loss = model(inputs).square().mean()
            if bad and rank == world_size - 1:
                loss = loss * torch.inf
            scaler.scale(loss).backward()
            if bad:
                gradients = [each.grad for each in module.parameters() if each.grad is not None]
                found["all_bad"] = not any(bool(each.isfinite().any()) for each in gradients)
            scaler.step(optimizer)
            scaler.update()
            if bad:
                found["after"] = plain(handle.state_dict())
        found["error"] = str(handle.error)
        found["steps"] = handle.step
        found["scale"] = scaler.get_scale()
    found["print"] = fingerprint(module.cpu())
    return found


def refused(rank: int, world_size: int, device: str) -> dict[str, Any]:
    """Without a scaler, a gradient that is not finite is an error on every rank."""
    on = own(device, rank)
    module = Given().to(on)
    with attached(module, gradwire.topk(ratio=0.1)) as (model, handle):
        texts = []
        for step in range(3):
            gradients = integers(3, rank, step)
            if step == 1 and rank == 1:
                gradients["a"][0, 5] = torch.nan
            model.zero_grad()
            try:
                model({name: each.to(on) for name, each in gradients.items()}).backward()
            except GradientError as error:
                texts.append(str(error))
        return {"texts": texts, "steps": handle.step, "last": _gradients(module)}


def moved(rank: int, world_size: int, device: str) -> list[Any]:
    """Save on one device and go on on the other, in both directions; return all averages."""
    averages = []
    saved: dict[str, Any] | None = None
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
                gradients = integers(5, rank, step)
                model({name: each.to(on) for name, each in gradients.items()}).backward()
                averages.append(_gradients(module))
            saved = handle.state_dict()
    return averages


def _optimizer(module: nn.Module, with_adam: bool) -> torch.optim.Optimizer:
    if with_adam:
        return optim.AdamW(module.parameters(), lr=1e-3)
    return torch.optim.SGD(module.parameters(), lr=0.05)


def _gradients(module: nn.Module) -> dict[str, bytes]:
    return {
        name: each.grad.float().cpu().numpy().tobytes()
        for name, each in module.named_parameters()
        if each.grad is not None
    }


@contextlib.contextmanager
def _no_waits(device: torch.device) -> Iterator[None]:
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
