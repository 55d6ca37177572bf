"""Updates of each rank's own Adam: against a simulation, and through what programs do to them."""

import contextlib
import copy
import warnings
from typing import Any, get_args
from unittest import mock

import numpy as np
import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.nn.parallel import DistributedDataParallel
from torch.optim import AdamW

import gradwire
import gradwire.torch.ddp
from gradwire.memory import AdamCorrection
from gradwire.quantize import BFloat16
from gradwire.schedule import Accordion, DenseWarmUp, WarmUp
from gradwire.sparsify import TopK
from gradwire.torch.backends.signed_sums import sample
from gradwire.torch.checkpoint.format import Policy
from gradwire.torch.ddp import GradientError
from gradwire.torch.exchange import squares
from tests.distributed.scenarios.common import (
    SMALL_BUCKETS,
    Given,
    batch,
    fingerprint,
    integers,
    network,
    plain,
)

BETA2, EPS = 0.98, 1e-6


def codec(ratio: float, quantize: Any = None) -> Any:
    """Updates in float32, unless said otherwise."""
    parts = {} if quantize is None else {"quantize": quantize}
    return gradwire.Codec(
        sparsify=TopK(ratio=ratio), memory=AdamCorrection(beta2=BETA2, eps=EPS), **parts
    )


def groups_of(module: nn.Module) -> list[dict[str, Any]]:
    """Two groups with rates of their own: no decay for what has one dimension."""
    every = list(module.parameters())
    return [
        {"params": [each for each in every if each.ndim > 1], "lr": 0.01},
        {"params": [each for each in every if each.ndim < 2], "weight_decay": 0.0},
    ]


def optimizer_of(groups: Any, **options: Any) -> AdamW:
    """An optimizer that goes with the codec."""
    return AdamW(groups, lr=0.02, betas=(0.9, BETA2), eps=EPS, weight_decay=0.1, **options)


def gradients(module: nn.Module, rank: int, step: int) -> list[torch.Tensor]:
    """The gradients that a rank has with these weights."""
    inputs, targets = batch(rank, step)
    dtype = next(module.parameters()).dtype
    loss = nn.functional.mse_loss(module(inputs.to(dtype)), targets.to(dtype))
    return list(torch.autograd.grad(loss, list(module.parameters())))


def reference(
    rank: int, world_size: int, ratio: float, dtype: str, options: dict[str, Any], ddp: Any
) -> dict[str, Any]:
    """Train with DDP, and all ranks one after the other in one process."""
    module = network().to(getattr(torch, dtype))
    alone = network().to(getattr(torch, dtype))
    model = DistributedDataParallel(module, bucket_cap_mb=SMALL_BUCKETS, **ddp)
    optimizer = optimizer_of(groups_of(module), **options)
    simulated = Simulated(alone, world_size, ratio, **options)
    schedules = [
        torch.optim.lr_scheduler.StepLR(each, 3, 0.5) for each in (optimizer, simulated.rates)
    ]
    with gradwire.torch.ddp.attach(model, codec(ratio), optimizer=optimizer):
        for step in range(8):
            simulated.step([gradients(alone, each, step) for each in range(world_size)])
            inputs, targets = (each.to(getattr(torch, dtype)) for each in batch(rank, step))
            optimizer.zero_grad()
            nn.functional.mse_loss(model(inputs), targets).backward()
            optimizer.step()
            for schedule in schedules:
                schedule.step()
    pairs = zip(module.parameters(), alone.parameters(), strict=True)
    return {
        "difference": max(float((a - b).detach().abs().max()) for a, b in pairs),
        "moved": float(
            (next(module.parameters()) - next(iter(network().parameters()))).abs().max()
        ),
        "print": fingerprint(model),
        "state": len(optimizer.state),
    }


