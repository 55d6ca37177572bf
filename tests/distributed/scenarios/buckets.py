"""Entries are selected from all parameters of a bucket together; what is left is kept by name."""

import contextlib
import io
from collections.abc import Iterator
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gradwire
import gradwire.torch.ddp
from gradwire.exchange import LeaderIndices, ReduceScatter
from gradwire.memory import Residual
from gradwire.quantize import Uniform
from gradwire.schedule import BySteps, DenseWarmUp, WarmUp
from gradwire.torch.backends import cpu, cuda
from gradwire.torch.ddp import ExchangeError, GradientError
from gradwire.torch.optim import SGD, AdamW
from tests.distributed.scenarios import hierarchy, sharded
from tests.distributed.scenarios.common import (
    SHAPES,
    SMALL_BUCKETS,
    Given,
    about,
    attached,
    changed,
    fingerprint,
    gradients_of,
    integers,
    network,
    plain,
    residuals,
    train,
)

RATIO = 0.05
ALL = {"min_numel": 1, "min_ndim": 0}
CODECS = {
    "topk": lambda: gradwire.topk(RATIO),
    "one buffer": lambda: gradwire.topk(RATIO, memory=Residual(low_memory=True)),
    "bfloat16": lambda: gradwire.topk(RATIO, memory=Residual(dtype="bfloat16")),
    "leader": lambda: gradwire.Codec(
        sparsify=gradwire.sparsify.TopK(ratio=RATIO), memory=Residual(), exchange=LeaderIndices()
    ),
    "drawn": lambda: gradwire.randomk(RATIO, memory=Residual()),
    "sidco": lambda: gradwire.sidco(RATIO),
    "adacomp": gradwire.adacomp,
}


@contextlib.contextmanager
def bundled(module: nn.Module, codec: Any, cap: float = 25.0, **options: Any) -> Iterator[Any]:
    """A model whose buckets are tensors, of this capacity in MiB."""
    ddp = {name: options.pop(name) for name in ("find_unused_parameters",) if name in options}
    options = {"scope": "bucket", **options}
    with attached(module, codec, options=options, bucket_cap_mb=cap, **ddp) as both:
        yield both


def bundles(handle: Any) -> list[list[str]]:
    """The names of the members of all bundles, each in the order of its bucket."""
    return [each["members"] for each in about(handle.state_dict()).get("bundles", [])]


def selecting(rank: int, world_size: int, cap: float, whole: bool) -> dict[str, Any]:
    """Averages of every step, and those of a plain top-k over the concatenation of each bucket."""
    kept = [{name: np.zeros(shape) for name, shape in SHAPES.items()} for _ in range(world_size)]
    found: dict[str, Any] = {"bundles": [], "same": [], "kept": []}
    with bundled(Given(), gradwire.topk(RATIO), cap, **(ALL if whole else {})) as (model, handle):
        for step in range(4):
            model.zero_grad()
            model(integers(3, rank, step)).backward()
            groups = bundles(handle)
            expected = oracle(kept, groups, [integers(3, each, step) for each in range(world_size)])
            got = gradients_of(model.module)
            found["bundles"].append(groups)
            found["same"].append(all(np.array_equal(got[name], expected[name]) for name in SHAPES))
            own = residuals(handle)
            found["kept"].append(
                all(np.array_equal(own[name], kept[rank][name].ravel()) for name in own)
            )
        # DDP's first bucket, whose tensor was another one, is not kept.
        layouts = handle._passes._layouts._known.values()
        every = {id(one): one for each in layouts if each.bundled for one in each.bundled.bundles}
        found["held"] = sum(one.numel for one in every.values() if one._state is not None)
        report = handle.report()
        found["trimmed"] = sum(each.trimmed for each in report.parameters)
        found["achieved"] = (
            report.achieved,
            {each.name: each.achieved for each in report.parameters if not each.dense},
        )
        found["codec"] = report.codec
        found["norms"] = {each.name: each.residual_norm for each in report.parameters}
        found["expected norms"] = {name: float(np.linalg.norm(each)) for name, each in own.items()}
        found["bytes"] = {each.name: each.state_bytes for each in report.parameters}
        found["timeline"] = {each.parameters for each in report.timeline}
        found["metrics"] = handle.metrics()["achieved"]
    return found


