"""`gradwire.torch.horovod.DistributedOptimizer` trains as Horovod's own, and compresses."""

import contextlib
import io
import warnings
from datetime import timedelta

import pytest
import torch
from torch import nn
from torch.optim import SGD, AdamW

import gradwire
from gradwire.schedule import WarmUp
from tests.distributed.ranks import LazyModule, alike, on, together
from tests.distributed.scenarios.common import (
    Given,
    batch,
    bits,
    fingerprint,
    gradients_of,
    integers,
    network,
    plain,
    residuals,
)

parts = LazyModule("tests.horovod.run")
guides = LazyModule("tests.docs.guides")
DENSE = gradwire.topk(ratio=1.0)
SPARSE = gradwire.topk(ratio=0.05)
ADAM = gradwire.adam(ratio=0.05)


def cases():
    return {
        "plain": {},
        "groups": {"groups": 3},
        "passes": {"backward_passes_per_step": 2},
        "sum": {"op": parts.hvd.Sum},
    }


CASES = ("plain", "groups", "passes", "sum")


def largest(size):
    """Two numbers have one sum; Horovod multiplies that of three by a rounded third."""
    return 0.0 if size == 2 else 2e-6


@pytest.mark.parametrize("name", CASES)
@on("ranks")
def test_all_sent_it_is_horovods_own_optimizer(rank, size, name):
    wrap = cases()[name]
    own, run = (
        parts.Run(codec, momentum=0.9, weight_decay=0.01, wrap=wrap).train(
            rank, range(3), wrap.get("backward_passes_per_step", 1)
        )
        for codec in (None, DENSE)
    )
    if name == "groups":
        assert run.handle.metrics()["collectives"] == 3 * 3
    run.end()
    assert parts.apart(run, own) <= largest(size)


@on("ranks")
def test_all_sent_it_is_horovods_own_adamw(rank, size):
    own, run = (parts.Run(codec, AdamW, lr=1e-3).train(rank, range(5)) for codec in (None, DENSE))
    assert isinstance(run.optimizer, AdamW)
    run.end()
    assert parts.apart(run, own) <= largest(size)


@pytest.mark.parametrize("name", CASES)
@on("ranks")
def test_averages_without_the_codec_are_horovods_own_bit_for_bit(rank, name):
    """Of gradients whose sums are exact in any order."""
    wrap, found = cases()[name], []
    for codec in (None, SPARSE):
        model = Given({"a": torch.float64, "b": torch.float16})
        run = parts.Run(codec, model=model, lr=0.0, wrap=wrap)
        averages = []
        with run.handle.paused() if codec else contextlib.nullcontext():
            for step in range(5):
                run.optimizer.zero_grad()
                for each in range(wrap.get("backward_passes_per_step", 1)):
                    run.model(integers(5, rank, 10 * each + step)).backward()
                with run.averaged():
                    averages += [each.tobytes() for each in gradients_of(run.model).values()]
        run.end()
        found.append(averages)
    assert len(set(found[0])) > 1
    assert found[0] == found[1]


@on("ranks")
def test_what_stays_dense_in_one_group_trains_bit_for_bit_as_with_horovods_own(rank):
    # Horovod adds up three numbers in an order that follows from their place among those that were
    # ready at the same time. In one group that is the same.
    run, own = (parts.Run(each, wrap={"groups": 1}) for each in (SPARSE, None))
    with run.handle.paused():
        run.train(rank, range(8))
    own.train(rank, range(8))
    run.end()
    assert parts.apart(run, own) == 0.0


BFLOAT16 = gradwire.Codec(
    sparsify=gradwire.sparsify.All(),
    quantize=gradwire.quantize.BFloat16(),
    exchange=gradwire.exchange.AllReduce(),
)
LOW_MEMORY = gradwire.Codec(
    sparsify=gradwire.sparsify.TopK(ratio=0.05), memory=gradwire.memory.Residual(low_memory=True)
)


