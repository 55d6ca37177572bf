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


cases = pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())


def floats(words: list[str]) -> np.ndarray:
    return np.array([int(word, 16) for word in words], np.uint32).view(np.float32)


def tensor(case) -> np.ndarray:
    out = np.zeros(case["numel"], np.float32)
    out[case["indices"]] = floats(case["values"])
    return out


@cases
def test_headers(case):
    frame = gradwire.Frame((FOLDER / f"{case['name']}.gwf").read_bytes())
    header = frame.header()
    assert frame.nbytes == case["length"]
    assert header["version"] == 1
    assert header["coding"] == case["coding"].replace("_", "-")
    assert header["parameter"] == case["coding_parameter"]
    assert header["quantizer"] == quantizer_name(case)
    for field in ("dtype", "sparsifier", "exponent", "numel", "count"):
        assert header[field] == case[field]


@cases
def test_contents_to_the_bit(case):
    frame = gradwire.Frame((FOLDER / f"{case['name']}.gwf").read_bytes())
    assert frame.indices().tolist() == case["indices"]
    assert frame.values().tobytes() == floats(case["values"]).tobytes()


@cases
def test_decoding_to_the_bit(case):
    data = (FOLDER / f"{case['name']}.gwf").read_bytes()
    expected = tensor(case)
    assert gradwire.decode(data).tobytes() == expected.tobytes()
    out = np.ones(case["numel"], np.float32)
    gradwire.decode_add(data, out, 0.5)
    assert out.tobytes() == (np.float32(1) + expected * np.float32(0.5)).tobytes()


def test_every_file_is_in_the_manifest():
    assert {path.stem for path in FOLDER.glob("*.gwf")} == CASES.keys()
