"""``gradwire pack IN OUT``: write the weights of a file in a few bits each."""

import argparse
import dataclasses
import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from gradwire import _rules, weights
from gradwire.cli.terminal import ProgressLine
from gradwire.errors import CorruptFileError, GradwireError
from gradwire.quantize import Affine
from gradwire.report.text import columns
from gradwire.weights import saving, shards
from gradwire.weights.file import Tensor
from gradwire.weights.pack import check_more, check_solving, fitting_block

LEAST = 4096  # entries of a tensor that is packed without a rule of its own

Rules = Mapping[str, Affine | None]

T = TypeVar("T")


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
    rows: list[tuple[str, int, int, float]] = []
    sizes: list[tuple[int, int]] = []
    try:
        with weights.open(options.source) as file, ProgressLine("gradwire pack") as progress:
            _rules.check(rules, file, "tensor")
            if strange := grams.keys() - file.keys():
                raise ValueError(f"the calibration is for another model: no {min(strange)!r} here")
            rules.setdefault("*", usual)

            def packed() -> Iterator[tuple[str, Tensor]]:
                for i, (name, tensor) in enumerate(file.items()):
                    progress(name, i / len(file))
                    quantize, before = _chosen(name, tensor, rules), tensor.nbytes
                    if quantize is not None and isinstance(tensor, np.ndarray):
                        tensor = weights.pack(tensor, quantize, more, name, gram=grams.get(name))
                        error = tensor.error() or 0.0
                        rows.append((name, math.prod(tensor.shape), tensor.nbytes, error))
                    sizes.append((before, tensor.nbytes))
                    yield name, tensor
                progress("writing", 1.0)

            def save(path: str | os.PathLike[str], part: Mapping[str, Tensor]) -> None:
                weights.save(path, part, file.metadata)

            most = most_of(options, file)
            parts = shards.split(packed(), most, lambda tensor: tensor.nbytes)
            write_parts(options.target, file, most, parts, save)
    except OSError as error:
        return _fail(f"{error.filename}: {error.strerror}")
    except (ValueError, TypeError, ImportError, MemoryError, GradwireError) as error:
        return _fail(f"{options.source}: {error}")
    target = options.target
    if os.path.isfile(target) or os.path.isdir(target) or not os.path.exists(target):  # no pipe
        before, after = sum(each for each, _ in sizes), sum(each for _, each in sizes)
        print(weights.packed.totals(rows, len(sizes), before, after))
    return 0


def most_of(options: argparse.Namespace, file: weights.File | weights.Shards) -> float:
    """Return the bytes of a shard at most: those of `--max-shard-size`; a file is not split."""
    if options.max_shard_size is None and isinstance(file, weights.File):
        return math.inf
    return shards.size_of(options.max_shard_size or "5GB")


def write_parts(
    target: str,
    file: weights.File | weights.Shards,
    most: float,
    parts: Iterable[Mapping[str, T]],
    save: Callable[[str | os.PathLike[str], Mapping[str, T]], None],
) -> None:
    """Write a file, or the shards of a checkpoint, each by ``save``."""
    if math.isinf(most):
        (part,) = parts
        save(path_of(target, file), part)
    else:
        shards.Target(target, file).write(parts, save)


def path_of(target: str, file: weights.File | weights.Shards) -> str:
    """Return the file to write: in a folder, it has the name of the source."""
    return os.path.join(target, os.path.basename(file.path)) if os.path.isdir(target) else target


def add_size(parser: argparse.ArgumentParser) -> None:
    """Add the option ``--max-shard-size``."""
    parser.add_argument(
        "--max-shard-size",
        metavar="SIZE",
        help="of the files of a sharded checkpoint, such as 500MB (default: 5GB)",
    )


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="gradwire pack",
        description="Pack the weights of a safetensors file into a few bits each: float tensors "
        f"with at least two dimensions and {LEAST} entries, and any whose full name a "
        "rule gives. The rest is copied.",
    )
    parser.add_argument(
        "source",
        metavar="IN",
        help="a safetensors file; of a sharded checkpoint, its folder or *.safetensors.index.json",
    )
    parser.add_argument(
        "target", metavar="OUT", help="the file, folder or index to write; it may be IN"
    )
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
        help="with --lossless: store only differences from FILE, which stays where it is, as seen "
        "from OUT",
    )
    parser.add_argument(
        "--rules",
        default="",
        metavar="NAME=BITS,...",
        help="bits for tensors by name, with * and ?; NAME=no copies them; the first match is used",
    )
    add_size(parser)
    return parser


