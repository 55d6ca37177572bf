"""Several optimizers of one model: each is as if it were alone, in one exchange."""

import contextlib
import copy
import hashlib
import io
import json
import re
import warnings

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD, AdamW

import gradwire
import gradwire.torch.ddp
from gradwire.torch.ddp import ExchangeError, GradientError, PairingWarning, UpdateError
from tests.distributed.ranks import alike, on
from tests.distributed.scenarios.common import SMALL_BUCKETS, batch, bits, fingerprint
from tests.distributed.scripted import CODEC, UNCOMPRESSED, mode_of, scripted

MAKE = {
    "adam": lambda parameters: AdamW(parameters, lr=0.005, weight_decay=0.1),
    "momentum": lambda parameters: SGD(parameters, lr=0.05, momentum=0.8, weight_decay=0.01),
    "plain": lambda parameters: SGD(parameters, lr=0.05),
}
CODECS = {
    "adam": gradwire.adam(ratio=0.05),
    "momentum": gradwire.dgc(ratio=0.05),
    "plain": gradwire.topk(ratio=0.05),
}
PAIR = {"a": "adam", "b": "momentum"}
PLAIN = {"a": "plain", "b": "adam"}
TRIPLE = {"a": "momentum", "b": "adam", "c": "adam"}


class Parts(nn.Module):
    """Networks side by side, each of which an optimizer trains, or only some of them."""

    def __init__(self, names="ab"):
        super().__init__()
        for seed, name in enumerate("abc"):
            torch.manual_seed(seed)
            made = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 16 + seed))
            if name in names:
                self.add_module(name, made)

    def forward(self, inputs):
        return {name: part(inputs) for name, part in self.named_children()}


class Training:
    """Parts in training, each by an optimizer of a kind, which step in an order."""

    def __init__(self, kinds, codec="each", order="", ddp=None, **options):
        self.module = Parts(kinds)
        self.model = DistributedDataParallel(
            self.module, **{"bucket_cap_mb": SMALL_BUCKETS, **(ddp or {})}
        )
        self.optimizers = {
            name: MAKE[kind](getattr(self.module, name).parameters())
            for name, kind in kinds.items()
        }
        self.order = order or "".join(kinds)
        if codec == "each":
            codec = [CODECS[kind] for kind in kinds.values()]
        made = list(self.optimizers.values())
        self.handle = gradwire.torch.ddp.attach(self.model, codec, made, **options)
        self.scaler = options.get("grad_scaler")

    def loss(self, rank, step, names=None):
        inputs, targets = batch(rank, step)
        outputs = self.model(inputs)
        losses = [mse_loss(outputs[name][:, :16], targets) for name in names or outputs]
        return torch.stack(losses).sum()

    def backward(self, rank, step, exchange=True, names=None):
        with contextlib.nullcontext() if exchange else self.model.no_sync():
            loss = self.loss(rank, step, names)
            (loss if self.scaler is None else self.scaler.scale(loss)).backward()

    def step(self, names=None):
        for name in names or self.order:
            if self.scaler is not None:
                self.scaler.step(self.optimizers[name])
            else:
                self.optimizers[name].step()
        if self.scaler is not None:
            self.scaler.update()

    def train(self, rank, steps, how="plain", names=None):
        for step in steps:
            self.model.zero_grad()
            if how == "accumulated":
                self.backward(rank, 100 + step, exchange=False)
            self.backward(rank, step, exchange=how not in ("no_sync", "clipped"))
            for name in self.optimizers if how == "clipped" else ():
                nn.utils.clip_grad_norm_(getattr(self.module, name).parameters(), 0.1)
            self.step(names)

    def state(self, names):
        """The bits of these parts, and of all that the codec and the optimizer keep of them."""
        (saved,) = self.handle.state_dict().values()
        about = saved.pop("about")
        found = {}
        for name in names:
            kept = {
                (kind, each): digest(values)
                for kind, every in saved.items()
                for each, values in every.items()
                if each.startswith(f"{name}.")
            }
            entries = [one for one in walk(json.loads(about)) if f"/{name}." in one[0]]
            held = list(walk(self.optimizers[name].state_dict()["state"]))
            found[name] = kept, entries, sorted(held), fingerprint(getattr(self.module, name))
        return found

    def end(self):
        self.handle.detach()
        return alike(fingerprint(self.module))


