"""What an exchange that sums values on the wire requires of the quantizer."""

from gradwire.quantize import BFloat16, Float16, Float32, Quantizer

__all__ = ["check_summable"]


def check_summable(exchange: str, quantize: Quantizer) -> None:
    """Refuse quantizers whose codes cannot be summed."""
    if isinstance(quantize, (Float32, BFloat16)):
        return
    if isinstance(quantize, Float16):
        if not quantize.scaled:
            return
        raise ValueError(
            f"{exchange} sums values on the wire, but Float16() scales the values of each rank "
            "differently; pass quantize=gradwire.quantize.Float16(scaled=False) or BFloat16()"
        )
    raise ValueError(
        f"{exchange} sums values on the wire, but codes of {type(quantize).__name__} cannot be "
        "summed; use quantize=Float32(), BFloat16() or Float16(scaled=False), or "
        "exchange=gradwire.exchange.AllGather()"
    )
