"""Reports on compression: as text, JSON, or TensorBoard scalars.

`gradwire.torch.ddp.Handle.report` returns a `Report`.
"""

from gradwire.report.report import ParameterReport, Report, Writer, add_scalars

__all__ = ["ParameterReport", "Report", "Writer", "add_scalars"]
