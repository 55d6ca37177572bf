"""Reports on compression: as text, JSON, a page for a browser, or TensorBoard scalars.

`gradwire.torch.ddp.Handle.report` returns a `Report`. This package imports no torch, so a
report that was saved on a cluster can be read and shown anywhere.
"""

from gradwire.report.figures import BucketTimes, ParameterReport
from gradwire.report.page import page
from gradwire.report.report import Report, Writer, add_scalars, read

__all__ = ["BucketTimes", "ParameterReport", "Report", "Writer", "add_scalars", "page", "read"]
