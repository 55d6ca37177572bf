"""Write what each preset and memory keeps, in bytes per entry, as a table for the documentation.

python -m benches.compare.state_bytes [--into docs/memory.md]

Every figure is that of a state, divided by its entries: none is computed from options.
"""

import argparse
import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path

import gradwire
from benches.harness import pages
from gradwire.memory import MEMORIES
from gradwire.presets import PRESETS

SHAPE = (64, 1024)
"""Of a matrix: what depends on a tensor's shape has one to depend on."""

STORAGE: dict[str, dict[str, object]] = {
    "default": {},
    "`low_memory=True`": {"low_memory": True},
    '`dtype="bfloat16"`': {"dtype": "bfloat16"},
    "both": {"low_memory": True, "dtype": "bfloat16"},
}
"""The columns: options of a memory that change how it is stored."""


def cells(codec: gradwire.Codec) -> Iterator[str]:
    """Yield the bytes per entry with the codec's memory stored in each way that it can be."""
    names = {field.name for field in dataclasses.fields(codec.memory)}
    numel = SHAPE[0] * SHAPE[1]
    for options in STORAGE.values():
        cell = ""
        with contextlib.suppress(ValueError):
            if options.keys() <= names:
                memory = dataclasses.replace(codec.memory, **options)
                codec.exchange.check_memory(memory)
                stored = dataclasses.replace(codec, memory=memory).for_shape(SHAPE)
                cell = f"{stored.init_state(numel).nbytes / numel:g}"
        yield cell


def table() -> str:
    """Return the table: memories first, then presets."""
    rows = [("any", gradwire.topk(ratio=0.01, memory=memory())) for memory in MEMORIES]
    rows += [(f"`{each.call}`", each.build(**each.example)) for each in PRESETS.values()]
    shown = [[title, f"`{type(codec.memory).__name__}`", *cells(codec)] for title, codec in rows]
    return pages.table(["preset", "memory", *STORAGE], shown, texts=2)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--into", type=Path, help="a page that has the block")
    into = parser.parse_args(arguments).into
    if into is None:
        print(table())
    else:
        pages.replace(into, "bytes per entry", table())


if __name__ == "__main__":
    main()