class Simulated:
    """All ranks in one process: torch's AdamW for what is dense, numpy for the rest."""

    def __init__(
        self, module: nn.Module, ranks: int, ratio: float, *, maximize: bool = False, **_: Any
    ) -> None:
        self.parameters = list(module.parameters())
        dense = [each for each in self.parameters if each.numel() < 1024]
        groups = groups_of(module)
        for group in groups:
            group["params"] = [
                each for each in group["params"] if any(each is one for one in dense)
            ]
        self.sign = -1.0 if maximize else 1.0
        self.dense = torch.optim.AdamW(
            groups, lr=0.02, betas=(0.9, BETA2), eps=EPS, weight_decay=0.1, maximize=maximize
        )
        # Only its learning rates are used; those of the dense ones follow them.
        self.rates = torch.optim.SGD(groups_of(module), lr=0.02)
        feedback = gradwire.Codec(sparsify=TopK(ratio=ratio))
        self.codec = feedback
        self.ranks = [
            {id(each): feedback.init_state(each.numel()) for each in self.parameters}
            for _ in range(ranks)
        ]
        self.moments: list[dict[int, Any]] = [{} for _ in range(ranks)]
        self.ratios: dict[int, float] = {}
        self.count = 0

    def step(self, every: list[list[torch.Tensor]]) -> None:
        self.count += 1
        for group, other in zip(self.dense.param_groups, self.rates.param_groups, strict=True):
            group["lr"] = other["lr"]
        rates = {
            id(each): (group["lr"], 0.1 if each.ndim > 1 else 0.0)
            for group in self.rates.param_groups
            for each in group["params"]
        }
        for index, parameter in enumerate(self.parameters):
            found = [gradients[index] for gradients in every]
            if parameter.numel() < 1024:
                parameter.grad = (
                    torch.stack([each.double() for each in found]).mean(0).to(parameter.dtype)
                )
                continue
            rate, decay = rates[id(parameter)]
            longer = rate / self._ratio(parameter, found) ** 0.5
            updates = [
                self._update(rank, parameter, each, longer) for rank, each in enumerate(found)
            ]
            update = torch.from_numpy(np.mean(updates, axis=0)).view(parameter.shape)
            with torch.no_grad():
                wide = parameter.double() * (1 - rate * decay)
                parameter.copy_(wide - self.sign * update.to(parameter.dtype).double())
        self.dense.step()

    def _ratio(self, parameter: torch.Tensor, found: list[torch.Tensor]) -> float:
        """The mean over all steps so far: of sums with signs, as a codec has no more to go by."""
        sums = torch.zeros(65, dtype=torch.float64)
        for each in found:
            values, signs = sample(each.float().flatten(), self.count - 1)
            own = torch.cat([(values * signs).sum(0), values.square().sum().view(1)])
            sums += own.bfloat16().double()
        now = float(sums[:-1].square().sum() / sums[-1]) / len(found)
        mean = self.ratios.get(id(parameter), 0.0)
        mean += (now - mean) / self.count
        self.ratios[id(parameter)] = min(max(mean, 1.0 / len(found)), 1.0)
        return self.ratios[id(parameter)]

    def _update(
        self, rank: int, parameter: torch.Tensor, gradient: torch.Tensor, rate: float
    ) -> Any:
        # In float32, as the core has it: the first steps of all entries are almost the same, and
        # the last bit decides which of them are sent.
        single = np.float32
        narrow = gradient.float().numpy().ravel()
        moments = self.moments[rank]
        old = moments.get(id(parameter), np.zeros(narrow.size, single))
        moment = single(BETA2) * old + (single(1 - BETA2) * narrow) * narrow
        moments[id(parameter)] = moment
        root = single(1 / np.sqrt(1 - BETA2**self.count)) * np.sqrt(moment) + single(EPS)
        frame = self.codec.encode(single(rate) * (narrow / root), self.ranks[rank][id(parameter)])
        return gradwire.decode(frame).astype(np.float64)


