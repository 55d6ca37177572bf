"""``gradwire pack IN OUT``: write the weights of a file in a few bits each."""

import argparse
import dataclasses
import math
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gradwire import _rules, weights
from gradwire.cli.terminal import ProgressLine
from gradwire.errors import CorruptFileError, GradwireError
from gradwire.quantize import Affine
from gradwire.weights import saving
from gradwire.weights.pack import check_more, check_solving, fitting_block

LEAST = 4096  # entries of a tensor that is packed without a rule of its own

Rules = Mapping[str, Affine | None]


def main(argv: Sequence[str]) -> int:
    """Pack a file; return 0, or 1 if a file is corrupt, cannot be read or cannot be written."""
    parser = make_parser()
    options = parser.parse_args(argv)
    if options.lossless or options.base is not None:
        if message := _beside_lossless(parser, options):
            parser.error(message)
        return _lossless(options)
    try:
        more = [] if options.more is None else [options.more]
        usual, rules = _usual(options), _parsed(options)
        check_more(usual, more)
        check_solving(options.calibration is not None, None, None, "--calibration", more)
    except (ValueError, TypeError) as error:
        parser.error(str(error))
    try:
        grams = {} if options.calibration is None else weights.load_grams(options.calibration)
    except (OSError, GradwireError) as error:
        return _fail(f"{options.calibration}: {getattr(error, 'strerror', None) or error}")
    try:
        with weights.open(options.source) as file, ProgressLine("gradwire pack") as progress:
            _rules.check(rules, file, "tensor")
            if strange := grams.keys() - file.keys():
                raise ValueError(f"the calibration is for another model: no {min(strange)!r} here")
            rules.setdefault("*", usual)
            tensors: dict[str, weights.file.Tensor] = {}
            for i, (name, tensor) in enumerate(file.items()):
                progress(name, i / len(file))
                quantize = _chosen(name, tensor, rules)
                if quantize is None or not isinstance(tensor, np.ndarray):
                    tensors[name] = tensor
                else:
                    gram = grams.get(name)
                    tensors[name] = weights.pack(tensor, quantize, more, name, gram=gram)
            progress("writing", 1.0)
            weights.save(options.target, tensors, file.metadata)
    except OSError as error:
        return _fail(f"{error.filename}: {error.strerror}")
    except (ValueError, TypeError, ImportError, GradwireError) as error:
        return _fail(f"{options.source}: {error}")
    print(summary(tensors))
    return 0


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="gradwire pack",
        description="Pack the weights of a safetensors file into a few bits each: float tensors "
        f"with at least two dimensions and {LEAST} entries, and any whose full name a "
        "rule gives. The rest is copied.",
    )
    parser.add_argument("source", metavar="IN", help="a safetensors file")
    parser.add_argument("target", metavar="OUT", help="the file to write; it may be IN")
    parser.add_argument("--bits", type=int, default=4, help="bits per weight, 1 to 8 (default: 4)")
    parser.add_argument(
        "--block", type=int, default=64, help="weights that share a grid (default: 64)"
    )
    parser.add_argument(
        "--fit",
        choices=("squares", "range", "zero", "sawb"),
        help="how to fit the grid of a block (default: squares; range with --more)",
    )
    parser.add_argument(
        "--more", type=int, metavar="BITS", help="further bits, which a reader may leave out"
    )
    parser.add_argument(
        "--calibration",
        metavar="FILE",
        help="gradwire.torch.weights.Calibration's file: codes then preserve layer outputs",
    )
    parser.add_argument(
        "--lossless",
        action="store_true",
        help="store all floats of up to 32 bits without loss",
    )
    parser.add_argument(
        "--base",
        metavar="FILE",
        help="with --lossless: store only differences from FILE, which stays in OUT's folder",
    )
    parser.add_argument(
        "--rules",
        default="",
        metavar="NAME=BITS,...",
        help="bits for tensors by name, with * and ?; NAME=no copies them; the first match is used",
    )
    return parser


def _beside_lossless(parser: argparse.ArgumentParser, options: argparse.Namespace) -> str:
    if not options.lossless:
        return "--base requires --lossless"
    others = ("bits", "block", "fit", "more", "calibration", "rules")
    given = [name for name in others if getattr(options, name) != parser.get_default(name)]
    return f"--lossless keeps every bit: leave out --{given[0]}" if given else ""


def _lossless(options: argparse.Namespace) -> int:
    try:
        with weights.open(options.source) as file:
            before = os.path.getsize(options.source)
            if changed := [
                name for name in file if file.kind(name) is None or file.coding_of(name)
            ]:
                raise ValueError(f"{changed[0]!r} is already packed; unpack the file first")
            sections = saving.sections_of(file)
            saving.write(
                options.target,
                sections,
                file.metadata,
                lossless=True,
                base=options.base,
                original=file.header,
            )
    except OSError as error:
        return _fail(f"{error.filename}: {error.strerror}")
    except (ValueError, GradwireError) as error:
        return _fail(f"{options.source}: {error}")
    after = os.path.getsize(options.target)
    share = f"{after / before:.1%}".replace("%", " %")
    print(
        f"{len(sections)} tensors, {before / 1e6:.2f} MB -> {after / 1e6:.2f} MB ({share}), exact"
    )
    return 0


