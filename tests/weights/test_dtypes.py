"""Dtypes of files are an open list: what numpy lacks, and what comes later, is kept as it is."""

import ml_dtypes
import numpy as np
import pytest

from gradwire import weights
from tests.weights.containers import put_together

safetensors = pytest.importorskip("safetensors")

BITS = {
    "BOOL": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8,
    "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16,
    "I32": 32, "U32": 32, "F32": 32, "C64": 64, "F64": 64, "I64": 64, "U64": 64,
}  # fmt: skip
"""All that safetensors has today."""

WITHOUT_ARRAYS = ("F4", "F6_E2M3", "F6_E3M2", "F3_NEW")

EVERY = {**BITS, "F3_NEW": 3}
"""And one that it may have some day: the last dimension gives no hint of its bytes."""


def container(path, dtype):
    """A file of one tensor of this dtype, and one of bfloat16; returns the bytes of the first."""
    nbytes = 16 * 24 * EVERY[dtype] // 8
    data = np.random.default_rng(0).integers(0, 2, nbytes, np.uint8).tobytes()  # also for BOOL
    other = np.random.default_rng(1).standard_normal((64, 128)).astype(ml_dtypes.bfloat16).tobytes()
    header = {
        "__metadata__": {"format": "pt"},
        "x": {"dtype": dtype, "shape": [16, 24], "data_offsets": [0, nbytes]},
        "embed": {"dtype": "BF16", "shape": [64, 128], "data_offsets": [nbytes, nbytes + 16384]},
    }
    path.write_bytes(put_together(header, data + other))
    return data


@pytest.mark.parametrize("dtype", EVERY)
def test_every_dtype_is_read_and_written_as_it_is(dtype, tmp_path):
    data = container(tmp_path / "in", dtype)
    with weights.open(tmp_path / "in") as file:
        tensor = file["x"]
        assert isinstance(tensor, weights.RawTensor) == (dtype in WITHOUT_ARRAYS)
        assert (tensor.shape, tensor.nbytes) == ((16, 24), len(data))
        weights.save(tmp_path / "out", file)
    for name in ("in", "out"):
        with weights.open(tmp_path / name) as file:
            assert file.kind("x") == (dtype, (16, 24))
            assert file.raw("x").data.tobytes() == data
        if dtype in BITS:
            with safetensors.safe_open(tmp_path / name, "np") as file:
                found = file.get_slice("x")
                assert [found.get_dtype(), found.get_shape()] == [dtype, [16, 24]]


def test_a_raw_tensor_is_checked_against_its_dtype():
    assert weights.RawTensor("F4", (2, 3), np.zeros(3, np.uint8)).nbytes == 3
    assert weights.RawTensor("F3_NEW", (2, 3), np.zeros(9, np.uint8)).nbytes == 9
    with pytest.raises(ValueError, match="6 entries of F4 take 24 bits, got 4 bytes"):
        weights.RawTensor("F4", (2, 3), np.zeros(4, np.uint8))
    with pytest.raises(ValueError, match="must be uint8 of one dimension, got float32"):
        weights.RawTensor("F32", (2,), np.zeros(2, np.float32))
