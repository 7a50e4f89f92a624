"""Arrow arrays of rows, dataclasses or Structs: `report.row_table` asks for them."""

from __future__ import annotations

import json
import types
from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, Literal, Union, get_args, get_origin
from typing import get_type_hints as hints_of

import msgspec
import nanoarrow as na
import numpy as np

_PRIMITIVES = {int: na.int64(), float: na.float64(), bool: na.bool_()}


def columns_of(row: type, rows: Sequence[Any]) -> dict[str, Any]:
    """An array for each field of a row, in order; of a nested one, for each of its
    fields. Arrays are as long as there are rows.
    """
    return dict(_columns(row, rows))


def stream_of(columns: dict[str, Any], rows: int, requested_schema: object) -> object:
    """The capsule of a stream that holds them as one table."""
    schema = na.struct({name: array.schema for name, array in columns.items()})
    table = na.c_array_from_buffers(
        schema, rows, [None], children=list(columns.values())
    )
    stream: object = na.c_array_stream(table).__arrow_c_stream__(requested_schema)
    return stream


def _columns(row: type, rows: Sequence[Any], path: str = "") -> Iterator[Any]:
    """Names and arrays of a row's fields; those of nested ones by their path."""
    hints = hints_of(row)
    for attribute, in_json in _fields(row):
        name = f"{path}{in_json}"
        kind = _without_none(hints[attribute])
        values = [None if r is None else getattr(r, attribute) for r in rows]
        if isinstance(kind, type) and (is_dataclass(kind) or _is_struct(kind)):
            yield from _columns(kind, values, f"{name}.")
        else:
            yield name, _array(kind, values)


def _is_struct(kind: type) -> bool:
    return issubclass(kind, msgspec.Struct)


def _fields(row: type) -> list[tuple[str, str]]:
    """Its attributes, each with its name in JSON."""
    if is_dataclass(row):
        return [(field.name, field.name) for field in fields(row)]
    return [(field.name, field.encode_name) for field in msgspec.structs.fields(row)]


def _without_none(hint: Any) -> Any:
    """The one type of a value that is there; None where there are several."""
    if get_origin(hint) not in (Union, types.UnionType):
        return hint
    (kind, *more) = [each for each in get_args(hint) if each is not types.NoneType]
    return None if more else kind


def _array(kind: Any, values: Sequence[Any]) -> Any:
    if kind in _PRIMITIVES:
        return na.c_array(values, _PRIMITIVES[kind])
    if kind is str or get_origin(kind) is Literal:
        return _strings(values)
    if get_origin(kind) is tuple and (item := get_args(kind)[0]) in (int, str):
        return _lists(item, values)
    texts = [None if v is None else json.dumps(msgspec.to_builtins(v)) for v in values]
    return _strings(texts)


def _strings(values: Sequence[str | None]) -> Any:
    # A name from a foreign file may hold lone surrogates, which UTF-8 cannot.
    clean = [
        None if v is None else v.encode("utf-8", "replace").decode() for v in values
    ]
    return na.c_array(clean, na.string())


def _lists(item: type, values: Sequence[tuple[Any, ...] | None]) -> Any:
    items = _array(item, [each for value in values for each in value or ()])
    ends = np.cumsum([0, *(len(value or ()) for value in values)], dtype=np.int32)
    known = np.array([value is not None for value in values], dtype=np.bool_)
    validity = None if known.all() else np.packbits(known, bitorder="little")
    return na.c_array_from_buffers(
        na.list_(items.schema), len(values), [validity, ends], children=[items]
    )
