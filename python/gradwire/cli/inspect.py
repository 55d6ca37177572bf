"""``gradwire inspect FILE``: print a frame or a file of weights, or why it is corrupt."""

import argparse
import contextlib
import errno
import importlib
import io
import json
import os
import sys
from collections.abc import Sequence
from typing import Any, BinaryIO

import numpy as np

from gradwire import Frame, GradwireError
from gradwire._files import word_for
from gradwire._validate import MAX_NUMEL, require
from gradwire.cost.network import information_bits
from gradwire.errors import CorruptFrameError, TruncatedFrameError


def main(argv: Sequence[str]) -> int:
    """Print a frame or a file; return 0, or 1 if it is corrupt or cannot be read."""
    options = make_parser().parse_args(argv)
    of_weights = _is_of_weights(options.file)
    try:
        if of_weights:
            # A frame takes neither the module nor what it needs.
            files = importlib.import_module("gradwire.cli.pack")
            tensors = files.described(options.file)
            text = json.dumps(tensors, indent=2)
            text = text if options.json else files.listed(options.file, tensors)
        else:
            report = _report(_read_frame(options.file))
            text = json.dumps(report, indent=2) if options.json else _as_text(options.file, report)
    except OSError as error:
        return _fail(options, error, f"cannot read {options.file}: {error.strerror}")
    except (ValueError, ImportError, MemoryError, GradwireError) as error:
        return _fail(options, error, f"{options.file}: {error}")
    print(text)
    return 0


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gradwire inspect",
        description="Print a frame's header and sections, or the tensors of a weight file with "
        "their bits, bytes and errors; or why it is corrupt (exit code 1).",
    )
    parser.add_argument(
        "file",
        metavar="FILE",
        help="a file with one frame, - for standard input; or a safetensors file, or the folder or "
        "index of a sharded checkpoint",
    )
    parser.add_argument("--json", action="store_true", help="print a JSON object")
    return parser


def _is_of_weights(file: str) -> bool:
    """Tell whether it is no frame: a folder, or a file that names or begins as another."""
    if os.path.isdir(file) or file.endswith((".safetensors", ".json")):
        return True
    if not os.path.isfile(file):  # a pipe can be read once
        return False
    with open(file, "rb") as opened:
        head = opened.read(64)
    return head[8:9] == b"{" or word_for(head) is not None


def _fail(options: argparse.Namespace, error: Exception, message: str) -> int:
    if options.json:
        print(json.dumps({"error": type(error).__name__, "message": message}, indent=2))
    else:
        print(f"gradwire inspect: {message}", file=sys.stderr)
    return 1


def _report(frame: Frame) -> dict[str, Any]:
    """Decode all sections of a frame and return the fields to print."""
    header = frame.header()
    values = frame.values()
    frame.indices()
    count, numel = frame.count, frame.numel
    magnitudes = np.abs(values)
    index_bits = 8 * header["index_nbytes"] / count if count else None
    bound = information_bits(numel, count) if count else None
    # Positions in clusters take less, as do codings that cannot represent every set of positions.
    if bound is not None and index_bits is not None and index_bits < bound:
        bound = None
    return header | {
        "nbytes": frame.nbytes,
        "ratio": count / numel if numel else None,
        "bits_per_entry": 8 * frame.nbytes / count if count else None,
        "index_bits_per_entry": index_bits,
        "index_bits_bound": bound,
        "compression": 4 * numel / frame.nbytes,
        "largest_magnitude": float(magnitudes.max()) if count else None,
        "smallest_magnitude": float(magnitudes.min()) if count else None,
    }