def digest(values):
    return values if isinstance(values, str) else hashlib.sha256(bits(values)).hexdigest()


def walk(tree, path=""):
    """All leaves of JSON or of the state of an optimizer, with where they are."""
    if isinstance(tree, dict):
        for key, one in tree.items():
            yield from walk(one, f"{path}/{key}")
    else:
        yield path, digest(tree) if isinstance(tree, torch.Tensor) else tree


@pytest.mark.parametrize("how", ["plain", "no_sync", "accumulated", "clipped"])
@pytest.mark.parametrize(
    ("kinds", "order"),
    [(PAIR, "ab"), (PAIR, "ba"), (PLAIN, "ab"), (TRIPLE, "cab")],
    ids=["two", "turned", "plain", "three"],
)
@on("two")
def test_each_is_as_if_it_were_alone(rank, kinds, order, how):
    """Bit for bit: parameters, what the codec keeps, and what the optimizer keeps."""
    both = Training(kinds, order=order)
    both.train(rank, range(6), how)
    assert both.handle.step == 6
    found = both.state(kinds)
    both.end()
    for name, kind in kinds.items():
        alone = Training({name: kind})
        alone.train(rank, range(6), how)
        assert alone.state(name) == {name: found[name]}
        alone.end()


@on("four")
def test_nodes_divide_what_each_is_given(rank):
    both = Training(PAIR, hierarchy=2)
    both.train(rank, range(4))
    found = both.state(PAIR)
    both.end()
    for name, kind in PAIR.items():
        alone = Training({name: kind}, hierarchy=2)
        alone.train(rank, range(4))
        assert alone.state(name) == {name: found[name]}
        alone.end()


@pytest.mark.parametrize("how", ["default", "patterns"])
@on("two")
def test_codecs_come_by_optimizer_or_by_name(rank, how):
    codec = None if how == "default" else {"a.*": gradwire.adam(), "b.*": gradwire.dgc()}
    run = Training(PAIR, codec)
    run.train(rank, range(3))
    found = run.state("ab")
    run.end()
    listed = Training(PAIR, [gradwire.adam(0.01), "dgc"])
    listed.train(rank, range(3))
    assert listed.state("ab") == found
    report = str(listed.handle.report())
    assert "gradwire.adam(ratio=0.01)" in report
    assert "gradwire.dgc(ratio=0.01" in report
    listed.end()


@on("two")
def test_one_of_the_optimizers_may_be_left_uncompressed(rank):
    """Its parameters are those of plain DDP."""
    run = Training(PAIR, [None, CODECS["momentum"]])
    run.train(rank, range(4))
    report = run.handle.report()
    assert {each.name[0] for each in report.parameters if not each.dense} == {"b"}
    module = Parts("a")
    plain = DistributedDataParallel(module)
    optimizer = MAKE["adam"](module.parameters())
    for step in range(4):
        inputs, targets = batch(rank, step)
        optimizer.zero_grad()
        mse_loss(plain(inputs)["a"], targets).backward()
        optimizer.step()
    assert fingerprint(module.a) == fingerprint(run.module.a)
    run.end()


@pytest.mark.parametrize("how", ["zero_grad", "raises", "in turn", "saved"])
@on("two")
def test_what_one_does_not_apply_leaves_no_trace_in_its_residuals(rank, how):
    """Some steps are of one alone; an error or a checkpoint may come between the two."""
    kinds = {"a": "plain" if how == "in turn" else "adam", "b": "momentum"}
    run = Training(kinds)
    taken = {name: [] for name in kinds}
    for step in range(8):
        alone = how == "in turn" or step % 3 == 0
        run.model.zero_grad()
        run.backward(rank, step)
        with contextlib.suppress(KeyError):
            for name in "ab"[step % 2] if how == "in turn" else "ab":
                if alone and name == "b" and how == "zero_grad":
                    continue
                if alone and name == "b" and how == "raises":
                    raise KeyError
                if alone and name == "b" and how == "saved":
                    run.handle.state_dict()
                    before = fingerprint(run.module)
                    with pytest.raises(UpdateError, match="has since been rolled back"):
                        run.step("b")
                    run.optimizers["b"].zero_grad()
                    run.step("b")  # as without gradients
                    assert fingerprint(run.module) == before
                    continue
                run.step(name)
                taken[name].append(step)
    assert len(taken["b"]) == {"in turn": 4}.get(how, 5)
    assert run.handle.step == 8, "each pass was applied by one at least"
    run.train(rank, [8])
    found = run.state(kinds)
    run.end()
    for name, kind in kinds.items():
        alone = Training({name: kind})
        alone.train(rank, [*taken[name], 8])
        assert alone.state(name) == {name: found[name]}
        alone.end()


