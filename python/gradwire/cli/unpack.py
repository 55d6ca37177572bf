"""``gradwire unpack IN OUT``: write packed weights as floats again."""

import argparse
import math
import os
import sys
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from gradwire import weights
from gradwire.cli.pack import add_size, most_of, path_of, write_parts
from gradwire.errors import GradwireError
from gradwire.weights import saving, shards
from gradwire.weights.file import Tensor
from gradwire.weights.header import bits_of, dtype_named

DTYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}


def main(argv: Sequence[str]) -> int:
    """Unpack a file; return 0, or 1 if a file is corrupt, cannot be read or cannot be written."""
    options = make_parser().parse_args(argv)
    try:
        with weights.open(options.source) as file:
            files = [*file.files.values()] if isinstance(file, weights.Shards) else [file]
            if all(each.keeps_original for each in files):
                if any((options.dtype, options.bits, options.max_shard_size)):
                    raise ValueError(
                        "it restores the original file exactly: leave out --dtype, --bits and "
                        "--max-shard-size"
                    )
                if isinstance(file, weights.Shards):
                    shards.Target(options.target, file).rewrite(file, saving.restore)
                else:
                    saving.restore(file, path_of(options.target, file))
                return 0
            most, sizes = most_of(options, file), _sizes(file, options.dtype)

            def save(path: str | os.PathLike[str], part: Mapping[str, int]) -> None:
                floats = Floats(file, options.dtype, options.bits, [*part])
                weights.save(path, floats, file.metadata)

            write_parts(options.target, file, most, shards.split(sizes, most, int), save)
    except OSError as error:
        print(f"gradwire unpack: {error.filename}: {error.strerror}", file=sys.stderr)
        return 1
    except (ValueError, ImportError, MemoryError, GradwireError) as error:
        print(f"gradwire unpack: {options.source}: {error}", file=sys.stderr)
        return 1
    return 0


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="gradwire unpack",
        description="Unpack the weights of a file to floats, and copy other tensors. What "
        "gradwire pack --lossless wrote is restored exactly.",
    )
    parser.add_argument(
        "source", metavar="IN", help="a file, folder or index that gradwire pack wrote"
    )
    parser.add_argument("target", metavar="OUT", help="the file, folder or index to write")
    parser.add_argument("--dtype", choices=DTYPES, help="of the floats (default: the original)")
    parser.add_argument("--bits", type=int, help="for weights with further bits: how many to use")
    add_size(parser)
    return parser


def _sizes(file: weights.File | weights.Shards, dtype: str | None) -> Iterator[tuple[str, int]]:
    """Yield names of tensors with their bytes as floats."""
    for name in file:
        if (kind := file.kind(name)) is None:
            packed = file[name]
            assert isinstance(packed, weights.Packed)
            kind = DTYPES[dtype or packed.dtype], packed.shape
        bits = bits_of(kind[0])
        yield name, len(file.data(name)) if bits is None else math.prod(kind[1]) * bits // 8


class Floats(Mapping[str, Tensor]):
    """Tensors of a file, the packed ones decoded on access, one at a time."""

    def __init__(
        self,
        file: weights.File | weights.Shards,
        dtype: str | None,
        bits: int | None,
        names: Sequence[str],
    ) -> None:
        self._file, self._dtype, self._bits, self._names = file, dtype, bits, names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __getitem__(self, name: str) -> Tensor:
        """Return a tensor as floats."""
        tensor = self._file[name]
        if not isinstance(tensor, weights.Packed):
            return tensor
        # Only of tensors that have further bits is there a choice.
        bits = self._bits if tensor.more else None
        try:
            values = tensor.unpack(bits=bits)
        except (ValueError, GradwireError) as error:
            raise ValueError(f"{name!r}: {error}") from None
        dtype = self._dtype or tensor.dtype
        with np.errstate(over="ignore"):
            narrow = values.astype(dtype_named(DTYPES[dtype]), copy=False)
        if not np.isfinite(narrow).all():
            largest = np.abs(values).max()
            raise ValueError(
                f"{name!r} has magnitudes up to {largest:.4g}, which {dtype} cannot hold: give "
                "another --dtype"
            )
        return narrow
