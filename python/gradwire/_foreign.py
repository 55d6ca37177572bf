"""Names for what people take for a safetensors file, and what to do with it."""

_BEGINNINGS = (
    (b"\x80", "a pickle", "convert it with safetensors.torch.save_file"),
    (b"GGUF", "a GGUF file", "take the safetensors files that it was made from"),
    (b"\x89HDF\r\n", "an HDF5 file", "convert it with safetensors.numpy.save_file"),
    (b"\x93NUMPY", "an array of numpy.save", "save it by gradwire.weights.save"),
    (b"version https://git-lfs", "a pointer of git-lfs", "fetch the file with git lfs pull"),
    (b"GWF", "a single frame", "print it by gradwire inspect, or decode it by gradwire.Frame"),
    (b"\x1f\x8b", "a gzip archive", "unpack it first"),
    (b"\x28\xb5\x2f\xfd", "a zstd archive", "unpack it first"),
)


def word_for(head: bytes) -> str | None:
    """Return what a file that begins with these bytes is, and what to do with it, if it is known.

    ``head`` is at least 300 bytes, if there are as many.
    """
    for beginning, what, advice in _BEGINNINGS:
        if head.startswith(beginning):
            return f"{what}: {advice}"
    if head.startswith(b"PK\x03\x04"):
        # The name of the first file in the archive stands at byte 30: "archive/data.pkl".
        if b".npy" in head[30:286]:
            return "an archive of numpy.savez: save its arrays by gradwire.weights.save"
        return "a pickle of torch.save: convert it with safetensors.torch.save_file"
    if head.lstrip()[:1] in (b"{", b"["):
        return "JSON: the index of a sharded checkpoint is named *.safetensors.index.json"
    if head.lstrip()[:1] == b"<":
        return "a page of HTML, as a failed download leaves it: download the file again"
    # Field 1 of a protocol buffer, a version, then a string, a number or the graph.
    if (
        len(head) > 2
        and head[0] == 8
        and head[1] < 64
        and head[2] in (0x12, 0x1A, 0x28, 0x3A, 0x42)
    ):
        return "an ONNX model: take the safetensors files that it was made from"
    if head[257:262] == b"ustar":
        return "a tar archive: unpack it first"
    return None