def exchanged(rank: int, world_size: int, how: str) -> list[str]:
    """Other exchanges, sparsifiers and quantizers: equal replicas, and a lower loss."""
    made = {
        "leader": lambda: gradwire.Codec(
            sparsify=TopK(ratio=0.05),
            memory=AdamCorrection(),
            exchange=gradwire.exchange.LeaderIndices(),
        ),
        "reduce": lambda: gradwire.Codec(
            sparsify=gradwire.sparsify.All(),
            memory=AdamCorrection(),
            exchange=gradwire.exchange.AllReduce(),
        ),
        "onebit": gradwire.adam_onebit,
        "half": lambda: gradwire.adam(0.05, quantize=BFloat16()),
        "sid": lambda: gradwire.Codec(
            sparsify=gradwire.sparsify.SID(ratio=0.05), memory=AdamCorrection()
        ),
    }[how]()
    model = DistributedDataParallel(network(), bucket_cap_mb=SMALL_BUCKETS)
    optimizer = AdamW(model.parameters(), lr=0.003)
    teacher = network(7)
    losses = []
    with gradwire.torch.ddp.attach(model, made, optimizer=optimizer):
        for step in range(40):
            inputs = batch(rank, step, rows=32)[0]
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(inputs), teacher(inputs).detach())
            loss.backward()
            optimizer.step()
            losses.append(float(loss))
    assert losses[-1] < 0.5 * losses[0], losses
    return [fingerprint(model)]


def scaled(rank: int, world_size: int) -> dict[str, Any]:
    """With a loss scale, without one, and a pass that the scaler skips on all ranks."""
    prints = []
    found: dict[str, Any] = {}
    for with_scaler in (True, False):
        scaler = torch.amp.GradScaler(
            "cpu", init_scale=1024.0, growth_interval=2, enabled=with_scaler
        )
        model = DistributedDataParallel(network(), bucket_cap_mb=SMALL_BUCKETS)
        optimizer = optimizer_of(groups_of(model.module))
        handle = gradwire.torch.ddp.attach(
            model, codec(0.05), optimizer=optimizer, grad_scaler=scaler
        )
        for step in range(6):
            if with_scaler and step == 3:
                before = plain(handle.state_dict()), fingerprint(model)
                bad = torch.inf if rank == 1 else 1.0
                _scaled_step(model, optimizer, scaler, rank, 50, bad)
                after = plain(handle.state_dict()), fingerprint(model)
                found["rolled back"] = before == after
            _scaled_step(model, optimizer, scaler, rank, step)
        prints.append(fingerprint(model))
        handle.detach()
    return {**found, "same": prints[0] == prints[1], "print": prints[0]}


def _scaled_step(
    model: Any, optimizer: Any, scaler: Any, rank: int, step: int, factor: float = 1.0
) -> None:
    inputs, targets = batch(rank, step)
    optimizer.zero_grad()
    scaler.scale(nn.functional.mse_loss(model(inputs), targets) * factor).backward()
    scaler.step(optimizer)
    scaler.update()