@pytest.mark.parametrize(
    ("codec", "kind", "options"),
    [
        pytest.param(SPARSE, SGD, {}, id="topk"),
        pytest.param(ADAM, AdamW, {"lr": 1e-3}, id="adam"),
        pytest.param(gradwire.dgc(ratio=0.05), SGD, {"momentum": 0.9}, id="dgc"),
        pytest.param(gradwire.scalecom(ratio=0.05), SGD, {}, id="leader"),
        pytest.param(gradwire.randomk(ratio=0.05), SGD, {}, id="shared"),
        pytest.param(BFLOAT16, SGD, {}, id="bfloat16"),
        pytest.param(LOW_MEMORY, SGD, {}, id="low memory"),
    ],
)
@on("ranks")
def test_replicas_stay_bit_identical_with_every_exchange(rank, codec, kind, options):
    run = parts.Run(codec, kind, wrap={"groups": 2}, **options).train(rank, range(6))
    report = run.handle.report()
    assert (report.steps, report.carried_by, run.handle.step) == (6, "horovod", 6)
    alike(run.end())


@on("ranks")
def test_every_dtype_and_sparse_gradients_are_taken(rank, size):
    bf16 = parts.Run(SPARSE, model=network().bfloat16())
    parts.gh.broadcast_parameters(bf16.model.state_dict(), 0)
    for step in range(3):
        bf16.optimizer.zero_grad()
        inputs, targets = (each.bfloat16() for each in batch(rank, step))
        nn.functional.mse_loss(bf16.model(inputs), targets).backward()
        bf16.optimizer.step()
    alike(bf16.end())

    kinds = {"a": torch.float64, "b": torch.float16, "bias": torch.bfloat16}
    mixed = parts.Run(DENSE, model=Given(kinds), lr=1.0)
    mixed.given(integers(1, rank, 0))
    every = [integers(1, each, 0) for each in range(size)]
    for name, each in mixed.model.named_parameters():
        mean = sum(one[name].double() for one in every) / size
        torch.testing.assert_close(-each.detach().double(), mean, rtol=1e-2, atol=1e-2)
    alike(mixed.end())

    def embedding():
        torch.manual_seed(3)
        return nn.Embedding(100, 20, sparse=True)

    for dense in (False, True):
        own, horovods = [
            parts.Run(codec, model=embedding(), lr=0.1, wrap={"sparse_as_dense": dense})
            for codec in (DENSE, None)
        ]
        for run in (own, horovods):
            for step in range(3):
                run.optimizer.zero_grad()
                picked = torch.tensor([rank, step, 7])
                run.model(picked).square().sum().backward()
                run.optimizer.step()
        torch.testing.assert_close(own.model.weight, horovods.model.weight)
        alike(own.end())


@on("two")
def test_averages_may_be_clipped_and_closures_are_averaged(rank):
    run, horovods = parts.Run(DENSE), parts.Run(None)
    for each in (run, horovods):
        for step in range(3):
            each.optimizer.zero_grad()
            each.backward(rank, step)
            with each.averaged():
                nn.utils.clip_grad_norm_(each.model.parameters(), 0.01)
    assert parts.apart(run, horovods) == 0.0
    run.optimizer.zero_grad(set_to_none=False)
    assert not any(each.grad is None or each.grad.any() for each in run.model.parameters())
    run.backward(rank, 3)
    run.optimizer.synchronize()
    run.optimizer.synchronize()  # nothing is exchanged twice
    run.optimizer.step()
    assert run.handle.step == 4
    said = run.optimizer.step(lambda: run.model(batch(rank, 4)[0]).sum())  # no backward pass in it
    assert torch.is_tensor(said)

    def closure():
        run.optimizer.zero_grad()
        run.backward(rank, 5)
        return 1.5

    assert run.optimizer.step(closure) == 1.5
    alike(run.end())


