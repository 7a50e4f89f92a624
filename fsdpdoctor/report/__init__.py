"""Report: diagnose(run) -> Report; Report <-> JSON."""

from fsdpdoctor.report.diagnosis import diagnose, report_of
from fsdpdoctor.report.value import REPORT_VERSION, Report, decode, encode

__all__ = ["REPORT_VERSION", "Report", "decode", "diagnose", "encode", "report_of"]