class Tied(nn.Module):
    """A weight used twice, one that may be left out, and one that no group has at first."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.one, self.two, self.late = (nn.Linear(32, 64) for _ in range(3))
        self.back = nn.Linear(64, 32)
        self.again = nn.Linear(64, 32)
        self.again.weight = self.back.weight

    def forward(self, x: torch.Tensor, branch: bool = False) -> torch.Tensor:
        hidden = torch.tanh(self.back(torch.tanh(self.one(x))))
        hidden = self.again(torch.tanh(self.one(hidden))) + self.late(x).mean()
        found: torch.Tensor = hidden.mean() + (self.two(x).square().mean() if branch else 0.0)
        return found


def odd_parameters(rank: int, world_size: int) -> dict[str, Any]:
    """Tied, unused, in no group at first, frozen and thawed."""
    module = Tied()
    model = DistributedDataParallel(
        module, bucket_cap_mb=SMALL_BUCKETS, find_unused_parameters=True
    )
    optimizer = AdamW(
        [each for name, each in module.named_parameters() if not name.startswith("late")], lr=0.01
    )
    found: dict[str, Any] = {}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        handle = gradwire.torch.ddp.attach(model, gradwire.adam(0.1), optimizer=optimizer)
    found["told"] = [str(each.message) for each in caught]

    def go(steps: range, branch: bool = False) -> None:
        for step in steps:
            optimizer.zero_grad()
            model(batch(rank, step)[0], branch and rank == 0).backward()
            optimizer.step()

    def kept() -> list[bytes]:
        (saved,) = handle.state_dict().values()
        tensors = [saved[kind]["two.weight"] for kind in ("second_moment", "residual")]
        return [each.numpy().tobytes() for each in (*tensors, weight("two.weight"))]

    def weight(name: str) -> torch.Tensor:
        return module.get_parameter(name).detach().clone()

    go(range(2), branch=True)
    before = kept()
    late = weight("late.weight")
    go(range(2, 4))
    found["waits"] = before == kept()
    found["not trained"] = torch.equal(late, weight("late.weight"))
    optimizer.add_param_group({"params": module.late.parameters(), "lr": 0.02, "eps": 1e-3})
    try:
        go(range(4, 5), branch=True)
    except ValueError as error:
        found["other eps"] = str(error)
    optimizer.param_groups[-1]["eps"] = 1e-8
    optimizer.add_param_group({"params": nn.Parameter(torch.zeros(2000)), "eps": 1e-3})
    module.one.weight.requires_grad_(False)
    frozen = weight("one.weight")
    go(range(4, 6), branch=True)
    found["trained later"] = not torch.equal(late, weight("late.weight"))
    found["frozen"] = torch.equal(frozen, weight("one.weight"))
    module.one.weight.requires_grad_(True)
    go(range(6, 8))
    found["thawed"] = not torch.equal(frozen, weight("one.weight"))
    found["tied"] = module.again.weight is module.back.weight
    found["print"] = fingerprint(model)
    handle.detach()
    return found


def scheduled(rank: int, world_size: int, how: str) -> dict[str, Any]:
    """Ratios that change, and a dense start: the second moment goes on."""
    schedules = {
        "dense": DenseWarmUp(1),
        "warm-up": WarmUp(),
        "accordion": Accordion(0.2, 0.05, interval=1),
    }
    model = DistributedDataParallel(network(), bucket_cap_mb=SMALL_BUCKETS)
    optimizer = AdamW(model.parameters(), lr=0.01)
    handle = gradwire.torch.ddp.attach(
        model, gradwire.adam(0.05), optimizer=optimizer, schedule=schedules[how]
    )
    weight = model.module[0].weight
    moments, steps, averaged = [], [], []
    for epoch in range(3):
        handle.epoch(epoch)
        if how == "dense" and epoch == 1:
            moments.append(optimizer.state[weight]["exp_avg_sq"].clone().numpy())
        for step in range(3):
            inputs, targets = batch(rank, 3 * epoch + step)
            optimizer.zero_grad()
            nn.functional.mse_loss(model(inputs), targets).backward()
            if how == "dense" and epoch == 1 and step == 0:
                moments.append(handle._parameters["0.weight"].state.second_moment)
            optimizer.step()
            state = handle._parameters["0.weight"].state
            steps.append(state.step)
            averaged.append(state.state_dict()["scalars"]["second_moment_steps"])
    found = {
        "steps": steps,
        "averaged": averaged,
        "print": fingerprint(model),
        "kept": weight in optimizer.state,
        "moments": moments,
    }
    handle.detach()
    return found


def saved(rank: int, world_size: int, folder: str) -> dict[str, Any]:
    """Train and save; return what must be averaged."""
    model, optimizer, handle = _started()
    for step in range(4):
        _train(model, optimizer, rank, step)
    state = handle.state_dict()
    torch.save({"handle": state, "optimizer": optimizer.state_dict()}, f"{folder}/{rank}.pt")
    handle.detach()
    (held,) = state.values()
    return {kind: held[kind]["0.weight"].numpy() for kind in ("residual", "second_moment")}


def loaded(
    rank: int, world_size: int, folder: str, old_size: int, policy: Any, own: bool
) -> dict[str, Any]:
    """Continue on another number of ranks."""
    model, optimizer, handle = _started()
    names = [rank] if own else range(old_size)
    every = [torch.load(f"{folder}/{each}.pt") for each in names if each < old_size]
    optimizer.load_state_dict(torch.load(f"{folder}/0.pt")["optimizer"])
    handle.load_state_dict([each["handle"] for each in every] or None, policy)
    (held,) = handle.state_dict().values()
    found = {kind: held[kind]["0.weight"].numpy() for kind in ("residual", "second_moment")}
    state = handle._parameters["0.weight"].state
    found["step"] = state.step
    found["averaged"] = state.state_dict()["scalars"]["second_moment_steps"]
    _train(model, optimizer, rank, 9)
    found["print"] = fingerprint(model)
    handle.detach()
    return found


def _started() -> tuple[Any, AdamW, Any]:
    model = DistributedDataParallel(network(), bucket_cap_mb=SMALL_BUCKETS)
    optimizer = AdamW(model.parameters(), lr=0.01)
    return (
        model,
        optimizer,
        gradwire.torch.ddp.attach(model, gradwire.adam(0.05), optimizer=optimizer),
    )


def _train(model: Any, optimizer: Any, rank: int, step: int) -> None:
    inputs, targets = batch(rank, step)
    optimizer.zero_grad()
    nn.functional.mse_loss(model(inputs), targets).backward()
    optimizer.step()


def by_frameworks(rank: int, world_size: int, folder: str) -> dict[str, Any]:
    """Resume from torch.distributed.checkpoint, and from one dict for all ranks."""
    model, optimizer, handle = _started()
    for step in range(3):
        _train(model, optimizer, rank, step)
    weights = copy.deepcopy(model.state_dict())
    kept = copy.deepcopy(get_optimizer_state_dict(model, optimizer))
    save({"gradwire": handle}, checkpoint_id=folder)
    gathered = handle.gathered_state_dict(None)
    prints = []
    for way in ("go on", "dcp", "gathered"):
        if way != "go on":
            model, optimizer, handle = _started()
            model.load_state_dict(weights)
            some = StateDictOptions(strict=False)  # compressed parameters have nothing there
            set_optimizer_state_dict(model, optimizer, copy.deepcopy(kept), options=some)
        if way == "dcp":
            load({"gradwire": handle}, checkpoint_id=folder)
        elif way == "gathered":
            handle.load_state_dict(gathered)
        for step in range(3, 6):
            _train(model, optimizer, rank, step)
        prints.append((fingerprint(model), plain(handle.state_dict())))
        handle.detach()
    return {"same": prints[0] == prints[1] == prints[2], "print": prints[0][0]}


def resharded(rank: int, world_size: int, folder: str, old_size: int) -> list[dict[str, Any]]:
    """Load what another number of ranks saved by torch.distributed.checkpoint."""
    found = []
    for policy in get_args(Policy):
        model, optimizer, handle = _started()
        load({"gradwire": handle.resharded(old_size, policy)}, checkpoint_id=folder)
        (held,) = handle.state_dict().values()
        _train(model, optimizer, rank, 9)
        moment = held["second_moment"]["0.weight"].numpy().ravel()
        found.append({"moment": moment, "print": fingerprint(model)})
        handle.detach()
    return found


def kinds(rank: int, world_size: int) -> dict[str, list[str]]:
    """What checkpoints of codecs contain: those of earlier releases have no other keys."""
    found = {}
    for name, made in (("topk", gradwire.topk(0.05)), ("adam", gradwire.adam())):
        model = DistributedDataParallel(network())
        optimizer = AdamW(model.parameters())
        with gradwire.torch.ddp.attach(model, made, optimizer=optimizer) as handle:
            (saved,) = handle.state_dict().values()
            found[name] = sorted(saved)
    return found


def raised(rank: int, world_size: int) -> dict[str, Any]:
    """A gradient that is not finite on one rank changes no moment on any."""
    model = DistributedDataParallel(Given(), bucket_cap_mb=SMALL_BUCKETS)
    optimizer = AdamW(model.parameters(), lr=0.01)
    handle = gradwire.torch.ddp.attach(model, gradwire.adam(0.05), optimizer=optimizer)
    found: dict[str, Any] = {}
    for step in range(4):
        optimizer.zero_grad()
        given = integers(1, rank, step)
        if step == 2 and rank == 1:
            given["a"][1, 1] = torch.nan
        before = plain(handle.state_dict()) if step == 2 else None
        try:
            model(given).backward()
        except GradientError as error:
            found["error"] = (error.name, error.rank)
            found["same"] = before == plain(handle.state_dict())
            continue
        optimizer.step()
    found["print"] = fingerprint(model)
    handle.detach()
    return found


def detached(rank: int, world_size: int) -> dict[str, Any]:
    """After detach() the optimizer is torch's, with the second moments that the codec had."""
    model, optimizer, handle = _started()
    for step in range(3):
        _train(model, optimizer, rank, step)
    handle.detach()
    weights = [each for each in model.parameters() if each.numel() >= 1024]
    kept = sum(each in optimizer.state for each in weights)
    twin = DistributedDataParallel(network())
    twin.load_state_dict(model.state_dict())
    other = torch.optim.AdamW(twin.parameters(), lr=0.01)
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for step in range(3, 6):
        _train(model, optimizer, rank, step)
        _train(twin, other, rank, step)
    return {
        "kept": kept,
        "same": fingerprint(model) == fingerprint(twin),
        "print": fingerprint(model),
    }