def _as_text(file: str, report: dict[str, Any]) -> str:
    numel, count, ratio = report["numel"], report["count"], report["ratio"]
    share = "" if ratio is None else f" ({100 * ratio:.4g} %)"
    coding = _CODING_NOTES.get(report["coding"], report["coding"])
    scale = f", scaled by 2**{report['exponent']}" if report["exponent"] else ""
    rows = [
        ("frame", f"version {report['version']}, {report['nbytes']:,} bytes"),
        ("checksum", f"CRC-32C {report['checksum']:08x}, correct"),
        ("tensor", f"{numel:,} elements, {report['dtype']}"),
        ("entries", f"{count:,}{share}"),
        ("sparsifier", report["sparsifier"]),
        ("header", f"{report['header_nbytes']:,} bytes"),
        ("indices", f"{report['index_nbytes']:,} bytes, {coding.format(**report)}"),
        ("values", f"{report['value_nbytes']:,} bytes, {report['quantizer']}{scale}"),
    ]
    if count:
        low, high = report["smallest_magnitude"], report["largest_magnitude"]
        bits, bound = report["index_bits_per_entry"], report["index_bits_bound"]
        compared = "" if bound is None else f" (entropy bound {bound:.2f}, {bits - bound:+.2f})"
        # These two codings cannot represent every set of positions, so the bound does not hold.
        if report["coding"] in ("chunk-local", "seeded"):
            compared = ""
        elif bound is None:
            compared = f" (random positions: at least {information_bits(numel, count):.2f})"
        rows += [
            ("magnitudes", f"{low:.6g} to {high:.6g}"),
            ("bits per entry", f"{report['bits_per_entry']:.2f}"),
            ("of which index", f"{bits:.2f}{compared}"),
        ]
    rows.append(("compression", f"{report['compression']:.1f} times smaller than dense float32"))
    return "\n".join([file, *(f"  {name:<14} {text}" for name, text in rows)])


_CODING_NOTES = {
    "none": "none needed: every position",
    "elias-fano": "elias-fano, {parameter} low bits",
    "rice": "rice, {parameter} bits",
    "chunk-local": "chunk-local, positions relative to their chunk",
    "seeded": "seeded, positions generated from a key",
}
"""Descriptions of the codings, by name."""


_HEADER_NBYTES = 48
_QUANTIZER_AND_CODING = slice(7, 9)
_NUMEL = slice(16, 24)
_PIECE = 1 << 20

# Upper bound for every coding, in bytes: per element 4.2 for the position, 4 for the value and 8
# for a block of one entry; plus a few kilobytes of parameters.
_MOST_PER_ELEMENT, _MOST_BESIDE = 17, 1 << 16
# Parts of other packages code a section in as many bytes as they like.
_OUTSIDE, _MOST_OUTSIDE = 255, 1 << 30


def _read_frame(file: str) -> Frame:
    """Read one frame, header first; ``-`` is standard input.

    Memory use is proportional to the bytes actually read, whatever the header claims, and the
    header alone exposes an endless source.
    """
    with contextlib.ExitStack() as stack:
        standard = file == "-"
        if standard and sys.stdin is None:
            raise OSError(errno.EBADF, "standard input is closed")
        source = sys.stdin.buffer if standard else stack.enter_context(open(file, "rb"))
        head = _up_to(source, _HEADER_NBYTES)
        try:
            need = Frame(head, max_numel=MAX_NUMEL).nbytes
        except TruncatedFrameError as error:
            if len(head) < _HEADER_NBYTES:
                raise
            need = error.need
        _check_length(head, need)
        data = head + _up_to(source, need - len(head))
        if source.read(1):
            raise CorruptFrameError(f"the frame ends after {need} bytes, but more follow")
    return Frame(data, max_numel=MAX_NUMEL)


def _check_length(head: bytes, need: int) -> None:
    numel = int.from_bytes(head[_NUMEL], "little")
    corrupt, message = CorruptFrameError, "the header claims {} elements; the limit is {}"
    require(numel <= MAX_NUMEL, message, numel, MAX_NUMEL, kind=corrupt)
    most = _MOST_PER_ELEMENT * numel + _MOST_BESIDE
    if _OUTSIDE in head[_QUANTIZER_AND_CODING]:
        most = max(most, _MOST_OUTSIDE)
        message = "a frame of {} bytes, coded by a part of another package; at most {} are read"
        require(need <= most, message, need, most)
    message = "the header claims {} bytes for {} elements; the limit is {}"
    require(need <= most, message, need, numel, most, kind=corrupt)


def _up_to(source: BinaryIO, count: int) -> bytes:
    data = io.BytesIO()
    while (left := count - data.tell()) > 0 and (piece := source.read(min(left, _PIECE))):
        data.write(piece)
    return data.getvalue()
