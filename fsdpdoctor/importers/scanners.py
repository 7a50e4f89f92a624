"""Which of the two decoders reads a chunk: C where it was built, else msgspec."""

from __future__ import annotations

from fsdpdoctor.importers.c_scan import c_decoder
from fsdpdoctor.importers.json_scan import decode_chunk
from fsdpdoctor.importers.scan import Decode


def default_decoder() -> Decode:
    """The fastest decoder of this installation, for one file."""
    return c_decoder() or decode_chunk