def compiled(rank: int, world_size: int) -> list[str]:
    """A compiled model trains like the eager one."""
    prints = []
    for how in ("eager", "compiled"):
        model: Any = DistributedDataParallel(network())
        called: Any = model if how == "eager" else torch.compile(model, backend="eager")
        optimizer = AdamW(model.parameters(), lr=0.01)
        with gradwire.torch.ddp.attach(called, gradwire.adam(0.05), optimizer=optimizer):
            for step in range(4):
                _train(called, optimizer, rank, step)
        prints.append(fingerprint(model))
    return prints


def after_dense(rank: int, world_size: int) -> dict[str, list[str]]:
    """Go on with a checkpoint of dense training, loaded before attach() and after it."""
    found: dict[str, list[str]] = {}
    model: Any = DistributedDataParallel(network())
    dense = torch.optim.AdamW(model.parameters(), lr=0.01)
    for step in range(3):
        _train(model, dense, rank, step)
    for when in ("before", "after"):
        model = DistributedDataParallel(network())
        optimizer = AdamW(model.parameters(), lr=0.01)
        saved = copy.deepcopy(dense.state_dict())
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            if when != "after":
                optimizer.load_state_dict(saved)
            with gradwire.torch.ddp.attach(model, gradwire.adam(0.05), optimizer=optimizer):
                if when == "after":
                    optimizer.load_state_dict(saved)
                for step in range(3, 6):
                    _train(model, optimizer, rank, step)
        kinds = gradwire.torch.ddp.PairingWarning
        found[when] = [str(each.message) for each in seen if issubclass(each.category, kinds)]
    return found