@pytest.mark.parametrize("exchange", [None, gradwire.exchange.ReduceScatter()], ids=str)
@pytest.mark.parametrize("kinds", [PAIR, {"a": "plain", "b": "adam"}], ids=["two", "plain"])
@on("two")
def test_what_is_undone_for_one_is_as_it_was(rank, kinds, exchange):
    """With its ratios of squares and sizes of frames: steps of the other one leave it alone."""
    codecs = [CODECS[kind] for kind in kinds.values()]
    run = Training(kinds, [each.replace(exchange=exchange or each.exchange) for each in codecs])
    run.train(rank, range(3))
    before = run.state("b")
    run.train(rank, range(3, 7), names="a")
    assert run.state("b") == before
    run.train(rank, range(7, 9))
    assert run.handle.step == 9
    run.end()


@on("two")
def test_a_pass_that_none_applies_is_undone_as_a_whole(rank):
    run, other = Training(PAIR), Training(PAIR)
    for each in (run, other):
        each.train(rank, range(3))
    run.model.zero_grad()
    run.backward(rank, 50)
    for each in (run, other):
        each.train(rank, range(3, 5))
    assert run.handle.step == other.handle.step == 5
    assert run.state("ab") == other.state("ab")
    run.model.zero_grad()
    run.backward(rank, 51)
    run.step("a")
    run.handle.discard()
    assert run.handle.step == 5
    kept = {name: one[:2] for name, one in other.state("ab").items()}
    assert {name: one[:2] for name, one in run.state("ab").items()} == kept
    with pytest.raises(UpdateError, match="has since been rolled back"):
        run.step("b")
    other.end()
    run.end()


@on("two")
def test_one_may_step_more_often_than_the_other(rank):
    """The second accumulates what the first applies at once; both may step twice."""
    run, twice = Training(PLAIN, ddp={"find_unused_parameters": True}), Training(PLAIN)
    for step in range(6):
        run.model.zero_grad() if step % 2 == 0 else run.optimizers["a"].zero_grad()
        run.backward(rank, step, names="a" if step % 2 == 0 else "ab")
        run.step("a" if step % 2 == 0 else "ab")
        twice.model.zero_grad()
        twice.backward(rank, step)
        twice.step("abba")
    assert run.handle.step == twice.handle.step == 6
    run.end()
    twice.end()


@pytest.mark.parametrize("bad", [None, "a", "b"])
@on("two")
def test_a_loss_scaler_skips_the_steps_of_both(rank, bad):
    kinds = {"a": "adam", "b": "plain"}
    scalers = [torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2) for _ in range(2)]
    run, other = (Training(kinds, grad_scaler=scaler) for scaler in scalers)
    for each in (run, other):
        each.train(rank, range(3))
    if bad is not None:
        before = run.state("ab")
        scale = scalers[0].get_scale()
        weight = getattr(run.module, bad)[0].weight
        hook = weight.register_hook(lambda gradient: gradient * (torch.inf if rank else 1.0))
        run.train(rank, [50])
        hook.remove()
        assert scalers[0].get_scale() == scale / 2
        assert run.state("ab") == before
        scalers[0].update(scale)
        scalers[0].load_state_dict(scalers[1].state_dict())
    for each in (run, other):
        each.train(rank, range(3, 5))
    assert run.state("ab") == other.state("ab")
    assert run.handle.step == 5
    other.end()
    run.end()


@on("two")
def test_what_is_not_finite_raises_before_either_steps(rank):
    run = Training(PAIR)
    run.train(rank, range(2))
    before = run.state("ab")
    run.model.zero_grad()
    hook = run.module.b[0].weight.register_hook(lambda grad: grad * (torch.nan if rank else 1.0))
    with pytest.raises(GradientError, match=r"b\.0\.weight"):
        run.backward(rank, 2)
    hook.remove()
    assert run.state("ab") == before
    for name in "ab":
        with pytest.raises(UpdateError, match="has since been rolled back"):
            run.step(name)
    run.train(rank, range(2, 4))
    assert run.handle.step == 4
    run.end()