@on("two")
def test_mistakes_are_told_and_leave_no_trace(rank):
    run = parts.Run(SPARSE)

    def in_flight(match):
        return pytest.raises(parts.gh.UpdateError, match=match)

    run.backward(rank, 0)
    with in_flight(r"synchronize\(\)"):
        run.optimizer.zero_grad()
    with in_flight(r"synchronize\(\)"):
        run.optimizer.load_state_dict(run.optimizer.state_dict())
    with run.optimizer.skip_synchronize(), in_flight(r"synchronize\(\)"):
        run.optimizer.step()
    with in_flight("more than backward_passes_per_step=1 times"):
        run.backward(rank, 0)
    run.optimizer.synchronize()
    run.optimizer.zero_grad()
    with pytest.raises(ValueError, match=r"^add_param_group\(\)"):
        run.optimizer.add_param_group({"params": []})
    with pytest.raises(ValueError, match=r"^backward_passes_per_step"):
        run.optimizer.set_backward_passes_per_step(0)
    run.backward(rank, 0)
    nn.utils.clip_grad_norm_(run.model.parameters(), 0.01)
    with in_flight("was changed while it was being exchanged"):
        run.optimizer.step()
    run.optimizer.zero_grad()
    scaler = torch.amp.GradScaler("cpu")  # of which gradwire was not told
    run.backward(rank, 0, scaler)
    with in_flight(r"call optimizer\.synchronize\(\) before scaler\.unscale_"):
        scaler.step(run.optimizer)
    run.optimizer.synchronize()
    run.optimizer.zero_grad()
    run.optimizer.set_backward_passes_per_step(2)
    run.backward(rank, 0)
    run.optimizer.zero_grad()  # nothing was exchanged so far
    run.train(rank, range(2), passes=2)
    assert run.handle.step == 2
    alike(run.end())


@on("two")
def test_what_is_not_supported_is_refused_by_name(rank):
    gh, hvd = parts.gh, parts.hvd
    model = network()
    named = list(model.named_parameters())
    base, adamw = parts.sgd(model), AdamW(model.parameters())

    def refused(error, match, optimizer=base, names=named, codec=SPARSE, **options):
        with pytest.raises(error, match=match):
            gh.DistributedOptimizer(optimizer, names, codec=codec, **options)

    adam, lbfgs = gradwire.adam(0.01), torch.optim.LBFGS(model.parameters())
    horovods = hvd.DistributedOptimizer(parts.sgd(network()))
    twice = [(named[0][0], each) for _, each in named]
    refused(ValueError, r"^op must be hvd\.Average or hvd\.Sum", op=hvd.Adasum)
    refused(ValueError, r"^op=hvd\.Sum would add up the steps", adamw, codec=adam, op=hvd.Sum)
    refused(TypeError, "gradient_predivide_factor", gradient_predivide_factor=2.0)
    refused(ValueError, "^backward_passes_per_step", backward_passes_per_step=0)
    refused(ValueError, "^groups must be", groups=0)
    refused(ValueError, "^Horovod does not know", process_set=hvd.ProcessSet([0]))
    refused(TypeError, r"takes a torch\.optim\.Optimizer", model)
    refused(TypeError, "^LBFGS decides by this rank's own loss", lbfgs)
    refused(ValueError, r"^hvd\.DistributedOptimizer has wrapped", horovods)
    refused(TypeError, r"gradwire\.topk", codec=0.01)
    refused(ValueError, "^named_parameters= lacks 1 parameters", names=named[1:])
    refused(ValueError, "^named_parameters= lacks 7 parameters", names=twice)
    refused(ValueError, r"use torch\.optim\.AdamW", codec=adam)
    refused(TypeError, r"^timeout= must be a datetime\.timedelta.*got 30 \(int\)", timeout=30)
    refused(ValueError, "^timeout= must be positive", timeout=timedelta())
    scaler = torch.amp.GradScaler
    refused(TypeError, r"^grad_scaler= takes a torch\.amp\.GradScaler", grad_scaler=scaler)
    refused(TypeError, "^min_numel must be an integer, got '1k'", min_numel="1k")
    differ = "^rank 1 and rank 0 attached with different groups"
    refused(ValueError, differ, groups=1 + rank)
    first = gh.DistributedOptimizer(base, named, codec=SPARSE)
    for each in (first, base):
        refused(ValueError, "^this optimizer is already distributed", each)
    refused(ValueError, r"^'0\.weight' belongs to another distributed optimizer", parts.sgd(model))
    both = "^this optimizer is a copy, or gradwire has distributed it already"
    with pytest.raises(ValueError, match=both):
        hvd.DistributedOptimizer(first, named)
    first.handle.detach()
    other = gh.DistributedOptimizer(parts.sgd(model), named, codec=SPARSE)
    del other  # nobody has it any more: that is enough
    second = gh.DistributedOptimizer(first, named, codec=DENSE)
    names = [each.__name__ for each in type(second).__mro__]
    assert names.count("Distributed") == 1
    second.handle.detach()


