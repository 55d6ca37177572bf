"""FSDP2 inside two nodes of two ranks, compressed between the nodes."""

import re
import warnings

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.nn.functional import cross_entropy, mse_loss
from torch.optim import SGD, AdamW

import gradwire
import gradwire.torch
import gradwire.torch.ddp
from gradwire.memory import Residual
from gradwire.schedule import Accordion
from gradwire.torch.ddp import GradientError, PairingWarning, UpdateError
from tests.distributed.ranks import LazyModule, alike, on
from tests.distributed.scenarios.common import about, batch, network, plain

dcp = LazyModule("torch.distributed.checkpoint")
fsdp = LazyModule("torch.distributed.fsdp")

TOPK = gradwire.topk(ratio=0.1)
ALL = gradwire.topk(ratio=1.0)
REDUCED = {"bf16": torch.bfloat16, "f16": torch.float16}


def mesh():
    """Two nodes of two ranks."""
    return init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))


def layers(seed=0):
    """A small network with rows that cannot be halved."""
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(32, 97), nn.LayerNorm(97), nn.GELU(), nn.Linear(97, 64), nn.Linear(64, 16)
    )


def sharded(over, seed=0, reduced=None):
    """The network as three FSDP modules, whose gradients are added up in this dtype."""
    model = layers(seed)
    policy = fsdp.MixedPrecisionPolicy(reduced and torch.float32, reduced)
    for each in (model[0], model[3], model):
        fsdp.fully_shard(each, mesh=over, mp_policy=policy)
    return model


def attached(model, codec, both, **options):
    """Attach without a warning of a missing optimizer."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PairingWarning)
        options = {"mesh": both["replicate"], "min_numel": 64, **options}
        return gradwire.torch.fsdp.attach(model, codec, **options)


def steps(model, rank, count, optimizer=None):
    """Train with plain SGD, or as the optimizer does."""
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.05)
    for step in count:
        inputs, targets = batch(rank, step)
        optimizer.zero_grad()
        mse_loss(model(inputs), targets).backward()
        optimizer.step()


def full(model):
    """All parameters, whole."""
    return {name: each.full_tensor().detach() for name, each in model.named_parameters()}


def distance(one, other):
    """The largest difference of a parameter."""
    a, b = full(one), full(other)
    return max(float((a[name] - b[name]).abs().max()) for name in a)


def replica(model):
    """The bits of all parameters, which all ranks have to have."""
    return alike({name: each.numpy().tobytes() for name, each in full(model).items()})


def left(handle):
    """The bits of the residuals of this rank's shards."""
    (saved,) = handle.state_dict().values()
    return {name: each.numpy().tobytes() for name, each in saved["residual"].items()}


def sums(model, factor=None):
    """Have FSDP add up instead of averaging, which Gloo needs for a factor of the caller."""
    for module in model.modules():
        if isinstance(module, fsdp.FSDPModule):
            module.set_force_sum_reduction_for_comms(True)
            if factor is not None:
                module.set_gradient_divide_factor(factor)


@pytest.mark.parametrize("how", ["plain", *REDUCED, "factor", "sums"])
@on("four")
def test_what_sends_everything_trains_as_hybrid_sharding_of_torch(rank, how):
    both = mesh()
    pair = [sharded(over, reduced=REDUCED.get(how)) for over in (both, both["shard"])]
    for each in pair if how in ("factor", "sums") else ():
        sums(each, 8.0 if how == "factor" else None)
    steps(pair[0], rank, range(4))
    with attached(pair[1], ALL, both):
        steps(pair[1], rank, range(4))
    # torch sums replicas in 16 bits, this in the parameters' 32.
    assert distance(*pair) <= {"bf16": 1e-4, "f16": 1e-5}.get(how, 0.0)


def bound(rank):
    """Train while ranks are bound to devices, as by ``init_process_group(device_id=)``."""
    both, world = mesh(), dist.group.WORLD
    model = sharded(both["shard"])
    world.bound_device_id = torch.device("cpu", 0)
    try:
        with attached(model, gradwire.topk(ratio=0.05), both) as handle:
            steps(model, rank, range(4))
            return handle.report().carried_by, left(handle), replica(model)
    finally:
        world.bound_device_id = None


