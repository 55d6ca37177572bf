"""Calibrations: lines through points, sizes of frames, files."""

import json

import numpy as np
import pytest

import gradwire
from gradwire.cost import Calibration, calibrate, compressed
from gradwire.cost.calibration import Line, line

NUMELS = (1 << 12, 1 << 14)
RATIO = 0.02


@pytest.fixture(scope="module")
def calibration():
    codecs = {
        "topk": gradwire.topk(ratio=RATIO),
        "onebit": gradwire.onebit(),
        "randomk": gradwire.randomk(ratio=0.1),
        "scalecom": gradwire.scalecom(ratio=RATIO),
        "threshold": gradwire.threshold(threshold=1e-3),
    }
    return calibrate(codecs, seconds=0.01, numels=NUMELS, cold=False)


def test_a_line_is_found_where_there_is_one():
    truth = Line(1e-5, 2e-9, 3e-8)
    points = [(n, k, truth(n, k)) for n in (1e3, 1e5, 1e7) for k in (1e1, 1e2, 1e3)]
    found = line(points)
    assert (found.fixed, found.per_numel, found.per_entry) == pytest.approx(
        (truth.fixed, truth.per_numel, truth.per_entry)
    )
    assert found.error < 1e-6


def test_no_coefficient_is_negative():
    found = line([(1e3, 1e3, 1.0), (1e6, 1e6, 0.5)])
    assert min(found.fixed, found.per_numel, found.per_entry) >= 0
    assert 0.2 < found.error < 0.5


def test_it_takes_time_and_nothing_is_free(calibration):
    for cost in calibration.codecs.values():
        assert cost.encode(1 << 14, 300) > 0
        assert cost.decode(1 << 14, 300) > 0
    assert calibration.clear_seconds > 0


def test_casts_take_time():
    """Sizes far apart: a line through two small ones may be flat by chance."""
    assert calibrate({}, seconds=0.05, numels=(1 << 12, 1 << 20), cold=False).cast_seconds > 0


def test_progress_goes_up_to_one_and_names_the_codecs():
    told = []
    codecs = {"topk": gradwire.topk(ratio=RATIO), "onebit": gradwire.onebit()}
    options = {"seconds": 0.001, "numels": NUMELS, "cold": False}
    found = calibrate(codecs, **options, progress=lambda *what: told.append(what))
    assert list(dict.fromkeys(name for name, _ in told)) == ["bfloat16", "topk", "onebit", "done"]
    shares = [share for _, share in told]
    assert shares == sorted(set(shares))
    assert (shares[0], shares[-1]) == (0.0, 1.0)
    assert float(found.machine["others"]) >= 0.0
    with pytest.raises(TypeError, match=r"progress must be a function.* such as print; got True"):
        calibrate({}, progress=True)


@pytest.mark.parametrize("name", ["topk", "onebit", "randomk", "scalecom"])
def test_sizes_are_those_of_frames(calibration, name):
    """Of another tensor and another size than those that were measured."""
    cost = calibration.codecs[name]
    numel, shape = 102_400, (800, 128)  # as many columns as measured
    codec = cost.codec.for_shape(shape)
    draw = np.random.default_rng(1)
    x = (draw.standard_normal(numel) * draw.exponential(size=numel)).astype(np.float32)
    frame = codec.encode(x, codec.init_state(numel))
    method = compressed(name, calibration)
    assert method.payload(numel).nbytes == pytest.approx(len(frame), rel=0.08)
    assert method.state_bytes == codec.init_state(numel).nbytes / numel


def test_a_codec_with_a_ratio_sends_its_ratio(calibration):
    assert calibration.codecs["topk"].share == pytest.approx(RATIO, rel=0.02)
    assert calibration.codecs["onebit"].share == 1.0
    assert 0 < calibration.codecs["threshold"].share < 1


def test_it_can_be_saved_and_loaded(calibration, tmp_path):
    path = tmp_path / "calibration.json"
    calibration.save(path)
    assert Calibration.load(path) == calibration


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda plain: "[]", "not a calibration"),
        (lambda plain: "{", "has no calibration"),
        (lambda plain: json.dumps({**plain, "version": 99}), "version 99"),
        (lambda plain: json.dumps({**plain, "threads": 0}), "threads must be at least 1"),
        (lambda plain: json.dumps({**plain, "codecs": {"topk": {}}}), "not a calibration"),
        (lambda plain: json.dumps({**plain, "more": 1}), "not a calibration"),
    ],
)
def test_another_file_is_refused(calibration, tmp_path, change, message):
    path = tmp_path / "calibration.json"
    path.write_text(change(calibration.to_json()))
    with pytest.raises(ValueError, match=message):
        Calibration.load(path)


def test_what_cannot_be_measured_is_refused(calibration):
    with pytest.raises(TypeError, match=r"codec 'topk' must be a gradwire\.Codec, got 0\.01"):
        calibrate({"topk": 0.01})
    with pytest.raises(ValueError, match="seconds must be above 0"):
        calibrate({}, seconds=0)
    with pytest.raises(ValueError, match="a line needs at least two sizes"):
        calibrate({}, numels=(4096,))
    with pytest.raises(ValueError, match="no codec 'sidco', but topk"):
        compressed("sidco", calibration)