def oracle(
    kept: list[dict[str, Any]], groups: list[list[str]], given: list[dict[str, torch.Tensor]]
) -> dict[str, Any]:
    """Take a step in numpy: what is kept changes; return the averages, flat."""
    members = {name for group in groups for name in group}
    averages = {name: np.zeros(int(np.prod(shape))) for name, shape in SHAPES.items()}
    for own, gradients in zip(kept, given, strict=True):
        for name in SHAPES.keys() - members:
            averages[name] += gradients[name].double().numpy().ravel() / len(kept)
        for group in groups:
            parts = [(own[name] + gradients[name].double().numpy()).ravel() for name in group]
            total = np.concatenate(parts)
            order = np.argsort(-np.abs(total), kind="stable")
            sent = np.zeros_like(total)
            sent[order[: max(1, int(RATIO * total.size))]] = 1.0
            ends = np.cumsum([part.size for part in parts])[:-1]
            for name, part, mask in zip(group, parts, np.split(sent, ends), strict=True):
                averages[name] += part * mask / len(kept)
                own[name] = (part * (1 - mask)).reshape(SHAPES[name])
    return averages


def conserving(rank: int, world_size: int) -> dict[str, Any]:
    """Some parameters are unused by all ranks in some steps, some by one rank."""
    return {name: _conserving(rank, world_size, codec()) for name, codec in CODECS.items()}


def _conserving(rank: int, world_size: int, codec: Any) -> dict[str, Any]:
    given = {name: np.zeros(int(np.prod(shape))) for name, shape in SHAPES.items()}
    applied = {name: np.zeros_like(zero) for name, zero in given.items()}
    kept = []
    with bundled(Given(), codec, find_unused_parameters=True) as (model, handle):
        for step in range(6):
            names = set(SHAPES)
            if step in (1, 2):
                names.discard("b")
            if step == 4 and rank == 0:
                names.discard("c")
            gradients = integers(5, rank, step, sorted(names))
            before = residuals(handle)
            model.zero_grad()
            model(gradients).backward()
            after = residuals(handle)
            if step in (1, 2):
                kept.append(np.array_equal(before["b"], after["b"]))
            for name, each in gradients.items():
                given[name] += each.numpy().ravel()
            for name, average in gradients_of(model.module).items():
                applied[name] += average * world_size
        model.zero_grad()
        model(integers(5, rank, 6)).backward()
        if codec.memory.undoable:
            handle.discard()
        else:
            for name, each in integers(5, rank, 6).items():
                given[name] += each.numpy().ravel()
            for name, average in gradients_of(model.module).items():
                applied[name] += average * world_size
        sent = {name: float(np.abs(each).sum()) for name, each in applied.items()}
        final = residuals(handle)
        return {"given": given, "applied": applied, "final": final, "kept": kept, "sent": sent}


def resuming(rank: int, world_size: int) -> dict[str, Any]:
    """Six steps in one go, and with a checkpoint half-way, which a new model begins from."""
    runs: dict[str, Any] = {
        "topk": (gradwire.topk(RATIO), None, {}),
        "sidco": (gradwire.sidco(RATIO), None, {}),
        "drawn": (gradwire.randomk(RATIO, memory=Residual()), None, {}),
        "leader": (CODECS["leader"](), None, {}),
        "dgc": (gradwire.dgc(RATIO), SGD, {"lr": 0.05, "momentum": 0.9}),
        "adam": (gradwire.adam(RATIO), AdamW, {"lr": 0.01}),
        "warm-up": (gradwire.topk(RATIO), None, {}),
        "two dtypes": (gradwire.topk(RATIO), None, {}),
    }
    return {name: _resuming(rank, name, *run) for name, run in runs.items()}