def test_frames_of_ranks_that_are_bound_to_devices_stay_there(kept):
    expected, found = (kept(4, backend).run(bound) for backend in ("cpu", "carried"))
    for (by, *one), (carried_by, *other) in zip(expected, found, strict=True):
        assert (by, carried_by) == ("gloo", "carrier")
        assert one == other


@pytest.mark.parametrize(
    "codec",
    [
        gradwire.topk(0.05),
        gradwire.topk(0.05, memory=Residual(low_memory=True)),
        gradwire.randomk(0.05),
        gradwire.scalecom(0.05),
    ],
    ids=["topk", "low-memory", "randomk", "scalecom"],
)
@on("four")
def test_replicas_are_alike_by_every_exchange(rank, codec):
    both = mesh()
    model = sharded(both["shard"])
    with attached(model, codec, both):
        steps(model, rank, range(5))
        replica(model)


@on("four")
def test_paused_passes_and_those_after_detaching_are_those_of_torch(rank):
    both = mesh()
    reference, model = sharded(both), sharded(both["shard"])
    handle = attached(model, TOPK, both)
    with handle.paused():
        steps(model, rank, range(2))
    handle.detach()
    steps(model, rank, range(2, 3))
    steps(reference, rank, range(3))
    assert distance(reference, model) == 0.0


@pytest.mark.parametrize(("how", "made"), [("gradient", 2), ("all-reduce", 2), ("each", 6)])
@on("four")
def test_accumulated_gradients_are_exchanged_once(rank, how, made):
    both = mesh()

    def train(model):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for step in range(2):
            optimizer.zero_grad()
            for part in range(3):
                last = part == 2
                if how == "gradient":
                    model.set_requires_gradient_sync(last)
                elif how == "all-reduce":
                    model.set_requires_all_reduce(last)
                model.set_is_last_backward(last)
                inputs, targets = batch(rank, 3 * step + part)
                (mse_loss(model(inputs), targets) / 3).backward()
            optimizer.step()

    reference, model = sharded(both), sharded(both["shard"])
    train(reference)
    with attached(model, ALL, both) as handle:
        train(model)
        assert distance(reference, model) < 1e-7
        assert handle.step == made


@on("four")
def test_a_loss_that_is_not_finite_on_one_rank_leaves_no_trace_on_any(rank):
    both = mesh()
    model = sharded(both["shard"])
    with attached(model, TOPK, both) as handle:
        steps(model, rank, range(2))
        before = left(handle)
        inputs, targets = batch(rank, 2)
        if rank == 3:
            inputs[0, 0] = torch.inf
        model.zero_grad()
        with pytest.raises(GradientError) as caught:
            mse_loss(model(inputs), targets).backward()
        assert caught.value.name is not None
        assert caught.value.count > 0
        assert caught.value.rank == 2, "of the second node, a rank whose shard shows it"
        assert before == left(handle)
        model.zero_grad()
        steps(model, rank, range(3, 5))
        assert handle.step == 4
        replica(model)


@on("four")
def test_a_loss_scaler_skips_a_step_on_all_ranks(rank):
    both = mesh()
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    model = sharded(both["shard"])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with attached(model, TOPK, both, grad_scaler=scaler) as handle:
        for step in range(4):
            inputs, targets = batch(rank, step)
            optimizer.zero_grad()
            loss = mse_loss(model(inputs), targets)
            scaler.scale(loss * torch.inf if step == 2 and rank == 1 else loss).backward()
            scaler.step(optimizer)
            scaler.update()
        assert (scaler.get_scale(), handle.step) == (32.0, 3)
        replica(model)


class Interrupted(Exception):
    """Raised in the middle of a backward pass."""


@on("four")
def test_an_exception_in_a_backward_pass_leaves_no_trace(rank):
    both = mesh()
    model = sharded(both["shard"])

    def stop(*_):
        raise Interrupted

    def watch(module, given, output):
        output.register_hook(stop)

    with attached(model, TOPK, both) as handle:
        steps(model, rank, range(2))
        before = left(handle)
        inputs, targets = batch(rank, 2)
        hook = model[2].register_forward_hook(watch)
        model.zero_grad()
        with pytest.raises(Interrupted):
            mse_loss(model(inputs), targets).backward()
        hook.remove()
        model.reset_iter_state()  # what FSDP asks for
        assert before == left(handle)
        assert handle.step == 2
        steps(model, rank, range(3, 5))
        assert handle.step == 4
        replica(model)


