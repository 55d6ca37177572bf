"""`gradwire.torch.diloco` over real processes."""

import re
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch.nn.functional import mse_loss

import gradwire
from gradwire.torch import diloco
from gradwire.torch.errors import ExchangeError, TensorError
from tests.deadlines import stretched
from tests.distributed.ranks import alike, on, together
from tests.distributed.scenarios.common import batch, bits, fingerprint, network, plain

WAYS = {
    "diloco": {"inner_steps": 4},
    "streaming": {"inner_steps": 4, "fragments": 2, "delay": 3},
    "fine": {"inner_steps": 4, "fragments": 4, "delay": 3},
    "no momentum": {"inner_steps": 3, "outer_momentum": 0.0, "outer_lr": 1.0},
}


def made(model, way, **options):
    """A small DiLoCo."""
    codec = gradwire.sparseloco(k=16, tile=(16, 16), chunk=256)
    return diloco.DiLoCo(model, codec, min_numel=65, **WAYS[way], **options)


def advance(model, optimizer, rank, steps, outer=None):
    """Inner steps; with a handle that is not hooked to the optimizer, its steps as well."""
    for step in steps:
        inputs, targets = batch(rank, step)
        optimizer.zero_grad()
        mse_loss(model(inputs), targets).backward()
        optimizer.step()
        if outer is not None:
            outer.step()


def kind_of(outer, kind):
    """One kind of tensors in this rank's checkpoint."""
    ((_, saved),) = outer.state_dict().items()
    return saved[kind]


def shared_bits(outer):
    """The bits of the parameters that all ranks share."""
    return [bits(each) for each in kind_of(outer, "shared").values()]


def spoil(model, value):
    """Have an entry of a weight diverge."""
    with torch.no_grad():
        model[0].weight[1, 2] = value


@pytest.mark.parametrize(("way", "rounds"), [("diloco", 3), ("streaming", 5), ("no momentum", 4)])
@on("ranks")
def test_what_is_shared_is_the_same_everywhere(rank, size, way, rounds):
    """What they own is not, between rounds."""
    model = network(seed=rank)  # other parameters on each rank: those of rank 0 count
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    with made(model, way, optimizer=optimizer) as outer:
        alike(fingerprint(model))
        advance(model, optimizer, rank, range(14))
        own = fingerprint(model)
        assert len(set(together(own))) == size
        with outer.shared():
            alike(fingerprint(model))
        assert fingerprint(model) == own
        assert (outer.rounds, outer.inner_step) == (rounds, 14)
        report = outer.report()
    assert report.compression > 2
    assert "bytes sent" in str(report)
    assert '"wire_bytes"' in report.to_json()
    advance(model, optimizer, rank, range(14, 30))  # closed: the optimizer is on its own


@on("two")
def test_it_computes_what_the_paper_says(rank, size):
    """With every entry sent, as with a plain all-reduce."""
    model, other = network(), network()
    inner, inner_other = (torch.optim.SGD(each.parameters(), lr=0.05) for each in (model, other))
    shared = [each.detach().clone() for each in other.parameters()]
    outer_steps = torch.optim.SGD(shared, lr=0.5, momentum=0.9, nesterov=True)
    options = {"inner_steps": 3, "outer_lr": 0.5, "min_numel": 65}
    with diloco.DiLoCo(model, gradwire.topk(1.0), **options) as outer:
        for turn in range(4):
            steps = range(3 * turn, 3 * turn + 3)
            advance(model, inner, rank, steps, outer)
            advance(other, inner_other, rank, steps)
            with torch.no_grad():
                for each, own in zip(shared, other.parameters(), strict=True):
                    change = each - own
                    dist.all_reduce(change)
                    each.grad = change.div_(size)
                outer_steps.step()
                for each, own in zip(shared, other.parameters(), strict=True):
                    own.copy_(each)
            for a, b in zip(model.parameters(), other.parameters(), strict=True):
                torch.testing.assert_close(a, b, rtol=0, atol=1e-6)


def resume(rank, way, folder):
    """Train, save in the middle, and train on; then load and train the same steps again."""

    def start(seed=0):
        model = network(seed)
        return model, torch.optim.AdamW(model.parameters(), lr=1e-2)

    model, optimizer = start()
    with made(model, way) as outer:
        halves = {"model": model, "optimizer": optimizer, "outer": outer}
        advance(model, optimizer, rank, range(9), outer)
        file = folder / f"{way}{rank}.pt"
        torch.save({name: each.state_dict() for name, each in halves.items()}, file)
        advance(model, optimizer, rank, range(9, 18), outer)
        expected = plain(outer.state_dict()), fingerprint(model)
    model, optimizer = start(seed=5)
    with made(model, way) as outer:
        saved = torch.load(file, weights_only=True)
        for name, each in {"model": model, "optimizer": optimizer, "outer": outer}.items():
            each.load_state_dict(saved[name])
        assert outer.inner_step == 9
        advance(model, optimizer, rank, range(9, 18), outer)
        assert expected == (plain(outer.state_dict()), fingerprint(model))


