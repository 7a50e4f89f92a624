"""Which of the two decoders reads a chunk: C where it was built, else msgspec."""

from __future__ import annotations

from fsdpdoctor.importers.reader.decode_c import c_decoder
from fsdpdoctor.importers.reader.decode_json import decode_chunk
from fsdpdoctor.importers.reader.read_trace import Decode


def default_decoder(*, every_op: bool = False) -> Decode:
    """The fastest decoder of this installation, for one file. Operators of which
    `scan_file` asks only where they ran it may leave out, unless `every_op`.
    """
    return c_decoder(every_op=every_op) or decode_chunk
