"""What an exchange that adds values up on the wire needs of the other parts of a codec."""

from gradwire.quantize import BFloat16, Float16, Float32, Quantizer

__all__ = ["check_summable"]


def check_summable(exchange: str, quantize: Quantizer) -> None:
    """Refuse values that cannot be added up as they are coded."""
    if isinstance(quantize, (Float32, BFloat16)):
        return
    if isinstance(quantize, Float16):
        if not quantize.scaled:
            return
        raise ValueError(
            f"{exchange} adds values up on the wire, and Float16() scales those of each rank by a "
            "factor of its own; pass quantize=gradwire.quantize.Float16(scaled=False) or BFloat16()"
        )
    raise ValueError(
        f"{exchange} adds values up on the wire, and codes of {type(quantize).__name__} cannot be "
        "added; quantize by Float32(), BFloat16() or Float16(scaled=False), or exchange by "
        "gradwire.exchange.AllGather()"
    )