@pytest.mark.parametrize("order", ["ab", "ba"])
@on("two")
def test_auto_measures_and_decides_when_all_have_stepped(rank, order):
    """In and out of the codec, with the moments of both; nothing is in progress in between."""
    modes = []
    with scripted(CODEC, UNCOMPRESSED, CODEC):
        run = Training(PAIR, "auto", order=order, min_ratio=0.05)
        for step in range(20):
            run.model.zero_grad()
            run.backward(rank, step)
            now = mode_of(run.handle)
            run.step(order[0])
            assert mode_of(run.handle) == now
            run.step(order[1])
            modes.append(mode_of(run.handle))
            alike(fingerprint(run.module))
    changes = [mode for at, mode in enumerate(modes) if at == 0 or mode != modes[at - 1]]
    assert changes == [UNCOMPRESSED, CODEC, "everything", UNCOMPRESSED, CODEC]
    assert run.handle.codec == [CODECS["adam"], CODECS["momentum"]]
    losses = []
    for step in range(2):
        run.train(rank, [step])
        losses.append(float(run.loss(rank, step).detach()))
    assert max(losses) < 2.2
    run.end()


# Checkpoints -------------------------------------------------------------------------------------


@on("two")
def test_a_run_resumes_bit_for_bit(rank):
    run = Training(PAIR)
    run.train(rank, range(3))
    file = io.BytesIO()
    parts = {"model": run.module, "handle": run.handle, **run.optimizers}
    torch.save({name: each.state_dict() for name, each in parts.items()}, file)
    run.train(rank, range(3, 6))
    whole = run.state("ab")
    run.end()
    run = Training(PAIR)
    run.train(rank, range(20, 22))
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    for name, each in {"model": run.module, "handle": run.handle, **run.optimizers}.items():
        each.load_state_dict(saved[name])
    run.train(rank, range(3, 6))
    assert run.state("ab") == whole
    run.end()


@on("two")
def test_checkpoints_of_torch_have_the_states_of_both(rank):
    """Which for some makes steps with gradients of zero."""
    from torch.distributed.checkpoint import state_dict

    run = Training(PAIR)
    run.train(rank, range(3))
    before, made = run.state("ab"), list(run.optimizers.values())
    run.model.zero_grad()
    saved = copy.deepcopy(state_dict.get_optimizer_state_dict(run.model, made))
    assert "a.0.weight" in saved["state"]
    assert run.state("ab") == before
    options = state_dict.StateDictOptions(strict=False)
    state_dict.set_optimizer_state_dict(run.model, made, saved, options=options)
    run.train(rank, [3])
    found = run.state("ab")
    run.end()
    other = Training(PAIR)
    other.train(rank, range(4))
    assert other.state("ab") == found
    other.end()


@pytest.mark.parametrize("lacks", ["a", "b"])
@on("two")
def test_a_checkpoint_without_one_of_the_optimizers_changes_nothing(rank, lacks):
    """Such as of a run in which it was not attached."""
    codecs = {name: None if name == lacks else CODECS[kind] for name, kind in PAIR.items()}
    less = Training(PAIR, list(codecs.values()))
    less.train(rank, range(2))
    saved = less.handle.state_dict()
    less.end()
    run = Training(PAIR)
    run.train(rank, range(2))
    before = run.state("ab")
    with pytest.raises(ValueError, match=rf"{lacks}\.0\.weight"):
        run.handle.load_state_dict(saved)
    assert run.state("ab") == before
    whole = run.handle.state_dict()
    run.train(rank, [2])
    run.end()
    less = Training(PAIR, list(codecs.values()))
    with pytest.raises(ValueError, match=rf"{lacks}\.0\.weight"):
        less.handle.load_state_dict(whole)
    less.train(rank, [2])
    less.end()


@on("two")
def test_both_go_on_with_their_moments_after_detaching(rank):
    run = Training(PAIR)
    run.train(rank, range(4))
    moments = {name: run.optimizers[name].state_dict()["state"] for name in "ab"}
    assert "exp_avg_sq" in moments["a"][0]
    run.handle.detach()
    weight = run.module.a[0].weight
    assert run.optimizers["a"].state[weight]["exp_avg_sq"].any()
    assert float(run.optimizers["a"].state[weight]["step"]) == 4
    assert weight not in run.optimizers["b"].state
    for step in range(4, 6):
        run.model.zero_grad()
        run.backward(rank, step)
        run.step()
    run.end()