@on("four")
def test_resume_through_dcp_is_bit_for_bit_and_ddp_takes_over(rank, tmp_path):
    """Train 7 warm steps; or 4, save through DCP, start again, and 3. Then with other nodes."""
    from torch.distributed.checkpoint import state_dict

    both = mesh()

    def make(seed=0):
        model = sharded(both["shard"], seed)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        handle = attached(model, gradwire.adam(ratio=0.01), both, optimizer=optimizer)
        return model, optimizer, handle

    def everything(model, optimizer, handle):
        weights, moments = state_dict.get_state_dict(model, optimizer)
        return {"model": weights, "optimizer": moments, "gradwire": handle}

    model, optimizer, handle = make()
    steps(model, rank, range(4), optimizer)
    dcp.save(everything(model, optimizer, handle), checkpoint_id=tmp_path / "dcp")
    states = handle.gathered_state_dict(None)
    schedule = handle.report().schedule
    assert schedule.endswith("epoch 0: ratio 0.02"), "that of the codec is 0.01"
    steps(model, rank, range(4, 7), optimizer)
    whole = replica(model), plain(handle.state_dict())
    handle.detach()

    model, optimizer, handle = make(seed=3)
    loaded = everything(model, optimizer, handle)
    dcp.load(loaded, checkpoint_id=tmp_path / "dcp")
    state_dict.set_state_dict(
        model,
        optimizer,
        model_state_dict=loaded["model"],
        optim_state_dict=loaded["optimizer"],
        options=state_dict.StateDictOptions(strict=False),
    )
    steps(model, rank, range(4, 7), optimizer)
    assert whole == (replica(model), plain(handle.state_dict()))
    handle.detach()

    # The same run on four nodes of one rank each, in DDP.
    model = nn.parallel.DistributedDataParallel(layers())
    options = {"optimizer": torch.optim.AdamW(model.parameters(), lr=0.01), "min_numel": 64}
    with gradwire.torch.ddp.attach(model, gradwire.adam(ratio=0.01), **options) as other:
        other.load_state_dict(states)
        again = other.gathered_state_dict(None)
    before, after = (
        shares * sum(float(each["residual"]["0.weight"].double().sum()) for each in those.values())
        for shares, those in ((2, states), (1, again))
    )
    assert after == pytest.approx(before, rel=1e-5)


class Scored(nn.Module):
    """Two matrices, one with rows that cannot be halved, whose gradients are what is passed."""

    def __init__(self):
        super().__init__()
        self.a = nn.Parameter(torch.zeros(33, 40))
        self.c = nn.Parameter(torch.zeros(50, 30))

    def forward(self, a, c):
        return (self.a * a).sum() + (self.c * c).sum()


