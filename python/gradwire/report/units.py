"""Figures as text, with their units."""

__all__ = ["milliseconds", "norm", "ratio", "size"]


def size(nbytes: float) -> str:
    """Return bytes in B, kB, MB or GB, with four digits."""
    for unit in ("B", "kB", "MB"):
        if nbytes < 1000:
            return f"{nbytes:.4g} {unit}"
        nbytes /= 1000
    return f"{nbytes:.4g} GB"


def ratio(value: float | None) -> str:
    """Return a ratio with three decimals, or a dash for none."""
    return "-" if value is None else f"{value:.3f}"


def norm(value: float | None) -> str:
    """Return a norm with four digits, or a dash for none."""
    return "-" if value is None else f"{value:.4g}"


def milliseconds(value: float) -> str:
    """Return milliseconds with their unit: three digits, at most three decimals."""
    return f"{value:.3g} ms" if abs(value) < 1000 else f"{value:.0f} ms"
