"""How many bytes an element takes, however its dtype is written."""

from __future__ import annotations

ITEMSIZE = {
    "float64": 8,
    "float32": 4,
    "bfloat16": 2,
    "float16": 2,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "int64": 8,
    "int32": 4,
    "int16": 2,
    "int8": 1,
    "uint8": 1,
    "bool": 1,
}
"""Bytes of one element, by torch's name of a dtype that parameters may have."""

_ONLY_IN_TRACES = {
    "float8_e4m3fnuz": 1,
    "float8_e5m2fnuz": 1,
    "float8_e8m0fnu": 1,
    "complex64": 8,
    "complex128": 16,
}

_ALIASES = {
    "byte": "uint8",
    "unsigned char": "uint8",
    "char": "int8",
    "signed char": "int8",
    "short": "int16",
    "int": "int32",
    "long": "int64",
    "long int": "int64",
    "half": "float16",
    "c10::half": "float16",
    "c10::bfloat16": "bfloat16",
    "float": "float32",
    "double": "float64",
    "complexfloat": "complex64",
    "c10::complex<float>": "complex64",
    "complexdouble": "complex128",
}
"""The ways in which profilers and flight recorders write a dtype, in lower case."""


def element_bytes(dtype: str | None) -> int | None:
    """Bytes of one element, by whatever names its dtype; None: no name known here."""
    if dtype is None:
        return None
    name = torch_name(dtype)
    return ITEMSIZE.get(name) or _ONLY_IN_TRACES.get(name)


def torch_name(dtype: str) -> str:
    """Torch's name of a dtype, as far as it is known here."""
    name = dtype.strip().lower()
    return _ALIASES.get(name, name)