@on("four")
def test_accordion_decides_by_the_shards_of_the_first_node(rank):
    """Five epochs in which `a` becomes critical again; saved within the last, ended by DDP."""
    both, looks = mesh(), []
    codec, schedule = gradwire.topk(ratio=0.05), Accordion(0.5, 0.05, eta=0.5, interval=1)
    critical = [True, True, False, True, False, False]

    def look(handle):
        position = about(handle.state_dict())["schedule"]
        looks.append((position["norms"], position["critical"]))

    model = Scored()
    fsdp.fully_shard(model, mesh=both["shard"])
    with attached(model, codec, both, schedule=schedule) as handle:
        for epoch, factor in enumerate((1.0, 1.0, 3.0, 3.0, 3.0)):
            handle.epoch(epoch)
            look(handle)
            a = torch.ones(33, 40)
            a[17:] *= factor
            # Only the mean of the node counts: that of 0.5 and 1.5; and only the first node.
            own = (0.5, 1.5, 100.0, 100.0)[rank]
            for _ in range(2):
                model.zero_grad()
                model(own * a, own * torch.ones(50, 30)).backward()
            report = handle.report(reset=True)
            (sent,) = (each.bytes_per_step for each in report.parameters if each.name == "a")
            assert (sent > 4 * 300) == critical[epoch]  # half of 640 or 680 entries, or a 20th
            assert sent > 4 * 32
        (mine,) = handle.state_dict().values()
        assert sorted(mine["measured"]) == (["a", "c"] if rank < 2 else [])
        states = handle.gathered_state_dict(None)
        handle.epoch(5)
        look(handle)
    other = nn.parallel.DistributedDataParallel(Scored())
    options = {"min_numel": 64, "schedule": schedule, "hierarchy": 2}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", gradwire.torch.ddp.PairingWarning)
        with gradwire.torch.ddp.attach(other, codec, **options) as then:
            then.load_state_dict(states)
            then.epoch(5)
            look(then)
    norms, decided = zip(*alike(looks), strict=True)
    # The second shard of `a` is three times as large in epoch 2: decided when that has ended.
    one, rest = 17 * 40, 16 * 40
    of_a = [2 * (one + rest * factor**2) ** 0.5 for factor in (1.0, 1.0, 3.0, 3.0, 3.0)]
    assert [each["a"] for each in norms[1:6]] == pytest.approx(of_a, rel=1e-12)
    assert [each["c"] for each in norms[1:6]] == pytest.approx([2 * 1500**0.5] * 5)
    assert [each["a"] for each in decided[:6]] == critical
    assert [each["c"] for each in decided[:6]] == [True, True] + [False] * 4
    # Saved within epoch 4, and ended by DDP with the same nodes: the same norms.
    assert norms[6] == pytest.approx(norms[5], rel=1e-12)
    assert decided[6] == decided[5]


def refuses(model, said, over, codec=TOPK):
    """Attach to what cannot be attached to."""
    with pytest.raises((TypeError, ValueError), match=re.escape(said)):
        gradwire.torch.fsdp.attach(model, codec, mesh=over)


@on("four")
def test_models_whose_shards_are_not_those_of_a_node_are_refused():
    from torch.distributed.fsdp._fully_shard import _fsdp_common as common
    from torch.distributed.tensor import parallel as tensor

    warnings.simplefilter("ignore", PairingWarning)
    both = mesh()

    def two():
        return nn.Sequential(nn.Linear(32, 64), nn.Linear(64, 16))

    twofold = two()
    fsdp.fully_shard(twofold[0], mesh=both["replicate"])
    fsdp.fully_shard(twofold, mesh=both["shard"])
    refuses(twofold, "all FSDP modules must have the same mesh", both)

    several = two()
    other, usual = (
        common.FSDPMeshInfo(both[each], shard_mesh_dim=0) for each in ("replicate", "shard")
    )

    def place(each):
        return common.ShardPlacementResult(None, other if each is several[0].weight else usual)

    fsdp.fully_shard(several, mesh=both["shard"], shard_placement_fn=place)
    refuses(several, "has several parameter groups, which shard_placement_fn", both)

    parallel = two()
    tensor.parallelize_module(parallel, both["replicate"], {"0": tensor.ColwiseParallel()})
    fsdp.fully_shard(parallel, mesh=both["shard"])
    refuses(parallel, "is sharded over 2 dimensions", both)

    with torch.device("meta"):
        empty = two()
    fsdp.fully_shard(empty, mesh=both["shard"])
    refuses(empty, "over 1 dimensions, on meta", both)

    frozen = two().requires_grad_(False)
    fsdp.fully_shard(frozen, mesh=both["shard"])
    refuses(frozen, "has no parameter that FSDP shards and that requires gradients", both)

    model = sharded(both["shard"])
    said = "mesh= must have the dimensions (replicas, shards)"
    refuses(model, said, init_device_mesh("cpu", (2, 2, 1)))
    said = "with the shards over ["
    refuses(model, said, DeviceMesh("cpu", [[0, 2], [1, 3]]))
    gradwire.torch.fsdp.attach(model, TOPK, mesh=both).detach()


