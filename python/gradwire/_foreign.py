"""Names for what people take for a safetensors file, and what to do with it."""

_BEGINNINGS = (
    (b"\x80", "a pickle: convert it with safetensors.torch.save_file"),
    (b"PK\x03\x04", "a pickle of torch.save: convert it with safetensors.torch.save_file"),
    (b"GGUF", "a GGUF file: take the safetensors files that it was made from"),
    (b"version https://git-lfs", "a pointer of git-lfs: fetch the file with git lfs pull"),
    (b"{", "JSON: the index of a sharded checkpoint is named *.safetensors.index.json"),
    (b"<", "a page of HTML, as a failed download leaves it: download the file again"),
)


def word_for(head: bytes) -> str | None:
    """Return what begins with these bytes, if it is known, and what to do with it."""
    begun = head.lstrip(b" \n")
    return next((word for beginning, word in _BEGINNINGS if begun.startswith(beginning)), None)
