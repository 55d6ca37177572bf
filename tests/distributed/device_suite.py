"""What holds on every device: a class of tests, run on the CPU here and by `tests/gpu` on GPUs."""

from typing import Any

import pytest

from tests.distributed.ranks import Ranks

__all__ = ["DeviceSuite"]

SEVERAL = {"bucket_cap_mb": 0.01}
SCATTER = {"ratio": 0.05, "exchange": "ReduceScatter"}
SUMS = {"exchange": "QuantizedAllReduce"}
NARROW = {"kind": "residual", "low_memory": True}
OWNED: dict[str, tuple[str, dict[str, Any]]] = {
    "all entries": ("topk", SCATTER | {"ratio": 1.0}),
    "narrow": ("topk", SCATTER | {"memory": NARROW}),
    "float16": ("topk", SCATTER | {"quantize": "Float16"}),
    "bfloat16": ("topk", SCATTER | {"quantize": "BFloat16"}),
    "signs": ("topk", SCATTER | {"quantize": "SignScale"}),
    "blocks": ("topk", SCATTER | {"quantize": ("Uniform", {"bits": 4, "norm": "max"})}),
    "sidco": ("sidco", SCATTER),
    "dgc": ("dgc", SCATTER),
    "adacomp": ("adacomp", {"exchange": "ReduceScatter"}),
    "chunks": ("sparseloco", {"k": 4, "chunk": 64, "exchange": "ReduceScatter"}),
    "drawn": ("randomk", SCATTER),
    "adaptive": ("adaptive", SUMS),
    "qsgd": ("qsgd", SUMS),
    "terngrad": ("terngrad", SUMS),
    "float8": ("float8", SUMS),
    "natural": ("natural", SUMS),
    "signsgd": ("signsgd", SUMS | {"memory": {"kind": "low_pass", "beta": 0.5}}),
    "onebit": ("onebit", SUMS | {"memory": NARROW}),
    "floats": ("dense", SUMS | {"quantize": "BFloat16"}),
}
"""Codecs of all that owners add up and encode again."""


class DeviceSuite:
    """Tests of training on the device ``device``, with the ranks of the fixture ``ranks``."""

    device: str
    module: str
    """Where buckets of the device are made."""
    carried_by: str = "gloo"
    """What moves frames between the ranks."""

    @pytest.fixture
    def cpu(self, two: Ranks) -> Ranks:
        """Ranks to compare with: tensors on the CPU, in place."""
        return two

    @pytest.mark.parametrize("half", [False, True], ids=["float32", "with-halves"])
    @pytest.mark.parametrize("ddp", [{}, SEVERAL | {"gradient_as_bucket_view": True}], ids=str)
    @pytest.mark.parametrize(
        "exchange", ["gather", "bfloat16", "reduce", "dense", "leader", "owners", "sums"]
    )
    def test_averages_and_states_are_those_of_the_cpu_bit_for_bit(
        self, cpu: Ranks, there: Ranks, exchange: str, ddp: dict[str, Any], half: bool
    ) -> None:
        options: dict[str, Any] = {"exchange": exchange, "ddp": ddp, "half": half}
        expected = cpu.run("devices.given", device="cpu", **options)
        found = there.run("devices.given", device=self.device, **options)
        for one, other in zip(found, expected, strict=True):
            assert one["bucket"] == self.module
            assert one["carried_by"] == self.carried_by
            assert one["loaded"] == self.module.endswith("cuda.buckets")
            assert one["averages"] == other["averages"]
            assert one["state"] == other["state"]
            assert one["wire"] == other["wire"]

    @pytest.mark.parametrize("codec", OWNED.values(), ids=OWNED)
    def test_owners_merge_as_on_the_cpu_bit_for_bit(
        self, cpu: Ranks, there: Ranks, codec: Any
    ) -> None:
        options: dict[str, Any] = {"exchange": codec, "ddp": SEVERAL}
        expected = cpu.run("devices.given", device="cpu", **options)
        found = there.run("devices.given", device=self.device, **options)
        for one, other in zip(found, expected, strict=True):
            assert one["carried_by"] == self.carried_by
            assert one["averages"] == other["averages"]
            assert one["state"] == other["state"]
            assert one["wire"] == other["wire"]

    @pytest.mark.parametrize("with_adam", [False, True], ids=["sgd", "adam"])
    def test_replicas_stay_equal_and_the_program_never_waits(
        self, there: Ranks, with_adam: bool
    ) -> None:
        found = there.run("devices.trained", device=self.device, with_adam=with_adam)
        assert len({each["print"] for each in found}) == 1
        assert all(each["steps"] == 6 for each in found)

    def test_a_step_that_overflows_on_one_rank_is_rolled_back_on_all(self, there: Ranks) -> None:
        found = there.run("devices.skipped", device=self.device)
        assert len({each["print"] for each in found}) == 1
        for each in found:
            assert each["all_bad"]
            assert each["before"] == each["after"]
            assert each["steps"] == 4
            assert each["scale"] == 4.0
            assert "on rank 1" in each["error"]

    def test_a_gradient_that_is_not_finite_is_an_error_on_every_rank(self, there: Ranks) -> None:
        found = there.run("devices.refused", device=self.device)
        for each in found:
            (text,) = each["texts"]
            assert "the gradient of 'a' on rank 1 has 1 non-finite value(s)" in text
            assert "flat position 5" in text
            assert each["steps"] == 2
            assert each["last"] == found[0]["last"]

    def test_a_checkpoint_goes_on_on_another_device_bit_for_bit(
        self, cpu: Ranks, there: Ranks
    ) -> None:
        expected = cpu.run("devices.moved", device="cpu")
        assert there.run("devices.moved", device=self.device) == expected