def _resuming(rank: int, name: str, codec: Any, kind: Any, settings: Any) -> bool:
    def run(steps: range, saved: bytes | None = None) -> tuple[Any, ...]:
        module = network()
        if name == "two dtypes":
            module[5].bfloat16()
            module[5].register_forward_pre_hook(lambda _, given: (given[0].bfloat16(),))
            module[5].register_forward_hook(lambda _, given, result: result.float())
        options: dict[str, Any] = {}
        optimizer = None
        if kind is not None:
            # Two learning rates, which a state cannot have.
            rest = [each for name, each in module.named_parameters() if not name.startswith("3.")]
            groups = [{"params": [*module[3].parameters()], "lr": 0.02}, {"params": rest}]
            options["optimizer"] = optimizer = kind(groups, **settings)
        if name == "warm-up":
            options["schedule"] = BySteps(WarmUp((0.5, 0.2)), steps=2)
        with bundled(module, codec, 0.012, **options) as (model, handle):
            if saved is not None:
                loaded = torch.load(io.BytesIO(saved), weights_only=True)
                module.load_state_dict(loaded["model"])
                handle.load_state_dict(loaded["gradwire"])
                if optimizer is not None:
                    optimizer.load_state_dict(loaded["optimizer"])
            train(model, rank, steps, optimizer=optimizer)
            file = io.BytesIO()
            parts = {"model": module, "gradwire": handle, "optimizer": optimizer}
            kept = {key: each.state_dict() for key, each in parts.items() if each is not None}
            torch.save(kept, file)
            return fingerprint(module), plain(kept["gradwire"]), bundles(handle), file.getvalue()

    whole = run(range(6))
    half = run(range(3))
    rest = run(range(3, 6), half[-1])
    return whole[:3] == rest[:3]


def converting(rank: int, world_size: int, codec: str) -> dict[str, Any]:
    """One run through scopes and buckets of other sizes, by checkpoints alone."""
    given = {name: np.zeros(int(np.prod(shape))) for name, shape in SHAPES.items()}
    applied = {name: np.zeros_like(zero) for name, zero in given.items()}
    ways = [("tensor", 25.0), ("bucket", SMALL_BUCKETS), ("bucket", 25.0), ("tensor", 25.0)]
    saved: Any = None
    final: dict[str, Any] = {}
    same, counts = [], []
    for turn, (scope, cap) in enumerate(ways):
        with bundled(Given(), CODECS[codec](), cap, scope=scope) as (model, handle):
            if saved is not None:
                handle.load_state_dict(saved)
                own = residuals(handle)
                same.append(_same(own, final))
                assert handle.step == 3 * turn
            for step in range(3 * turn, 3 * turn + 3):
                gradients = integers(7, rank, step)
                model.zero_grad()
                model(gradients).backward()
                for name, each in gradients.items():
                    given[name] += each.numpy().ravel()
                for name, average in gradients_of(model.module).items():
                    applied[name] += average * world_size
            saved, final = handle.state_dict(), residuals(handle)
            counts.append([len(each) for each in bundles(handle)])
    return {"given": given, "applied": applied, "final": final, "same": same, "bundles": counts}


def regrouped(rank: int, world_size: int) -> dict[str, Any]:
    """A checkpoint of another number of ranks, by every policy."""
    found: dict[Any, Any] = {}
    with bundled(network(), gradwire.topk(RATIO), 0.03) as (model, handle):
        train(model, rank, range(4))
        own = residuals(handle)
        merged = handle.merged_state_dict()
        every = handle.gathered_state_dict(rank=None)
    for policy in ("sum-and-split", "keep", "drop"):
        with bundled(network(), gradwire.topk(RATIO), 0.03) as (model, handle):
            handle.load_state_dict(merged, policy)
            found[policy] = residuals(handle)
            train(model, rank, range(4, 6))
            found[policy, "fingerprint"] = fingerprint(model)
    with bundled(network(), gradwire.topk(RATIO), 0.03) as (model, handle):
        handle.load_state_dict(every)
        found["gathered"] = _same(own, residuals(handle))
        handle.load_state_dict(handle.state_dict(), "own")
        found["own"] = _same(own, residuals(handle))
    return found | {"before": own}