@on("ranks")
def test_a_gradient_that_is_not_finite_leaves_no_trace_on_any_rank(rank, size):
    """Of the last rank: with a scaler, beside a run without, and alone."""
    bad, last = rank == size - 1, f"on rank {size - 1}"
    runs = []
    for steps in ((0, 1, 2, 3), (0, 1, 99, 2, 3)):
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        run = parts.Run(SPARSE, wrap={"grad_scaler": scaler, "groups": 3})
        for step in steps:
            run.optimizer.zero_grad()
            run.backward(rank, step, scaler, float("inf") if bad and step == 99 else 1.0)
            run.optimizer.synchronize()
            with run.optimizer.skip_synchronize():
                scaler.step(run.optimizer)
            scaler.update()
        assert (scaler.get_scale(), run.handle.step) == (1024.0 if len(steps) == 4 else 512.0, 4)
        runs.append(run)
    assert parts.apart(*runs) == 0.0
    assert last in str(run.handle.error)
    run.optimizer.zero_grad()
    run.backward(rank, 4, scaler)
    with pytest.raises(parts.gh.UpdateError, match=r"optimizer\.synchronize\(\) before scaler"):
        scaler.step(run.optimizer)
    for each in runs:
        each.end()

    clean, run = parts.Run(SPARSE), parts.Run(SPARSE)
    clean.train(rank, range(4))
    run.train(rank, range(2))
    before = plain(run.handle.state_dict())
    run.optimizer.zero_grad()
    run.backward(rank, 99, factor=float("nan") if bad else 1.0)
    with pytest.raises(parts.gh.GradientError, match=last):
        run.optimizer.step()
    assert plain(run.handle.state_dict()) == before
    run.train(rank, range(2, 4))
    assert clean.end() == run.end()


@on("ranks")
def test_parameters_may_be_unused_or_frozen_or_ready_in_any_order(rank, size):
    model = Given()
    run = parts.Run(SPARSE, model=model, wrap={"groups": len(list(model.parameters()))}, lr=1.0)
    names = ["a", "b", "c"]
    for step in range(3):
        run.optimizer.zero_grad()
        given = integers(0, rank, step)
        # One after another, each rank in another order; and the last rank has none for "c".
        order = names[rank % 3 :] + names[: rank % 3]
        for name in order:
            if (name, rank) != ("c", size - 1):
                run.model({name: given[name]}).backward()
        run.optimizer.step()
    assert not gradients_of(run.model)["bias"].any()
    before = residuals(run.handle)
    run.given({"a": integers(0, rank, 3)["a"]})
    now = residuals(run.handle)
    same = {name: bool((before[name] == now[name]).all()) for name in names}
    assert same == {"a": False, "b": True, "c": True}
    run.model.b.requires_grad_(False)
    run.given({"a": integers(0, rank, 4)["a"]})
    assert run.model.b.grad is None
    run.model.b.requires_grad_(True)
    run.given(integers(0, rank, 5))
    alike(run.end())


