"""The report's own JSON, as it is."""

from fsdpdoctor.report.value import encode as render

__all__ = ["render"]