@on("four")
def test_a_module_that_is_called_twice_trains_as_in_hybrid_sharding(rank):
    both = mesh()

    def make(over):
        torch.manual_seed(0)
        again, between = nn.Linear(32, 32), nn.Linear(32, 32)
        model = nn.Sequential(nn.Linear(32, 32), again, between, again, nn.Linear(32, 16))
        for each in (again, between, model):
            fsdp.fully_shard(each, mesh=over)
        return model

    reference, model = make(both), make(both["shard"])
    steps(reference, rank, range(2))
    with attached(model, ALL, both):
        steps(model, rank, range(2))
    assert distance(reference, model) == 0.0


@on("four")
def test_passes_whose_averages_come_too_late_are_refused(rank):
    """Each time the next pass can be exchanged."""
    both = mesh()
    inputs, targets = batch(rank, 0)
    model = sharded(both["shard"])
    with attached(model, TOPK, both) as handle:
        steps(model, rank, range(1))
        with pytest.raises(ValueError, match=r"regroup\(\) cannot change the ranks per node"):
            handle.regroup(both["replicate"].get_group())
        hook = model[3].weight.register_post_accumulate_grad_hook(lambda each: None)
        said = r"has a hook from register_post_accumulate_grad_hook\(\)"
        with pytest.raises(ValueError, match=said):
            mse_loss(model(inputs), targets).backward()
        hook.remove()
        model.reset_iter_state()
        steps(model, rank, range(1, 2))
        assert handle.step == 2
    late = sharded(both["shard"])
    late[0].requires_grad_(False)
    with attached(late, TOPK, both):
        late[0].requires_grad_(True)
        with pytest.raises(ValueError, match=r"was frozen at attach\(\)"):
            late(inputs).sum().backward()
        late.reset_iter_state()


@on("four")
def test_what_cannot_be_attached_is_refused_and_said():
    warnings.simplefilter("ignore", PairingWarning)
    both = mesh()
    said = "attach() takes a model on which torch.distributed.fsdp.fully_shard()"
    refuses(network(), said, both)
    refuses(sharded(both), "a two-dimensional mesh", both)
    refuses(sharded(both["shard"]), "this rank must be the only one in both", both["shard"])
    refuses(sharded(both["shard"]), "mesh= takes the DeviceMesh of the replicas", "replicate")
    hooked = sharded(both["shard"])
    hooked.set_all_reduce_hook(lambda output: None)
    refuses(hooked, "already has a hook", both)
    model = sharded(both["shard"])
    with gradwire.torch.fsdp.attach(model, TOPK, mesh=both):
        refuses(model, "already has an attached codec", both)
    with gradwire.torch.fsdp.attach(model, TOPK, mesh=both["replicate"].get_group()):
        model.set_manual_backward_finalization(True)
        said = re.escape("set_manual_backward_finalization(True) is not supported")
        with pytest.raises(ValueError, match=said):
            model(torch.ones(2, 32)).sum().backward()


# Gradients that stay inside the node until the optimizer's step exchanges them ------------------