@on("three")
def test_a_process_set_trains_by_itself(rank):
    """On ranks 1 and 2 alone; the other one trains by itself."""
    members = parts.hvd.add_process_set([1, 2])
    try:
        dense, own, sparse = (
            parts.Run(each, wrap={"process_set": members}).train(rank, range(3))
            for each in (DENSE, None, SPARSE)
        )
        if rank == 0:
            assert dense.handle is None
        else:
            assert (dense.handle.world_size, parts.apart(dense, own)) == (2, 0.0)
        outside, one, other = together([each.end() for each in (dense, own, sparse)])
    finally:
        parts.hvd.remove_process_set(members)
    assert one[2] == other[2] != outside[2]


@on("two")
def test_schedulers_and_broadcasts_go_on_as_with_horovods_own(rank):
    runs = []
    for codec in (None, DENSE):
        model = network()
        early = SGD(model.parameters(), lr=0.1, momentum=0.9)
        torch.optim.lr_scheduler.LambdaLR(early, lambda _: 1.0)  # before it is distributed
        run = parts.Run(codec, lambda _, given=early, **__: given, model=model)
        late = torch.optim.lr_scheduler.StepLR(run.optimizer, 2, gamma=0.5)
        for step in range(5):
            run.train(rank, range(step, step + 1))
            late.step()
        runs.append(run)
    own, run = runs
    assert run.optimizer.param_groups[0]["lr"] == own.optimizer.param_groups[0]["lr"] < 0.1
    assert parts.apart(own, run) == 0.0

    # A state that rank 0 has loaded, and the others get from it.
    other = parts.Run(DENSE, momentum=0.9, model=network(rank))
    if rank == 0:
        other.optimizer.load_state_dict(run.optimizer.state_dict())
    parts.hvd.broadcast_parameters(other.model.state_dict(), 0)
    parts.gh.broadcast_optimizer_state(other.optimizer, 0)
    (state, *_) = other.optimizer.state.values()
    alike(bits(state["momentum_buffer"]))
    for fresh in (parts.Run(SPARSE, momentum=0.9), parts.Run(parts.SUITED, AdamW)):
        parts.hvd.broadcast_optimizer_state(fresh.optimizer, 0)
        parts.gh.broadcast_optimizer_state(fresh.optimizer, 0)
        alike(fresh.train(rank, range(2)).end())
    alike(other.train(rank, range(2)).end())
    run.end()


@on("two")
def test_adamw_with_a_scheduler_from_before_resumes_bit_for_bit(rank):
    def begin():
        """Return all that is saved and resumed."""
        model = network()
        base = AdamW(model.parameters(), lr=1e-2)
        scheduler = torch.optim.lr_scheduler.OneCycleLR(base, max_lr=1e-2, total_steps=20)
        run = parts.Run(parts.SUITED, lambda _, **__: base, model=model)
        saved = {"model": run.model, "optimizer": run.optimizer, "handle": run.handle}
        return run, saved | {"scheduler": scheduler}

    def train(run, saved, steps):
        for step in steps:
            run.train(rank, range(step, step + 1))
            saved["scheduler"].step()

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", ".*weights_only")
        run, saved = begin()
        train(run, saved, range(4))
        file = io.BytesIO()
        torch.save({name: each.state_dict() for name, each in saved.items()}, file)
        train(run, saved, range(4, 8))
        file.seek(0)
        loaded = torch.load(file, weights_only=True)
        other, saved = begin()
        for name, each in saved.items():
            each.load_state_dict(loaded[name])
        train(other, saved, range(4, 8))
    assert plain(run.handle.state_dict()) == plain(other.handle.state_dict())
    assert alike(run.end()) == other.end()