def without_an_optimizer(rank: int, world_size: int) -> float:
    """The longest step of an average that no optimizer's learning rate is known for."""
    del world_size
    tensor = integers(5, rank, 0)["b"].flatten()
    codec = gradwire.adam(1.0, quantize=gradwire.quantize.Float32())
    state = gradwire.torch.init_state(codec, tensor)
    state.learning_rate = 0.25
    gradwire.torch.all_reduce(tensor, codec, state)
    return float(tensor.abs().max())


def unmeasured(rank: int, world_size: int) -> list[Any]:
    """A rank that cannot measure its gradients: an error of all, and the step leaves no trace."""
    del world_size
    model = DistributedDataParallel(network(), bucket_cap_mb=SMALL_BUCKETS)
    optimizer = optimizer_of(groups_of(model.module))
    found: list[Any] = []
    with gradwire.torch.ddp.attach(model, codec(0.05), optimizer=optimizer) as handle:
        for step in range(3):
            fails = mock.patch.object(squares, "sums_of", side_effect=MemoryError("too much"))
            before = plain(handle.state_dict())
            optimizer.zero_grad()
            with fails if step == 1 and rank == 1 else contextlib.nullcontext():
                try:
                    model(batch(rank, step)[0]).mean().backward()
                except Exception as error:
                    found += [type(error).__name__, "too much" in str(error)]
                    found.append(plain(handle.state_dict()) == before)
                    continue
            optimizer.step()
    return [*found, fingerprint(model)]
