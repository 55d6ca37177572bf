"""The table of instruction counts: what it says of bytes, and where it finds measured copies."""

import pytest

from benches import instructions


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("sidco, 2 stages, 0.01", ("sidco, 2 stages", 0.01)),
        ("topk, low memory, 0.1", ("topk, low memory", 0.1)),
        ("dense bf16", ("dense bf16", 0.001)),
    ],
)
def test_a_name_ends_with_its_ratio(name, expected):
    assert instructions.split(name) == expected


def test_sending_everything_touches_every_line_once_each_way():
    assert instructions.touched(1.0) == instructions.COPY
    assert instructions.touched(0.0) == 0.0


def test_a_kernel_has_no_bytes_and_an_encode_has_more_than_the_copy():
    assert instructions.bytes_moved("peak", 0.001) is None
    assert instructions.bytes_moved("topk", 0.001) > instructions.COPY
    assert instructions.bytes_moved("dense bf16", 0.001) == 6
    assert instructions.bytes_moved("dense sign and mean with residual", 0.001) == 12.125


def test_measured_copies_come_from_the_headline_case_alone():
    row = {"name": "gradwire topk", "encode_copies": {"median": 1.5}}
    case = {"law": "student-t(3)", "numel": 25_000_000, "ratio": 0.01, "threads": 1}
    document = {"outcomes": [{"case": case, "results": [row]}]}
    assert instructions.recorded(document, "topk", 0.01) == 1.5
    assert instructions.recorded(document, "topk", 0.1) is None
    assert instructions.recorded(document, "decode and add", 0.01) is None
