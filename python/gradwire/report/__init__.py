"""Reports on compression: as text, JSON, a page for a browser, or TensorBoard scalars.

`gradwire.torch.ddp.Handle.report` returns a `Report`. This package imports no torch, so a
report that was saved on a cluster can be read and shown anywhere.
"""

from typing import TYPE_CHECKING, Any

from gradwire.report.figures import BucketTimes, ParameterReport
from gradwire.report.report import Report, Writer, add_scalars, read

if TYPE_CHECKING:
    from gradwire.report.webpage import page

__all__ = ["BucketTimes", "ParameterReport", "Report", "Writer", "add_scalars", "page", "read"]


def __getattr__(name: str) -> Any:
    if name == "page":  # training never shows one
        from gradwire.report.webpage import page

        return page
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
