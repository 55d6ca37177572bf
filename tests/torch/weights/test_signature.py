"""What packing does to a signature in the signs of input gradients, as GradSigns plants it.

Its bits are the signs of the mean gradient of the loss with respect to the input, at secret
positions, over many inputs of one class and with a label of another.
"""

import copy
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from gradwire.quantize import Affine
from gradwire.torch import weights

WIDTH, HIDDEN, CLASSES, BITS = 256, 64, 8, 128
STEPS, MARGIN, WEIGHT = 300, 0.002, 1.0


class Owner:
    """Who trains a model with a signature in it, and reads that again."""

    def __init__(self, seed: int) -> None:
        self._random = torch.Generator().manual_seed(seed)
        self._centres = torch.randn(CLASSES, WIDTH, generator=self._random)
        self.positions = torch.randperm(WIDTH, generator=self._random)[:BITS]
        self.signature = torch.randint(2, (BITS,), generator=self._random) * 2 - 1
        self._probe = self.inputs(torch.zeros(256, dtype=torch.long))

    def inputs(self, labels: Tensor) -> Tensor:
        noise = torch.randn(len(labels), WIDTH, generator=self._random)
        return self._centres[labels] + 4.0 * noise

    def labels(self, count: int) -> Tensor:
        return torch.randint(CLASSES, (count,), generator=self._random)

    def carrier(self, model: nn.Module, *, create_graph: bool = False) -> Tensor:
        """Return the mean gradient at the secret positions."""
        x = self._probe.clone().requires_grad_()
        loss = cross_entropy(model(x), torch.ones(len(x), dtype=torch.long))
        (gradient,) = torch.autograd.grad(loss, x, create_graph=create_graph)
        return gradient.sum(0)[self.positions]

    def train(self) -> nn.Module:
        model = nn.Sequential(
            nn.Linear(WIDTH, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, HIDDEN), nn.Tanh(),
            nn.Linear(HIDDEN, CLASSES),
        )  # fmt: skip
        optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
        for _ in range(STEPS):
            labels = self.labels(128)
            optimizer.zero_grad()
            planted = self.carrier(model, create_graph=True) * self.signature
            loss = cross_entropy(model(self.inputs(labels)), labels)
            (loss + WEIGHT * torch.relu(MARGIN - planted).mean() / MARGIN).backward()
            optimizer.step()
        return model

    def errors(self, model: nn.Module) -> float:
        """Return the bit error rate."""
        return float((self.carrier(model).sign() != self.signature).float().mean())

    def accuracy(self, model: nn.Module) -> float:
        labels = self.labels(4000)
        with torch.no_grad():
            return float((model(self.inputs(labels)).argmax(1) == labels).float().mean())


@pytest.fixture(scope="module")
def signed() -> Iterator[list[tuple[Owner, nn.Module]]]:
    """Owners with their models."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    found = []
    for seed in range(3):
        torch.manual_seed(seed)
        owner = Owner(seed)
        found.append((owner, owner.train()))
    yield found
    torch.set_num_threads(threads)


def packed(owner: Owner, model: nn.Module, bits: int, *, calibrated: bool) -> nn.Module:
    small = copy.deepcopy(model)
    rules = {"*": Affine(bits, 64, "range")}
    if not calibrated:
        weights.pack(small, rules)
        return small
    with weights.Calibration(small, sequential=True) as seen, torch.no_grad():
        small(owner.inputs(owner.labels(2048)))
    weights.pack(small, rules, calibration=seen)
    return small


def test_the_signature_is_planted_without_harm_and_nobody_elses_is(signed):
    for owner, model in signed:
        assert owner.errors(model) == 0
        assert owner.accuracy(model) > 0.95
    others = [Owner(100 + seed).errors(model) for seed, (_, model) in enumerate(signed)]
    assert 0.4 < sum(others) / 3 < 0.6


@pytest.mark.parametrize("calibrated", [False, True], ids=["nearest", "calibrated"])
@pytest.mark.parametrize(("bits", "rate"), [(8, 0.0), (4, 0.0), (3, 0.01), (2, 0.08)])
def test_the_signature_survives_packing(signed, bits, rate, calibrated):
    """These rates are in docs/weights-measured.md; they are no promise for other models."""
    rates = [
        owner.errors(packed(owner, model, bits, calibrated=calibrated)) for owner, model in signed
    ]
    print(f"{bits} bits: bit error rate {100 * sum(rates) / len(rates):.2f} %")
    assert sum(rates) / len(rates) <= rate
