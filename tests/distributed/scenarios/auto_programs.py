"""Programs that DDP runs, with ``"auto"``: none may end because the codec is tried."""

import contextlib
import warnings
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
from torch.nn.parallel import DistributedDataParallel

import gradwire
import gradwire.torch.ddp
from gradwire._auto import FP32, Figures, Plan
from gradwire.torch.auto import controller as pilot
from gradwire.torch.ddp import GradientError, PairingWarning
from tests.distributed.scenarios.auto import CODED, ratios
from tests.distributed.scenarios.common import SMALL_BUCKETS, batch, fingerprint, network

STEPS = 64
BEGINS = 20
"""The step from which programs do what they did not do before."""


class Eager:
    """Decides on the codec wherever it applies, and from time to time on all-reduces."""

    skips, keeps, settled, reason = 2, False, False, "It was told so."

    def __init__(self, plan: Plan) -> None:
        self.plan, self.due, self._looks = plan, 2, 0

    def look(self, figures: Figures, evidence: object) -> Plan:
        del evidence
        self._looks += 1
        dense = self._looks % 8 == 7
        self.plan = tuple(CODED if each and not dense else FP32 for each in figures.codable)
        return self.plan


class Program:
    """One model and its optimizer; with a method for each way to train it."""

    def __init__(self, rank: int, model: Any, module: Any, optimizer: Any) -> None:
        self.rank, self.model, self.module, self.optimizer = rank, model, module, optimizer

    def loss(self, step: int) -> torch.Tensor:
        inputs, targets = batch(self.rank, step)
        return torch.nn.functional.mse_loss(self.model(inputs), targets)

    def passes(self, step: int, count: int, **options: Any) -> None:
        self.optimizer.zero_grad(**options)
        for at in range(count):
            self.loss(8 * step + at).backward()
        self.optimizer.step()

    def once(self, step: int) -> None:
        self.passes(step, 1)

    def twice(self, step: int) -> None:
        self.passes(step, 2)

    def twice_later(self, step: int) -> None:
        self.passes(step, 1 + (step >= BEGINS))

    def four_times_later(self, step: int) -> None:
        self.passes(step, 4 if step >= BEGINS else 1)

    def now_and_then_twice(self, step: int) -> None:
        self.passes(step, 1 + (step % 7 == 6))

    def cleared_by_zeros(self, step: int) -> None:
        self.passes(step, 1 + (step >= BEGINS), set_to_none=False)

    def not_stepped_every_time(self, step: int) -> None:
        """Clear only after a step."""
        self.loss(step).backward()
        if step < BEGINS or step % 2:
            self.optimizer.step()
            self.optimizer.zero_grad()

    def thrown_away(self, step: int) -> None:
        self.optimizer.zero_grad()
        self.loss(step).backward()
        if step % 3:
            self.optimizer.step()

    def clipped_in_between(self, step: int) -> None:
        self.optimizer.zero_grad()
        for at in range(1 + (step >= BEGINS)):
            self.loss(8 * step + at).backward()
            torch.nn.utils.clip_grad_norm_(self.module.parameters(), 0.1)
        self.optimizer.step()

    def unsynchronised_afterwards(self, step: int) -> None:
        self.optimizer.zero_grad()
        self.loss(step).backward()
        if step >= BEGINS:
            with self.model.no_sync():
                self.loss(step + 500).backward()
        self.optimizer.step()

    def through_one_graph(self, step: int) -> None:
        """Two losses of one forward pass, one after the other."""
        self.optimizer.zero_grad()
        inputs, targets = batch(self.rank, step)
        outputs = self.model(inputs)
        torch.nn.functional.mse_loss(outputs, targets).backward(retain_graph=True)
        if step >= BEGINS:
            outputs.square().mean().backward()
        self.optimizer.step()

    def penalised(self, step: int) -> None:
        """A penalty on the gradient by the inputs, through which there is a second backward."""
        self.optimizer.zero_grad()
        inputs, targets = batch(self.rank, step)
        inputs.requires_grad_()
        outputs = self.model(inputs)
        (by_inputs,) = torch.autograd.grad(outputs.square().sum(), inputs, create_graph=True)
        loss = torch.nn.functional.mse_loss(outputs, targets)
        (loss + 0.01 * by_inputs.square().sum()).backward()
        self.optimizer.step()

    def differentiated_in_between(self, step: int) -> None:
        """`torch.autograd.grad` adds to no gradient."""
        self.optimizer.zero_grad()
        self.loss(step).backward()
        torch.autograd.grad(self.module(batch(self.rank, step)[0]).sum(), self.module[0].weight)
        self.optimizer.step()

    def not_finite(self, step: int) -> None:
        """A step whose gradients are not finite is left out."""
        self.optimizer.zero_grad()
        (self.loss(step) * (float("nan") if step % 10 == 9 else 1.0)).backward()
        norms = [each.grad.norm() for each in self.module.parameters()]
        if torch.stack(norms).isfinite().all():
            self.optimizer.step()

    def replaced(self, step: int) -> None:
        self.optimizer.zero_grad()
        self.loss(step).backward()
        for each in self.module.parameters():
            each.grad = 0.5 * each.grad
        self.optimizer.step()

    def by_closure(self, step: int) -> None:
        def closure() -> torch.Tensor:
            self.optimizer.zero_grad()
            loss = self.loss(step)
            loss.backward()
            return loss

        self.optimizer.step(closure)

    def adversarial(self, step: int) -> None:
        """As a discriminator: two passes of its own, and one for another model."""
        self.optimizer.zero_grad()
        self.loss(step).backward()
        self.loss(step + 100).backward()
        self.optimizer.step()
        self.loss(step + 200).backward()

    def for_another_model(self, step: int) -> None:
        """As a discriminator that is given both kinds of inputs at once."""
        self.passes(step, 1)
        self.loss(step + 200).backward()

    def frozen_and_thawed(self, step: int) -> None:
        self.module[0].weight.requires_grad_(not BEGINS <= step < 2 * BEGINS)
        self.passes(step, 1)


