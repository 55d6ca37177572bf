"""Golden frames: written once, read by every release, in Python as in Rust."""

import json
from pathlib import Path

import numpy as np
import pytest

import gradwire

FOLDER = Path(__file__).parent / "v1"
CASES = {case["name"]: case for case in json.loads((FOLDER / "manifest.json").read_text())}
QUANTIZERS = {"float16_scaled": "float16 (scaled)"}


def quantizer_name(case) -> str:
    name: str = case["quantizer"]
    if name == "float8":
        return f"float8-{case['options']['format']}"
    return QUANTIZERS.get(name, name)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_headers_and_contents_are_those_of_the_manifest_to_the_bit(case):
    data = (FOLDER / f"{case['name']}.gwf").read_bytes()
    frame = gradwire.Frame(data)
    header = frame.header()
    assert frame.nbytes == case["length"]
    assert header["version"] == 1
    assert header["coding"] == case["coding"].replace("_", "-")
    assert header["parameter"] == case["coding_parameter"]
    assert header["quantizer"] == quantizer_name(case)
    for field in ("dtype", "sparsifier", "exponent", "numel", "count"):
        assert header[field] == case[field]
    values = np.array([int(word, 16) for word in case["values"]], np.uint32).view(np.float32)
    assert frame.indices().tolist() == case["indices"]
    assert frame.values().tobytes() == values.tobytes()
    expected = np.zeros(case["numel"], np.float32)
    expected[case["indices"]] = values
    assert gradwire.decode(data).tobytes() == expected.tobytes()
    out = np.ones(case["numel"], np.float32)
    gradwire.decode_add(data, out, 0.5)
    assert out.tobytes() == (np.float32(1) + expected * np.float32(0.5)).tobytes()


def test_every_file_is_in_the_manifest():
    assert {path.stem for path in FOLDER.glob("*.gwf")} == CASES.keys()
