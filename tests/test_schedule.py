"""Schedules: which codec in which epoch."""

import math

import pytest

import gradwire
from gradwire.schedule import (
    Accordion,
    BySteps,
    Constant,
    DenseWarmUp,
    WarmUp,
    recommended,
)
from gradwire.sparsify import TopK

CODEC = gradwire.sidco(0.001)


def ratios(schedule, epochs, codec=CODEC):
    return [schedule.codec_at(codec, epoch).sparsify.ratio for epoch in range(epochs)]


def test_a_constant_schedule_changes_nothing():
    assert all(Constant().codec_at(CODEC, epoch) is CODEC for epoch in range(5))


def test_the_warm_up_of_the_paper():
    assert ratios(WarmUp(), 7) == [0.25, 0.0625, 0.015625, 0.004, 0.001, 0.001, 0.001]


def test_the_warm_up_of_the_authors_code_is_another_one():
    found = ratios(WarmUp.code(0.001, 5), 7)
    assert found == pytest.approx([0.3162, 0.1, 0.03162, 0.01, 0.003162, 0.001, 0.001], rel=1e-3)
    assert ratios(WarmUp.code(0.001, 0), 2) == [0.001, 0.001]


def test_a_warm_up_never_sends_less_than_the_codec():
    assert ratios(WarmUp(), 6, gradwire.topk(0.05)) == [0.25, 0.0625, 0.05, 0.05, 0.05, 0.05]


def test_a_warm_up_changes_nothing_but_the_ratio():
    codec = gradwire.sidco(0.001, stages=3, quantize=gradwire.quantize.BFloat16())
    first = WarmUp().codec_at(codec, 0)
    assert first == gradwire.sidco(0.25, stages=3, quantize=gradwire.quantize.BFloat16())
    state = codec.init_state(1000)
    assert first._codec.same_kind(codec._codec)
    assert state.numel == 1000


@pytest.mark.parametrize("codec", [gradwire.topk(k=5), gradwire.threshold(0.1), gradwire.dense()])
def test_a_codec_without_a_ratio_has_no_warm_up(codec):
    with pytest.raises(ValueError, match=r"changes the ratio, but .* has none"):
        WarmUp().codec_at(codec, 0)
    with pytest.raises(ValueError, match="has none"):
        Accordion(0.1, 0.01).codec_for(codec, critical=True)


def test_a_dense_warm_up_compresses_nothing_at_first():
    found = [DenseWarmUp(2).codec_at(CODEC, epoch) for epoch in range(4)]
    assert found == [None, None, CODEC, CODEC]


class TestAccordion:
    @pytest.mark.parametrize(
        ("previous", "current", "critical"),
        [
            (1.0, 1.0, False),
            (1.0, 1.49, False),
            (1.0, 1.5, True),  # exactly eta
            (1.0, 0.5, True),
            (1.0, 0.51, False),
            (0.0, 0.0, True),  # no norm to compare with
            (1.0, math.nan, True),
            (math.nan, 1.0, True),
            (1.0, math.inf, True),
        ],
    )
    def test_the_rule_of_section_6_1(self, previous, current, critical):
        assert Accordion(0.1, 0.01).is_critical(previous, current) is critical

    def test_epochs_are_measured_at_intervals(self):
        schedule = Accordion(0.1, 0.01, interval=5)
        assert [epoch for epoch in range(12) if schedule.is_measured(epoch)] == [0, 5, 10]

    def test_critical_regimes_send_more(self):
        schedule = Accordion(0.5, 0.01)
        assert schedule.codec_for(CODEC, critical=True) == gradwire.sidco(0.5)
        assert schedule.codec_for(CODEC, critical=False) == gradwire.sidco(0.01)

    def test_settings_may_be_codecs(self):
        low, high = gradwire.topk(0.5), gradwire.topk(k=3)
        schedule = Accordion(low, high)
        assert schedule.codec_for(gradwire.topk(0.1), critical=True) is low
        assert schedule.codec_for(gradwire.topk(0.1), critical=False) is high

    def test_settings_without_an_exchange_have_that_of_the_codec(self):
        told = gradwire.onebit(exchange=gradwire.exchange.AllGather())
        schedule = Accordion(gradwire.onebit(), gradwire.onebit())
        assert schedule.codec_for(told, critical=True) == told

    def test_settings_may_differ_in_bits_and_go_by_shape(self):
        low, high = gradwire.qsgd(bits=8), gradwire.qsgd(bits=3)
        schedule = Accordion(low, high)
        assert schedule.codec_for(low, critical=False) == high
        means = gradwire.onebit()
        found = Accordion(means, means).codec_for(
            means.for_shape((6, 8)), critical=True, shape=(6, 8)
        )
        assert found == means.for_shape((6, 8))

    @pytest.mark.parametrize(
        "other",
        [
            gradwire.sidco(0.1),
            gradwire.topk(0.1, memory=gradwire.memory.NoMemory()),
            gradwire.Codec(
                sparsify=TopK(ratio=0.1), exchange=gradwire.exchange.AllGather("senders")
            ),
        ],
    )
    def test_settings_of_another_kind_are_refused(self, other):
        with pytest.raises(ValueError, match="only in how much they send"):
            Accordion(other, 0.01).codec_for(gradwire.topk(0.1), critical=True)


def test_by_steps_is_another_schedule_with_steps_in_place_of_epochs():
    schedule = BySteps(WarmUp((0.5, 0.1)), steps=3)
    epochs = [schedule.epoch_at(step) for step in range(8)]
    assert epochs == [0, 0, 0, 1, 1, 1, 2, 2]
    assert schedule.epoch_at(10**6) == schedule.last == 2, "nothing changes any more"
    assert ratios(schedule, 3) == ratios(WarmUp((0.5, 0.1)), 3)


@pytest.mark.parametrize("schedule", [Constant(), WarmUp(), DenseWarmUp(3)], ids=repr)
def test_from_the_last_epoch_on_nothing_changes(schedule):
    found = [schedule.codec_at(CODEC, schedule.last + more) for more in range(5)]
    assert found == [CODEC] * 5
    assert schedule.last == 0 or schedule.codec_at(CODEC, 0) != CODEC


@pytest.mark.parametrize(
    ("codec", "ratio"),
    [
        (gradwire.adam(0.01), 0.02),
        (gradwire.adam(0.001), 0.02),
        (gradwire.adam(0.02), None),
        (gradwire.adam_onebit(), None),
        (gradwire.Codec(sparsify=TopK(k=5), memory=gradwire.memory.AdamCorrection()), None),
        (gradwire.topk(0.01), None),
        (gradwire.dgc(0.01), None),
        (gradwire.float8(), None),
    ],
    ids=repr,
)
def test_codecs_that_send_steps_late_are_recommended_a_warm_up(codec, ratio):
    found = recommended(codec)
    if ratio is None:
        assert found == Constant()
    else:
        assert isinstance(found, BySteps)
        assert found.codec_at(codec, 0).sparsify.ratio == ratio
        assert found.codec_at(codec, found.last) == codec