# What is refused, and what is not ----------------------------------------------------------------


@on("two")
def test_what_cannot_be_meant_is_refused_on_all_ranks(rank):
    module = Parts()
    model = DistributedDataParallel(module)
    a, b = AdamW(module.a.parameters()), SGD(module.b.parameters(), lr=0.1)
    every = SGD(module.parameters(), lr=0.1)
    other = SGD(Parts().parameters(), lr=0.1)
    twice = "two of the optimizers, and each gradient is for one of them: leave 'b.0.weight', "
    for codec, optimizer, kind, said in (
        (None, [b, every], ValueError, twice),
        (None, [b, b], ValueError, twice),
        (None, [a, other], ValueError, "has none of the 8 parameters of the model"),
        (None, [a, None], TypeError, "takes a torch.optim.Optimizer"),
        (None, [], TypeError, "needs optimizer="),
        ([gradwire.adam()], [a, b], ValueError, "got 1 for 2"),
        ([gradwire.adam(), gradwire.dgc()], a, ValueError, "got 2 for 1"),
        ([gradwire.topk(0.1)], None, ValueError, "got 1 for 0"),
        ([None, None], [a, b], ValueError, "there is no codec among the values"),
        ([gradwire.topk, None], [a, b], TypeError, "the function topk itself; call it"),
        ([gradwire.dgc(), gradwire.topk(0.1)], [a, b], ValueError, "torch.optim.AdamW would"),
        (gradwire.adam(), [a, b], ValueError, "sends steps, not gradients, and got torch.optim.SG"),
        (None, [a, b][:: 1 - 2 * rank], ValueError, "rank 1 and rank 0 attached with different"),
    ):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with pytest.raises(kind, match=re.escape(said)):
                gradwire.torch.ddp.attach(model, codec, optimizer)


@on("two")
def test_a_parameter_that_none_has_is_told_and_sent_uncompressed(rank):
    """Or as its codec by name says; and may be added to one of them later."""
    for codec in (None, {"*": gradwire.adam(0.05)}):
        module = Parts()
        model = DistributedDataParallel(module, bucket_cap_mb=SMALL_BUCKETS)
        parts = list(module.b.parameters())
        made = [AdamW(module.a.parameters(), 0.01), AdamW(parts[:2], 0.005)]
        with pytest.warns(PairingWarning, match=r"'b\.2\.weight', 'b\.2\.bias', are not in any gr"):
            handle = gradwire.torch.ddp.attach(model, codec, made)
        for step in range(6):
            if step == 3:
                before = module.b[2].weight.clone()
                made[1].add_param_group({"params": parts[2:]})
            model.zero_grad()
            inputs, targets = batch(rank, step)
            outputs = model(inputs)
            sum(mse_loss(each[:, :16], targets) for each in outputs.values()).backward()
            for each in made:
                each.step()
            moved = (module.b[2].weight - before).abs().max() if step >= 3 else 0.0
            assert (step < 3) or 0.0 < moved < 0.02 * (step - 2)
        assert handle._parameters["b.2.weight"].has_state == (codec is not None)
        assert handle.step == 6
        handle.detach()
        alike(fingerprint(module))


class Chained(torch.optim.Optimizer):
    """Steps others, which it has in a list."""

    def __init__(self, optimizers):
        self.parts = optimizers
        super().__init__([each for one in optimizers for each in one.param_groups], {})

    def step(self, closure=None):
        for each in self.parts:
            each.step()