def _same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return all(np.array_equal(one[name], other[name]) for name in one.keys() | other.keys())


def undoing(rank: int, world_size: int) -> dict[str, Any]:
    """Steps that do not count leave nothing; accumulated gradients count once."""
    found: dict[str, Any] = {}
    codec = gradwire.topk(RATIO)
    with bundled(Given(), codec, SMALL_BUCKETS) as (model, handle):
        for step in range(3):
            model.zero_grad()
            model(integers(9, rank, step)).backward()
        before = plain(handle.state_dict())
        bad = integers(9, rank, 3)
        if rank == 1:
            bad["b"][7, 3] = torch.nan
            bad["b"][9, 0] = torch.inf
        try:
            model(bad).backward()
        except GradientError as error:
            found["error"] = (error.name, error.count, error.first, error.rank)
        found["restored"] = before == plain(handle.state_dict())
        model.zero_grad()
        with model.no_sync():
            model(integers(9, rank, 4)).backward()
        model(integers(9, rank, 5)).backward()
        with handle.paused():
            model(integers(9, rank, 6)).backward()
        found["step"] = handle.step
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    with bundled(network(), codec, 0.03, grad_scaler=scaler) as (model, handle):
        train(model, rank, range(3), scaler=scaler)
        before = plain(handle.state_dict())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        loss = model(torch.ones(2, 32)).sum()
        scaler.scale(loss * (torch.inf if rank == 1 else 1.0)).backward()
        scaler.step(optimizer)
        scaler.update()
        found["skipped"] = before == plain(handle.state_dict())
        train(model, rank, range(3, 5), scaler=scaler)
        found["scaled"] = fingerprint(model)
    module = network()
    adam = AdamW(module.parameters(), lr=0.01)
    with bundled(module, gradwire.adam(RATIO), 0.03, optimizer=adam) as (model, handle):
        train(model, rank, range(3), optimizer=adam)
        before = plain(handle.state_dict())
        model(torch.ones(2, 32)).sum().backward()
        adam.zero_grad()
        found["dropped"] = before == plain(handle.state_dict())
        model(torch.ones(2, 32)).sum().backward()
        module[0].weight.grad = None  # of its bundle, the others are applied
        adam.step()
        adam.zero_grad()
        with model.no_sync():
            model(torch.ones(2, 32)).sum().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        adam.step()
        found["adam"] = fingerprint(model)
    return found


def discarded(rank: int, world_size: int) -> dict[str, list[bool]]:
    """A pass in which a branch is idle on all ranks, discarded and taken again."""
    found: dict[str, list[bool]] = {}

    codecs = {
        "adaptive": gradwire.sidco(RATIO, quantize=Uniform(4, norm="max")),
        "tracking": gradwire.sidco(RATIO, stages="tracking", quantize=Uniform(4, norm="max")),
    }
    for name, codec in codecs.items():
        found[name] = []
        with bundled(Given(), codec, find_unused_parameters=True) as (model, handle):

            def take(step: int, names: Any, model: Any = model) -> list[bytes]:
                model.zero_grad()
                model(integers(19, rank, step, names)).backward()
                return [each.tobytes() for each in gradients_of(model.module).values()]

            for step in range(4):
                take(step, SHAPES)
            for step in range(4, 7):
                before = plain(handle.state_dict())
                first = take(step, ["a", "bias", "c", "scalar"]), plain(handle.state_dict())
                handle.discard()
                found[name].append(before == plain(handle.state_dict()))
                again = take(step, ["a", "bias", "c", "scalar"]), plain(handle.state_dict())
                found[name].append(first == again and first[1] != before)
    return found