def other_size(rank, size, folder):
    """Load what two ranks have saved: shared parameters as they were, residuals."""
    model = network(seed=7)
    files = [folder / f"streaming{each}.pt" for each in range(2)]
    every = [torch.load(each, weights_only=True)["outer"] for each in files]
    with made(model, "streaming") as outer:
        said = "rank 0 cannot load its state_dict: expected what"
        with pytest.raises(ValueError, match=said):
            outer.load_state_dict(every[0] if rank else {}, "drop")
        outer.load_state_dict(every)
        outer.restore()
        mine = outer.state_dict()[f"rank{rank}"]
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        advance(model, optimizer, rank, range(9, 15), outer)
        with outer.shared():
            alike(fingerprint(model))
    for name, each in every[0]["rank0"]["shared"].items():
        assert torch.equal(mine["shared"][name], each)
    for name, each in mine["residual"].items():
        total = sum(one[f"rank{at}"]["residual"][name] for at, one in enumerate(every))
        torch.testing.assert_close(each * size, total, rtol=1e-5, atol=1e-6)


def test_a_run_resumes_bit_for_bit_and_with_other_ranks(two, three, tmp_path):
    for way in ("diloco", "streaming"):
        two.run(resume, way=way, folder=tmp_path)
    three.run(other_size, folder=tmp_path)


@on("two")
def test_with_a_delay_every_inner_step_is_sent_once(rank, size):
    """Also across a restore and a bad exchange."""
    model, errors = network(), 0
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    own = dict(model.named_parameters())
    moved = {name: torch.zeros_like(each) for name, each in own.items()}
    options = {"outer_lr": 1.0, "outer_momentum": 0.0, "min_numel": 65, **WAYS["streaming"]}

    def unsent():
        """What a rank has trained since its parameters were sent, or applied, the last time."""
        base = {**kind_of(outer, "shared"), **kind_of(outer, "sent")}
        return {name: base[name] - each.detach() for name, each in own.items()}

    with diloco.DiLoCo(model, gradwire.topk(0.1), **options) as outer:
        begun = kind_of(outer, "shared")
        for step in range(22):
            before = {name: each.detach().clone() for name, each in own.items()}
            advance(model, optimizer, rank, range(step, step + 1))
            for name, each in own.items():
                moved[name] += before[name] - each.detach()
            bad = rank == 1 and step == 9  # sent in this step, and mended afterwards
            if bad:
                kept = own["0.weight"].detach().clone()
                spoil(model, float("nan"))
            try:
                outer.step()
            except TensorError:
                errors += 1
            if bad:
                with torch.no_grad():
                    own["0.weight"].copy_(kept)
            if rank == 1 and step == 16:
                lost = unsent()
                outer.restore()
                for name, gone in lost.items():
                    moved[name] -= gone
        shared, pending = kind_of(outer, "shared"), kind_of(outer, "pending")
        left, residual = unsent(), kind_of(outer, "residual")
        assert pending, "an exchange is under way"
        assert errors == 1
        assert outer.rounds >= 9
    for name in own:
        mine = moved[name] - left[name] - residual.get(name, 0.0)
        dist.all_reduce(mine)
        theirs = size * (begun[name] - shared[name] + pending.get(name, 0.0))
        assert (mine - theirs).abs().max() < 1e-5


@on("two")
def test_a_rank_that_diverges_is_an_error_on_all_and_the_next_round_goes_on(rank):
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    with made(model, "diloco") as outer:
        advance(model, optimizer, rank, range(7), outer)
        before = shared_bits(outer)
        if rank == 1:
            spoil(model, float("inf"))
        with pytest.raises(TensorError) as caught:
            advance(model, optimizer, rank, range(7, 8), outer)
        assert (caught.value.name, caught.value.rank) == ("0.weight", 1)
        assert before == shared_bits(outer)
        outer.restore()
        advance(model, optimizer, rank, range(8, 12), outer)
        assert outer.rounds == 3
        assert all(bool(each.isfinite().all()) for each in model.parameters())
        alike(fingerprint(model))
    with pytest.raises(ValueError, match="with different codec"):
        diloco.DiLoCo(model, gradwire.topk(0.1 + rank / 10))