@contextlib.contextmanager
def _program(rank: int, *, auto: bool) -> Iterator[tuple[Program, Any]]:
    module = network()
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2)
    model = DistributedDataParallel(
        module, bucket_cap_mb=SMALL_BUCKETS, find_unused_parameters=True
    )
    with contextlib.ExitStack() as stack:
        handle = None
        if auto:
            stack.enter_context(mock.patch.object(pilot, "Decider", Eager))
            handle = gradwire.torch.ddp.attach(model, "auto", optimizer=optimizer)
            stack.callback(handle.detach)
        yield Program(rank, model, module, optimizer), handle


def trained(rank: int, world_size: int, name: str) -> dict[str, Any]:
    """Train as a program does: by DDP alone, and with ``"auto"``."""
    del world_size
    found: dict[str, Any] = {}
    inputs, targets = batch(7, 1, 256)
    for auto in (False, True):
        coded, told = [], []
        with (
            _program(rank, auto=auto) as (program, handle),
            warnings.catch_warnings(record=True) as said,
        ):
            warnings.simplefilter("always", PairingWarning)
            for step in range(STEPS):
                getattr(program, name)(step)
                coded.append(auto and any(each is not None for each in ratios(handle).values()))
            told = [str(each.message) for each in said if each.category is PairingWarning]
            with torch.no_grad():
                loss = torch.nn.functional.mse_loss(program.module(inputs), targets)
            found["auto" if auto else "ddp"] = {
                "print": fingerprint(program.module),
                "coded": coded,
                "loss": float(loss),
                "decision": handle.report().decision if auto else "",
                "told": told,
            }
    return found


def spoiled(rank: int, world_size: int) -> list[str]:
    """Apply gradients that are not finite, with the codec in use."""
    del world_size
    said = []
    for kind in (torch.optim.AdamW, torch.optim.SGD):
        module = network()
        optimizer = kind(module.parameters(), lr=1e-2)
        model = DistributedDataParallel(module, bucket_cap_mb=SMALL_BUCKETS)
        with (
            mock.patch.object(pilot, "Decider", Eager),
            gradwire.torch.ddp.attach(model, "auto", optimizer=optimizer) as handle,
        ):
            program = Program(rank, model, module, optimizer)
            for step in range(10):
                program.once(step)
            assert any(each is not None for each in ratios(handle).values())
            before = fingerprint(module)
            optimizer.zero_grad()
            (program.loss(11) * float("nan" if rank else 1.0)).backward()
            try:
                optimizer.step()
            except GradientError as error:
                said.append(f"{error.rank} {fingerprint(module) == before}")
            program.once(12)
            said.append(fingerprint(module))
    return said