def failing_first(rank: int, world_size: int) -> dict[str, Any]:
    """A resumed run whose first pass fails before all ranks have used all bundles."""
    found: dict[str, Any] = {}

    def take(model: Any, step: int) -> list[bytes]:
        model.zero_grad()
        model(integers(21, rank, step)).backward()
        return [each.tobytes() for each in gradients_of(model.module).values()]

    with bundled(Given(), CODECS["leader"](), SMALL_BUCKETS) as (model, handle):
        for step in range(3):
            take(model, step)
        saved = handle.state_dict()
        found["bundles"] = len(bundles(handle))
        whole = [take(model, step) for step in range(3, 6)], plain(handle.state_dict())
    with bundled(Given(), CODECS["leader"](), SMALL_BUCKETS) as (model, handle):
        handle.load_state_dict(saved)
        try:
            model(
                {name: each * torch.nan for name, each in integers(21, rank, 3).items()}
            ).backward()
        except GradientError as error:
            found["error"] = error.name
        rest = [take(model, step) for step in range(3, 6)], plain(handle.state_dict())
    found["same"] = whole == rest
    return found


def arranging(rank: int, world_size: int) -> dict[str, Any]:
    """After two good steps rank 1 cannot copy a bucket that has gaps: what each sees and keeps."""
    found: dict[str, Any] = {}

    def trouble(*arguments: Any) -> Any:
        raise MemoryError("no memory for a copy")

    places = [each.buckets.Bucket for each in (cpu, cuda)]
    for name in ("topk", "one buffer", "leader", "drawn"):
        with bundled(Given(), CODECS[name]()) as (model, handle):
            for step in range(2):
                model.zero_grad()
                model(integers(25, rank, step)).backward()
            before = plain(handle.state_dict())
            with contextlib.ExitStack() as stack:
                for place in places if rank == 1 else ():
                    stack.enter_context(mock.patch.object(place, "arranged", trouble))
                try:
                    model(integers(25, rank, 2)).backward()
                    said = ""
                except ExchangeError as error:
                    said = str(error)
            found[name] = said, before == plain(handle.state_dict())
    return found


def kinds(rank: int, world_size: int) -> dict[str, Any]:
    """Only parameters of one codec go together, with Adam of one rate and number of gradients."""
    found: dict[str, Any] = {}
    codecs = {"b": None, "a": gradwire.topk(0.1), "*": gradwire.topk(0.2)}
    with bundled(Given(), codecs, **ALL) as (model, handle):
        model(integers(11, rank, 0)).backward()
        found["by name"] = sorted(map(sorted, bundles(handle)))
    module = Given()
    rest = [module.b, module.c, module.bias, module.scalar]
    groups: list[dict[str, Any]] = [{"params": [module.a], "lr": 0.1}, {"params": rest}]
    adam = AdamW(groups, lr=0.01)
    options: dict[str, Any] = {"optimizer": adam, "find_unused_parameters": True}
    with bundled(module, gradwire.adam(RATIO), **options) as (model, handle):
        for step, names in enumerate([SHAPES, SHAPES, {"a", "c"}, SHAPES, SHAPES]):
            adam.zero_grad()
            model(integers(13, rank, step, sorted(names))).backward()
            adam.step()
            found[f"adam {step}"] = sorted(map(sorted, bundles(handle)))
            if step == 3:
                adam.param_groups[0]["lr"] = 0.01
        found["fingerprint"] = fingerprint(model)
    schedule = BySteps(DenseWarmUp(1), steps=2)
    with bundled(Given(), gradwire.topk(RATIO), schedule=schedule) as (model, handle):
        for step in range(4):
            model.zero_grad()
            model(integers(15, rank, step)).backward()
            found[f"warm-up {step}"] = len(bundles(handle))
    return found