@pytest.mark.parametrize("how", ["one", "two", "last", "factor", "bf16", "cleared", "paused"])
@on("four")
def test_a_step_exchanges_what_is_reduced_inside_the_node_only(rank, how):
    """At ratio 1, whole steps of passes inside the node, against torch's own HSDP."""
    both = mesh()
    pair = [sharded(over, reduced=REDUCED.get(how)) for over in (both, both["shard"])]
    optimizers = [SGD(each.parameters(), lr=0.05) for each in pair]
    for each in pair if how == "factor" else ():
        sums(each, 8.0)
    with attached(pair[1], ALL, both, optimizer=optimizers[1]) as handle:
        for model, optimizer in zip(pair, optimizers, strict=True):
            held = model is pair[1] or how == "last"
            passes = 1 if how in ("one", "factor", "bf16") else 2
            for at in range(4 * passes):
                last = at % passes == passes - 1
                model.set_requires_all_reduce(not held or (how == "last" and last))
                if at % passes == 0 or how == "cleared":
                    optimizer.zero_grad()
                inputs, targets = batch(rank, 2 * (at // passes) + at % passes)
                loss = mse_loss(model(inputs), targets)
                if how == "paused" and model is pair[1] and last:
                    model.set_requires_all_reduce(True)
                    with handle.paused():
                        loss.backward()
                else:
                    loss.backward()
                if last:
                    optimizer.step()
        assert distance(*pair) < (1e-4 if how == "bf16" else 1e-7)
        assert handle.step == (0 if how == "paused" else 4)


@pytest.mark.full
@on("four")
def test_clipping_is_of_gradients_before_their_exchange_and_told_after_it(rank):
    """Clip to a norm far below the usual one: dense, gradients in the node, and updates."""
    both, losses = mesh(), {}
    torch.manual_seed(5)
    teacher = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 10)).requires_grad_(False)
    for each in teacher.parameters():
        nn.init.normal_(each, std=0.5)

    def sampled(seed, rows):
        inputs = torch.randn(rows, 32, generator=torch.Generator().manual_seed(seed))
        return inputs, teacher(inputs).argmax(dim=1)

    for how in ("dense", "gradients", "updates"):
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Linear(32, 128), nn.GELU(), nn.Linear(128, 128), nn.GELU(), nn.Linear(128, 10)
        )
        for each in (model[0], model[2], model):
            fsdp.fully_shard(each, mesh=both if how == "dense" else both["shard"])
        optimizer = AdamW(model.parameters(), lr=3e-3)
        if how != "dense":
            handle = attached(model, gradwire.adam(ratio=0.05), both, optimizer=optimizer)
        model.set_requires_all_reduce(how != "gradients")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for step in range(150):
                inputs, targets = sampled(1000 * step + rank, 64)
                optimizer.zero_grad()
                (50 * cross_entropy(model(inputs), targets)).backward()
                nn.utils.clip_grad_norm_(model.parameters(), max_norm=0.1)
                optimizer.step()
        replica(model)
        with torch.no_grad():
            inputs, targets = sampled(999_999, 2000)
            losses[how] = float(cross_entropy(model(inputs), targets))
        said = [str(each.message) for each in caught if each.category is PairingWarning]
        assert len(said) == (how == "updates")
        for text in said:
            assert "Clipping gradients there clips updates" in text
            assert "set_requires_all_reduce(False)" in text
        if how != "dense":
            handle.detach()
    assert losses["gradients"] == pytest.approx(alike(losses)["dense"], rel=0.05)
    assert losses["updates"] > 1.5 * losses["dense"]


@on("four")
def test_a_gradient_of_the_node_on_top_of_an_update_is_not_applied(rank):
    both = mesh()
    model = sharded(both["shard"])
    optimizer = AdamW(model.parameters(), lr=3e-3)
    with attached(model, gradwire.adam(ratio=0.05), both, optimizer=optimizer) as handle:
        model.set_requires_all_reduce(False)
        for step in range(4):
            if step != 2:
                optimizer.zero_grad()
            inputs, targets = batch(rank, step)
            mse_loss(model(inputs), targets).backward()
            if step == 2:
                with pytest.raises(UpdateError, match=r"zero_grad\(\) between passes"):
                    optimizer.step()
            else:
                optimizer.step()
        assert handle.step == 3
        replica(model)


@pytest.mark.parametrize("local", [False, True], ids=["backward", "step"])
@on("four")
def test_two_optimizers_train_as_each_alone_does(rank, local):
    """With the other one's parameters frozen: both have the same gradients at the first step."""
    both, states = mesh(), []
    for parts in ((0, 1), (0,), (1,)):
        model = sharded(both["shard"])
        groups = [list(model[0].parameters()), list(model[3].parameters())]
        made = [AdamW(groups[0], lr=0.01), SGD(groups[1], lr=0.05, momentum=0.9)]
        chosen = [made[at] for at in parts]
        rest = {id(each) for group in groups for each in group}
        frozen = [each for each in model.parameters() if id(each) not in rest]
        for each in (*frozen, *(each for at in {0, 1} - set(parts) for each in groups[at])):
            each.requires_grad_(False)
        with attached(model, None, both, optimizer=chosen) as handle:
            model.set_requires_all_reduce(not local)
            inputs, targets = batch(rank, 0)
            mse_loss(model(inputs), targets).backward()
            for each in chosen:
                each.step()
            assert handle.step == 1
            states.append((replica(model), left(handle)))
    for at, name in enumerate(("0.weight", "3.weight")):
        for found, alone in zip(states[0], states[1 + at], strict=True):
            assert found[name] == alone[name]
