"""What every backend asks of the tensors that it is given, wherever they lie."""

import torch

__all__ = ["BYTES", "INPUTS", "OUTPUTS", "bump_version", "check", "check_out"]

INPUTS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
OUTPUTS = (torch.float32,)
BYTES = (torch.uint8,)


def check(tensor: torch.Tensor, name: str, dtypes: tuple[torch.dtype, ...]) -> None:
    """Raise a TypeError or ValueError unless a tensor is dense, contiguous and of such a dtype."""
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"{name} must be a torch.Tensor, got {type(tensor).__name__}")
    # These checks must not cost more than encoding a bias: `device.type` alone takes half a
    # microsecond, and only the message needs it.
    if tensor.layout is not torch.strided:
        raise TypeError(f"{name} must be dense, got layout {tensor.layout}; pass .to_dense()")
    if tensor.is_meta:
        raise TypeError(f"{name} must have values, got one on {tensor.device}")
    if tensor.dtype not in dtypes:
        expected = ", ".join(str(dtype) for dtype in dtypes)
        raise TypeError(f"{name} must have dtype {expected}, got {tensor.dtype}")
    if not tensor.is_contiguous():
        raise ValueError(
            f"{name} must be contiguous, got shape {tuple(tensor.shape)} with strides "
            f"{tensor.stride()}; pass {name}.contiguous()"
        )


def check_out(out: torch.Tensor, dtypes: tuple[torch.dtype, ...]) -> None:
    """Raise as `check`, or a ValueError for a tensor that must not be written to."""
    check(out, "out", dtypes)
    if out.requires_grad and torch.is_grad_enabled():
        raise ValueError(
            "out requires gradients, which cannot flow through a frame; "
            "pass out.detach(), or call under torch.no_grad()"
        )


def bump_version(out: torch.Tensor) -> None:
    """Count a write that torch has not seen.

    The new version lets torch detect that a tensor saved for backward was overwritten. Inference
    tensors have no version.
    """
    if not out.is_inference():
        torch.autograd.graph.increment_version(out)