@on("ranks")
def test_the_handle_saves_resumes_pauses_discards_and_lets_go(rank, size):
    def run_of(steps, model=None):
        wrap = {"schedule": WarmUp((0.25, 0.1)), "groups": 2}
        return parts.Run(SPARSE, model=model, wrap=wrap).train(rank, steps)

    run = run_of(range(3))
    saved, weights = run.handle.state_dict(), io.BytesIO()
    torch.save(run.model.state_dict(), weights)
    weights.seek(0)
    gathered = run.handle.gathered_state_dict(None)
    assert sorted(gathered) == [f"rank{each}" for each in range(size)]
    resumed = run_of(())
    resumed.model.load_state_dict(torch.load(weights, weights_only=True))
    resumed.handle.load_state_dict(saved)
    for each in (run, resumed):
        each.handle.epoch(1)
        each.train(rank, range(3, 6))
    assert fingerprint(resumed.model) == fingerprint(run.model)
    before = plain(run.handle.state_dict())
    assert plain(resumed.handle.state_dict()) == before
    resumed.end()

    run.optimizer.zero_grad()
    run.backward(rank, 6)
    run.optimizer.synchronize()
    run.handle.discard()
    assert plain(run.handle.state_dict()) == before
    run.optimizer.zero_grad()
    dense = parts.Run(None)
    dense.model.load_state_dict(run.model.state_dict())
    with run.handle.paused():
        run.train(rank, range(6, 8))
    dense.train(rank, range(6, 8))
    assert parts.apart(run, dense) < 1e-6
    assert plain(run.handle.state_dict()) == before

    # A pass that is thrown away, which the next one undoes.
    run.backward(rank, 8)
    run.optimizer.synchronize()
    run.optimizer.zero_grad()
    run.backward(rank, 9)
    run.optimizer.step()
    assert run.handle.step == 7
    run.handle.detach()
    dense.model.load_state_dict(run.model.state_dict())
    for each in (run, dense):
        each.train(rank, range(10, 12))
    assert parts.apart(run, dense) < 1e-6


@on("ranks")
def test_an_elastic_state_returns_to_its_commit_and_divides_residuals(rank, size):
    """As after an error of Horovod."""
    run = parts.Run(parts.SUITED, AdamW).train(rank, range(3))
    state = parts.gh.ElasticState(model=run.model, optimizer=run.optimizer, at=3)
    state.commit()
    before, prints = residuals(run.handle), fingerprint(run.model)
    run.train(rank, range(3, 5))
    state.at = 5
    state.restore()
    assert (state.at, fingerprint(run.model)) == (3, prints)
    with pytest.raises(ValueError, match=r"ElasticState, whose sync\(\) attaches it"):
        run.optimizer.step()
    state.sync()
    run.handle = run.optimizer.handle
    assert (run.handle.step, run.handle.attached) == (3, True)
    for name, mine in residuals(run.handle).items():
        total = sum(torch.from_numpy(each).double() for each in together(before[name]))
        torch.testing.assert_close(torch.from_numpy(mine).double(), total / size)
    alike(run.train(rank, range(3, 5)).end())


@on("two")
def test_the_blocks_of_the_page_run_and_leave_equal_models(rank):
    """Under horovodrun, as a reader would type them."""
    warnings.simplefilter("error", parts.gh.PairingWarning)
    prints = []

    def note(names):
        if "optimizer" in names:
            prints.append(alike(fingerprint(names["model"])))

    guides.execute("horovod", note)["optimizer"].handle.detach()
    assert len(prints) == sum(1 for _ in guides.blocks("horovod")) - 1 == 2


@on("two")
def test_two_optimizers_of_one_model_are_distributed_each_for_itself(rank):
    """Each with its codec, its handle and its part: as the parts do alone."""
    model, alone = network(), network()
    prints = []
    for trained, turned in ((model, False), (alone, True)):
        made = []
        for part, kind in ((trained[0], AdamW), (trained[3:], SGD)):
            named = list(trained.named_parameters())
            given = kind(part.parameters(), lr=0.01)
            made.append(parts.gh.DistributedOptimizer(given, named, min_numel=64))
        for step in range(4):
            inputs, targets = batch(rank, step)
            for each in made:
                each.zero_grad()
            nn.functional.mse_loss(trained(inputs), targets).backward()
            for each in reversed(made) if turned else made:
                each.step()
        assert [each.handle.step for each in made] == [4, 4]
        for each in made:
            each.handle.detach()
        prints.append(alike(fingerprint(trained)))
    assert prints[0] == prints[1], "in either order"
