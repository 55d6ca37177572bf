"""Write what each preset and memory keeps, in bytes per entry, as a table for the documentation.

python -m benches.compare.state_bytes [--into docs/memory.md]

Every figure is that of a state, divided by its entries: none is computed from options.
"""

import argparse
import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path

import gradwire
from benches.harness import pages
from gradwire.memory import MEMORIES, Memory
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


def bytes_per_entry(codec: gradwire.Codec) -> float:
    """Return the bytes that a state of the codec keeps per entry."""
    numel = SHAPE[0] * SHAPE[1]
    return codec.for_shape(SHAPE).init_state(numel).nbytes / numel


def stored(codec: gradwire.Codec) -> Iterator[Memory | None]:
    """Return a codec's memory stored in each of the ways, None for those that it cannot have."""
    names = {field.name for field in dataclasses.fields(codec.memory)}
    for options in STORAGE.values():
        memory = None
        if options.keys() <= names:
            memory = dataclasses.replace(codec.memory, **options)
            try:
                codec.exchange.check_memory(memory)
            except ValueError:
                memory = None
        yield memory


def table() -> str:
    """Return the table: memories first, then presets."""
    rows = [("any", gradwire.topk(ratio=0.01, memory=memory())) for memory in MEMORIES]
    rows += [(f"`{each.call}`", each.build(**each.example)) for each in PRESETS.values()]
    cells = [
        [title, f"`{type(codec.memory).__name__}`", *(_cell(codec, each) for each in stored(codec))]
        for title, codec in rows
    ]
    return pages.table(["preset", "memory", *STORAGE], cells, texts=2)


def _cell(codec: gradwire.Codec, memory: Memory | None) -> str:
    if memory is None:
        return ""
    return f"{bytes_per_entry(dataclasses.replace(codec, memory=memory)):g}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table, or write it into a page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--into", type=Path, help="a page that has the block")
    into = parser.parse_args(arguments).into
    if into is None:
        print(table())
    else:
        pages.replace(into, "bytes per entry", table())


if __name__ == "__main__":
    main()