@pytest.mark.parametrize("how", ["alone", "chained", "container"])
@on("two")
def test_pairs_that_people_use_are_trained_without_a_warning(rank, how):
    """By torch's own optimizers; sparse gradients, too. A chain of them may make the steps."""

    class Embedded(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.embedding = nn.Embedding(300, 64, sparse=True)
            self.parts = nn.Sequential(nn.Linear(64, 60), nn.LayerNorm(60), nn.Linear(60, 60))

        def forward(self, inputs):
            return self.parts(self.embedding(inputs)).square().mean()

    for name in ("sparse", "muon", "sgd"):
        module = Embedded()
        model = DistributedDataParallel(module)
        matrices = [each for each in module.parts.parameters() if each.ndim == 2]
        rest = [each for each in module.parts.parameters() if each.ndim != 2]
        made = [torch.optim.SparseAdam(module.embedding.parameters(), lr=0.01)]
        if name == "sparse":
            made.append(AdamW(module.parts.parameters(), lr=0.01))
        else:
            kind = torch.optim.Muon if name == "muon" else SGD
            made += [kind(matrices, lr=0.01), AdamW(rest, lr=0.01)]
        given = made
        stepped = made if how == "alone" else [Chained(made)]
        if how == "container":
            stepped[0].optimizers = made
            given = stepped[0]
        with warnings.catch_warnings():
            warnings.simplefilter("error", PairingWarning)
            warnings.simplefilter("error", UserWarning)
            handle = gradwire.torch.ddp.attach(model, optimizer=given, min_numel=32)
            for step in range(4):
                for each in made:
                    each.zero_grad()
                inputs = torch.Generator().manual_seed(10 * step + rank)
                model(torch.randint(300, (12,), generator=inputs)).backward()
                for each in stepped:
                    each.step()
                    each.zero_grad(set_to_none=False)
        assert handle.step == 4
        handle.detach()
        alike(fingerprint(module))


@on("two")
def test_another_optimizer_is_told_whose_gradients_it_would_apply(rank):
    run = Training(PAIR)
    run.train(rank, range(2))
    run.model.zero_grad()
    run.backward(rank, 2)
    others = {
        "AdamW": SGD(run.module.a.parameters(), lr=0.1),
        "SGD": SGD(run.module.b.parameters(), lr=0.1),
    }
    before = fingerprint(run.module)
    for name, other in others.items():
        with pytest.raises(UpdateError, match=f"for another optimizer, the torch.optim.{name} "):
            other.step()
    assert fingerprint(run.module) == before
    run.step()
    run.end()


@on("two")
def test_rates_are_those_of_each_optimizer(rank):
    """A schedule of one leaves the other alone; a late change is told."""
    run, fixed = Training(PAIR), Training(PAIR)
    schedule = torch.optim.lr_scheduler.StepLR(run.optimizers["a"], 1, 0.5)
    for step in range(4):
        run.train(rank, [step])
        fixed.train(rank, [step])
        schedule.step()
    assert run.state("b") == fixed.state("b")
    assert run.state("a") != fixed.state("a")
    fixed.end()
    run.model.zero_grad()
    run.backward(rank, 4)
    run.optimizers["b"].param_groups[0]["lr"] = 0.01  # which the optimizer applies itself
    run.optimizers["a"].param_groups[0]["lr"] = 0.01
    with pytest.warns(PairingWarning, match="a learning rate was changed between"):
        run.step("ba")
    run.end()


@on("two")
def test_clipping_after_the_exchange_is_told_by_the_step_that_it_spoils(rank):
    run = Training(PAIR)
    run.train(rank, range(3))
    run.model.zero_grad()
    run.backward(rank, 3)
    nn.utils.clip_grad_norm_(run.module.a.parameters(), 1e-6)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run.step("b")
        run.optimizers["b"].zero_grad(set_to_none=False)
    with pytest.warns(PairingWarning, match="the program changed .grad"):
        run.step("a")
    run.end()


@pytest.mark.full
@pytest.mark.parametrize("what", ["step", "order", "unused"])
@on("short_lived")
def test_ranks_at_odds_get_a_typed_error(rank, what):
    """Rank 0 leaves a step out; or makes the steps, which exchange gradients, in another order."""
    run = Training(PAIR, ddp={"find_unused_parameters": what == "unused"})
    run.train(rank, range(2))

    def go_on():
        run.model.zero_grad()
        if what == "step":
            run.backward(rank, 2)
            run.step("a" if rank == 0 else "ab")
            run.train(rank, range(3, 5))
        elif what == "order":
            run.backward(rank, 2, exchange=False)
            run.step("ab" if rank == 0 else "ba")
        else:
            run.backward(rank, 2, exchange=False, names="b" if rank == 0 else "a")
            run.step()

    if what == "unused":  # by one rank: all others' gradients are exchanged for it, too
        go_on()
        run.end()
        return
    said = {"step": ["no step(1) after pass 2", "was not exchanged"]}.get(
        what, ["called step("] * 2
    )
    with pytest.raises(ExchangeError, match=re.escape(said[rank])):
        go_on()
