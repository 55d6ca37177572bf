"""``gradwire unpack IN OUT``: write packed weights as floats again."""

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from gradwire import weights
from gradwire.errors import GradwireError
from gradwire.weights import saving
from gradwire.weights.file import Tensor
from gradwire.weights.header import dtype_named

DTYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}


def main(argv: Sequence[str]) -> int:
    """Unpack a file; return 0, or 1 if a file is corrupt, cannot be read or cannot be written."""
    options = make_parser().parse_args(argv)
    try:
        with weights.open(options.source) as file:
            if file.keeps_original:
                if options.dtype is not None or options.bits is not None:
                    raise ValueError(
                        "it restores the original file exactly: leave out --dtype and --bits"
                    )
                saving.restore(file, options.target)
                return 0
            floats = Floats(file, options.dtype, options.bits)
            weights.save(options.target, floats, file.metadata)
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
    parser.add_argument("source", metavar="IN", help="a file that gradwire pack wrote")
    parser.add_argument("target", metavar="OUT", help="the safetensors file to write")
    parser.add_argument("--dtype", choices=DTYPES, help="of the floats (default: the original)")
    parser.add_argument("--bits", type=int, help="for weights with further bits: how many to use")
    return parser


class Floats(Mapping[str, Tensor]):
    """A file whose packed tensors are decoded on access, one at a time."""

    def __init__(self, file: weights.File, dtype: str | None, bits: int | None) -> None:
        self._file, self._dtype, self._bits = file, dtype, bits

    def __iter__(self) -> Iterator[str]:
        return iter(self._file)

    def __len__(self) -> int:
        return len(self._file)

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