def refusals(rank: int, world_size: int) -> dict[str, str]:
    """What cannot be meant, and a checkpoint that is damaged."""
    found = {}
    given: dict[str, Any] = {
        "factors": (gradwire.powersgd(2), "bucket"),
        "owners": (
            gradwire.Codec(
                sparsify=gradwire.sparsify.TopK(ratio=RATIO),
                memory=Residual(),
                exchange=ReduceScatter(),
            ),
            "bucket",
        ),
        "mistyped": (gradwire.topk(RATIO), "layer"),
        "ranks": (gradwire.topk(RATIO), "bucket" if rank else "tensor"),
    }
    for name, (codec, scope) in given.items():
        try:
            gradwire.torch.ddp.attach(DistributedDataParallel(network()), codec, scope=scope)
        except ValueError as error:
            found[name] = str(error)
    with bundled(network(), gradwire.sidco(RATIO)) as (model, handle):
        train(model, rank, range(2))
        saved = handle.state_dict()
        (one,) = about(saved)["bundles"]
        damaged: dict[str, Any] = {
            "stranger": [{**one, "bucket": [*one["bucket"], "0.wait"]}],
            "twice": [one, one],
            "scalars": [{**one, "scalars": {"controller.stages": -1.0}}],
            "sizes": [{**one, "sizes": [1]}],
            "kind": {"0": one},
        }
        for name, each in damaged.items():
            try:
                handle.load_state_dict(changed(saved, bundles=each))
            except ValueError as error:
                found[name] = str(error)
        assert plain(handle.state_dict()) == plain(saved)
        train(model, rank, range(2, 4))
        found["fingerprint"] = fingerprint(model)
    return found


def scales(rank: int, world_size: int) -> dict[str, int]:
    """How many entries of a parameter are sent whose gradients are a thousandth of the others'."""
    found = {}
    for scope in ("tensor", "bucket"):
        gradients = integers(17, rank, 0)
        gradients["b"] /= 1024
        with bundled(Given(), gradwire.topk(RATIO), scope=scope) as (model, _):
            model(gradients).backward()
            found[scope] = int(np.count_nonzero(gradients_of(model.module)["b"]))
    return found


def inside_nodes(rank: int, world_size: int) -> dict[str, Any]:
    """Four ranks as two nodes of two: DDP with a hierarchy, and FSDP."""
    given = {name: np.zeros(int(np.prod(shape))) for name, shape in hierarchy.SHAPES.items()}
    applied = {name: np.zeros_like(zero) for name, zero in given.items()}
    codec = gradwire.topk(RATIO)
    options = {"hierarchy": 2, "min_numel": 64}
    with bundled(hierarchy.Odd(), codec, SMALL_BUCKETS, **options) as (model, handle):
        for step in range(4):
            model.zero_grad()
            model(hierarchy.integers(rank, step)).backward()
            for name, average in gradients_of(model.module).items():
                applied[name] += 2 * average
            for each in range(world_size):
                for name, values in hierarchy.integers(each, step).items():
                    given[name] += values.double().numpy().ravel() / 2
        left = hierarchy.joined(handle).values()
        kept = {name: sum(node.get(name, 0.0) for node in left) for name in given}
        pairs = [(applied[name] + kept[name], given[name]) for name in given]
        found: dict[str, Any] = {
            "conserved": all(np.allclose(one, other) for one, other in pairs),
            "sent": float(np.abs(applied["a"]).sum()),
            "bundles": len(bundles(handle)),
        }
    saved: dict[str, Any] = {}
    both = sharded.mesh()
    ends = []
    for turns in ([range(6)], [range(3), range(3, 6)]):
        model = sharded.sharded(both["shard"])
        handle = sharded.attached(model, gradwire.topk(RATIO), both, scope="bucket")
        for steps in turns:
            if steps.start:
                handle.detach()
                handle = sharded.attached(model, gradwire.topk(RATIO), both, scope="bucket")
                handle.load_state_dict(saved)
            sharded.steps(model, rank, steps)
            saved = handle.state_dict()
        found["alike"] = sharded.alike(model)
        found["members"] = bundles(handle)
        ends.append(
            (plain(saved), {name: each.sum() for name, each in sharded.full(model).items()})
        )
        handle.detach()
    return found | {"resumed": ends[0] == ends[1]}
