"""Two runs beside each other: settings, then figures, then what may be said of them."""

from fsdpdoctor.report.comparison.difference import Difference, Scalar
from fsdpdoctor.report.comparison.runs import (
    ComparedFinding,
    Comparison,
    Subject,
    compare,
    encode_comparisons,
)

__all__ = [
    "ComparedFinding",
    "Comparison",
    "Difference",
    "Scalar",
    "Subject",
    "compare",
    "encode_comparisons",
]