def _beside_lossless(parser: argparse.ArgumentParser, options: argparse.Namespace) -> str:
    if not options.lossless:
        return "--base requires --lossless"
    others = ("bits", "block", "fit", "more", "calibration", "rules", "max_shard_size")
    given = [name for name in others if getattr(options, name) != parser.get_default(name)]
    return f"--lossless keeps every bit: leave out --{given[0].replace('_', '-')}" if given else ""


def _lossless(options: argparse.Namespace) -> int:
    try:
        with weights.open(options.source) as file:
            if changed := [
                name for name in file if file.kind(name) is None or file.coding_of(name)
            ]:
                raise ValueError(f"{changed[0]!r} is already packed; unpack the file first")
            before, count = _nbytes(file), len(file)
            if isinstance(file, weights.Shards):
                if options.base is not None:
                    raise ValueError("a sharded checkpoint has no base: give --base for its files")
                target = shards.Target(options.target, file)
                target.rewrite(file, _write_lossless)
                path = str(target.folder / f"{target.stem}{shards.INDEX}")
            else:
                path = path_of(options.target, file)
                _write_lossless(file, path, options.base)
        if not os.path.isfile(path):  # a pipe, into which the file itself goes
            return 0
        with weights.open(path) as made:
            after = _nbytes(made)
    except OSError as error:
        return _fail(f"{error.filename}: {error.strerror}")
    except (ValueError, GradwireError) as error:
        return _fail(f"{options.source}: {error}")
    share = f"{after / before:.1%}".replace("%", " %")
    print(f"{count} tensors, {before / 1e6:.2f} MB -> {after / 1e6:.2f} MB ({share}), exact")
    return 0


def _write_lossless(
    file: weights.File, path: str | os.PathLike[str], base: str | None = None
) -> None:
    sections = saving.sections_of(file)
    saving.write(path, sections, file.metadata, lossless=True, base=base, original=file.header)


def _nbytes(file: weights.File | weights.Shards) -> int:
    """Return the bytes of a file, or of all shards."""
    each = file.files.values() if isinstance(file, weights.Shards) else [file]
    return sum(os.path.getsize(one.path) for one in each)


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


def described(path: str) -> list[dict[str, Any]]:
    """Return a description of each tensor in a file; packed ones are checked."""
    with weights.open(path) as file:
        return [_row(name, file) for name in file]


def _row(name: str, file: weights.File | weights.Shards) -> dict[str, Any]:
    tensor = file[name]
    row: dict[str, Any] = {"name": name, "shape": list(tensor.shape), "dtype": str(tensor.dtype)}
    if isinstance(tensor, weights.Packed):
        try:
            tensor.joined()  # checks further codes
        except GradwireError as error:
            raise CorruptFileError(str(error), name) from None
        row |= {"bits": tensor.bits, "block": tensor.block, "error": tensor.error()}
    if (how := file.coding_of(name)) is not None:
        return row | {"coding": how, "nbytes": len(file.data(name))}
    return row | {"nbytes": tensor.nbytes}


def listed(path: str, rows: Sequence[dict[str, Any]]) -> str:
    """Return the result of `described` as a table."""
    table = {
        "tensor": [row["name"] for row in rows],
        "shape": [" x ".join(map(str, row["shape"])) or "-" for row in rows],
        "dtype": [row["dtype"] for row in rows],
        "bits": [str(row.get("bits", row.get("coding", ""))) for row in rows],
        "block": [str(row.get("block", "")) for row in rows],
        "bytes": [f"{row['nbytes']:,}" for row in rows],
        "error": ["" if row.get("error") is None else f"{row['error']:.2%}" for row in rows],
    }
    total = sum(row["nbytes"] for row in rows)
    packed = sum("bits" in row for row in rows)
    coded = f", {n} coded" if (n := sum("coding" in row for row in rows)) else ""
    head = f"{path}: {len(rows)} tensors, {packed} packed{coded}, {total:,} bytes"
    lines = columns(table, {"tensor", "shape", "dtype"})
    return "\n".join([head, *(f"  {line}" for line in lines)])


def _fail(message: str) -> int:
    print(f"gradwire pack: {message}", file=sys.stderr)
    return 1