def _usual(options: argparse.Namespace) -> Affine:
    fit: Any = options.fit or ("squares" if options.more is None else "range")
    return Affine(options.bits, options.block, fit=fit)


def _parsed(options: argparse.Namespace) -> dict[str, Affine | None]:
    usual, rules = _usual(options), dict[str, Affine | None]()
    for rule in filter(None, options.rules.split(",")):
        pattern, _, bits = rule.rpartition("=")
        if not pattern or not (bits == "no" or bits.isdecimal()):
            raise ValueError(f"--rules are NAME=BITS or NAME=no, got {rule!r}")
        rules[pattern] = None if bits == "no" else dataclasses.replace(usual, bits=int(bits))
    return rules


def _chosen(name: str, tensor: weights.file.Tensor, rules: Rules) -> Affine | None:
    if isinstance(tensor, weights.Packed):
        raise ValueError(f"{name!r} is already packed; unpack the file first")
    quantize = _rules.first(rules, name)
    if quantize is None or not isinstance(tensor, np.ndarray):
        return None
    if tensor.dtype.name not in ("float64", *weights.packed.DTYPES):
        return None
    if name not in rules and (tensor.ndim < 2 or tensor.size < LEAST):
        return None
    fits = quantize.block is None or fitting_block(tensor.shape, quantize.block)
    return quantize if tensor.size and fits else None


def summary(tensors: dict[str, Any]) -> str:
    """Return one line on the packed tensors: number, bytes, bits per weight and errors."""
    packed = {name: t for name, t in tensors.items() if isinstance(t, weights.Packed)}
    sizes = {name: math.prod(t.shape) for name, t in packed.items()}
    after = sum(t.nbytes for t in tensors.values())
    copied = sum(t.nbytes for name, t in tensors.items() if name not in packed)
    before = copied + sum(
        sizes[name] * (4 if t.dtype == "float32" else 2) for name, t in packed.items()
    )
    rows = [(name, sizes[name], t.nbytes, t.error() or 0.0) for name, t in packed.items()]
    return weights.packed.totals(rows, len(tensors), before, after)


def described(path: str, rates: Sequence[float] = ()) -> list[dict[str, Any]]:
    """Return a description of each tensor in a file; packed ones are checked.

    With rates of bit errors, also how far they move weights, relative to the packed values.
    """
    with weights.open(path) as file:
        rows = [_row(name, file, rates) for name in file]
    if rates and not any("bits" in row for row in rows):
        raise ValueError("it holds no packed tensor, and only codes have bits to flip")
    return rows


def _row(name: str, file: weights.File, rates: Sequence[float]) -> dict[str, Any]:
    tensor = file[name]
    row: dict[str, Any] = {"name": name, "shape": list(tensor.shape), "dtype": str(tensor.dtype)}
    if isinstance(tensor, weights.Packed):
        try:
            tensor.joined()  # checks further codes
        except GradwireError as error:
            raise CorruptFileError(str(error), name) from None
        row |= {"bits": tensor.bits, "block": tensor.block, "error": tensor.error()}
        if rates:
            values = tensor.unpack()
            row["flip"] = {str(at): weights.flip(tensor, at).error(values) for at in rates}
    if (how := file.coding_of(name)) is not None:
        return row | {"coding": how, "nbytes": len(file.data(name))}
    return row | {"nbytes": tensor.nbytes}


def listed(path: str, rows: Sequence[dict[str, Any]]) -> str:
    """Return the result of `described` as a table."""
    rates = next((list(row["flip"]) for row in rows if "flip" in row), [])
    flips = (f"flip {rate}" for rate in rates)
    table = [("tensor", "shape", "dtype", "bits", "block", "bytes", "error", *flips)]
    for row in rows:
        errors = [row.get("error"), *(row.get("flip", {}).get(rate) for rate in rates)]
        table.append(
            (
                row["name"],
                " x ".join(map(str, row["shape"])) or "-",
                row["dtype"],
                str(row.get("bits", row.get("coding", ""))),
                str(row.get("block", "")),
                f"{row['nbytes']:,}",
                *("" if error is None else f"{error:.2%}" for error in errors),
            )
        )
    widths = [max(len(line[i]) for line in table) for i in range(len(table[0]))]
    lines = [
        "  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)) for line in table
    ]
    total = sum(row["nbytes"] for row in rows)
    packed = sum("bits" in row for row in rows)
    coded = f", {n} coded" if (n := sum("coding" in row for row in rows)) else ""
    head = f"{path}: {len(rows)} tensors, {packed} packed{coded}, {total:,} bytes"
    return "\n".join([head, *(f"  {line.rstrip()}" for line in lines)])


def _fail(message: str) -> int:
    print(f"gradwire pack: {message}", file=sys.stderr)
    return 1