@on("two")
def test_a_checkpoint_replaces_all_or_nothing_also_of_a_run_that_has_diverged(rank):
    """One of other fragments replaces nothing."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    with made(model, "streaming") as outer:
        advance(model, optimizer, rank, range(9), outer)
        saved, rounds = outer.state_dict(), outer.rounds
        good = plain(saved)
        if rank == 1:
            spoil(model, float("nan"))
        advance(model, optimizer, rank, range(9, 10), outer)  # and sends it
        outer.load_state_dict(saved)
        assert plain(outer.state_dict()) == good
        assert outer.rounds == rounds
        outer.restore()
        advance(model, optimizer, rank, range(9, 15), outer)
        assert all(bool(each.isfinite().all()) for each in model.parameters())
    with made(model, "fine") as other:
        advance(model, optimizer, rank, range(9), other)
        before = plain(other.state_dict())
        with pytest.raises(ValueError, match="with these 4 fragments, averages of"):
            other.load_state_dict(saved)
        assert before == plain(other.state_dict())
        advance(model, optimizer, rank, range(9, 15), other)
        alike(shared_bits(other))


def stops(rank):
    """One rank leaves its loop: the others get an error, and can still save."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    outer = made(model, "streaming", timeout=timedelta(seconds=stretched(3)))
    advance(model, optimizer, rank, range(5), outer)
    if rank == 1:
        outer.close(timedelta(0))
        return
    with pytest.raises(ExchangeError):
        advance(model, optimizer, rank, range(5, 20), outer)
    assert set(kind_of(outer, "pending")) <= set(dict(model.named_parameters()))


def test_a_rank_that_stops_is_an_error_for_the_others(short_lived):
    (kind, text), _ = short_lived.try_run(stops)
    assert kind == "returned", text


def first_tensor(kind, change):
    """Return what changes a tensor of a checkpoint."""

    def damage(mine):
        name = min(mine[kind])
        mine[kind] = {**mine[kind], name: change(mine[kind][name].clone())}

    return damage


def with_value(value):
    def change(tensor):
        tensor.view(-1)[-1] = value
        return tensor

    return change


DAMAGE = {
    **{
        f"nan in {kind}": first_tensor(kind, with_value(float("nan")))
        for kind in ("shared", "velocity", "pending", "sent", "residual")
    },
    "infinite": first_tensor("velocity", with_value(float("inf"))),
    "double": first_tensor("shared", torch.Tensor.double),
    "half": first_tensor("pending", torch.Tensor.half),
    "integers": first_tensor("velocity", torch.Tensor.int),
    "complex": first_tensor("shared", lambda each: each.to(torch.complex64)),
    "sparse": first_tensor("shared", torch.Tensor.to_sparse),
    "meta": first_tensor("shared", lambda each: each.to("meta")),
    "meta residual": first_tensor("residual", lambda each: each.to("meta")),
    "no tensor": lambda mine: mine.update(shared={**mine["shared"], min(mine["shared"]): [1.0]}),
    "nested": lambda mine: mine.update(outer="[" * 100_000),
    "nested about": lambda mine: mine.update(about="[" * 100_000),
    "no text": lambda mine: mine.update(outer=b"{}"),
    "of another run": first_tensor("shared", lambda each: each + 1e-3),
    "other averages": first_tensor("pending", lambda each: each + 1e-3),
    "other momentum": first_tensor("velocity", lambda each: -each),
}


@on("two")
def test_a_damaged_checkpoint_or_one_of_another_run_is_refused_by_all_before_anything_changes(rank):
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    with made(model, "streaming") as outer:
        advance(model, optimizer, rank, range(9), outer)
        saved = outer.state_dict()
        advance(model, optimizer, rank, range(9, 11), outer)
        before = plain(outer.state_dict()), fingerprint(model)
        for name, damage in DAMAGE.items():
            mine = dict(saved[f"rank{rank}"])
            if rank == 1:
                damage(mine)
            said = re.escape("rank 1 cannot load its state_dict: ")
            if name in ("of another run", "other averages", "other momentum"):
                said += ".*at the same step as that of rank 0, but its shared parameters"
            with pytest.raises(ValueError, match=re.compile("^" + said, re.DOTALL)) as caught:
                outer.load_state_dict({f"rank{rank}": mine})
            alike(str(caught.value))
            assert before == (plain(outer.state_dict()), fingerprint(model)), name
        outer.load_state_dict(saved)
