"""What multiplies packed weights on a device."""

import torch

from gradwire.torch.backends import BackendInUse


def backend(device: torch.device | str | int) -> BackendInUse:
    """Return what reads packed weights on a device, and why.

    Parameters
    ----------
    device : torch.device, str or int
        As `torch.device` takes it. The device need not be there.

    Returns
    -------
    BackendInUse
        Named ``"cpu"`` where packed bytes are read in place, and ``"decode"`` where each call
        decodes them on the device, and torch multiplies.

    Raises
    ------
    ValueError
        Tensors of the device ``"meta"`` have no values.
    RuntimeError
        torch knows no such device.
    """
    kind = torch.device(device).type
    if kind == "meta":
        raise ValueError("tensors on meta have no values to multiply")
    if kind == "cpu":
        return BackendInUse("cpu", "packed weights are read in place")
    return BackendInUse(
        "decode",
        f"gradwire has no kernel for packed weights on {kind}: each call decodes them there, and "
        "torch multiplies",
    )
