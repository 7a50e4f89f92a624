"""Process groups and sequence numbers of a trace's collectives."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from fsdpdoctor.importers.reader.trace_file import CommArgs, Int64s
from fsdpdoctor.schema import UNKNOWN, GroupSpec, Kind, distinct, element_bytes

BY_ORDER = "by order"
"""The group of collectives whose arguments name none: on every rank they are counted
in the order in which the host issued them, whatever their true groups."""

MAX_BYTES = 1 << 60
"""No collective moves an exbibyte: an argument that says so is damage."""

_RANKS = re.compile(r"\[\s*(?:\d+\s*(?:,\s*\d+\s*)*)?\]")


@dataclass(slots=True, kw_only=True)
class Groups:
    """The groups of one rank's trace, as they are met."""

    info: dict[str, object]  # the trace's distributedInfo
    specs: list[GroupSpec] = field(default_factory=list)
    _ids: dict[tuple[str, str | None, int | None], int] = field(default_factory=dict)

    def id_of(self, args: CommArgs | None) -> int:
        """The group that a collective ran in."""
        key: tuple[str, str | None, int | None] = (BY_ORDER, None, None)
        if args is not None and args.group is not None:
            key = (args.group, args.ranks, args.size)
        elif (only := self._only_group()) is not None:
            key = (only, None, None)
        found = self._ids.get(key)
        if found is None:
            found = self._ids[key] = len(self.specs)
            self.specs.append(self._spec(*key, args))
        return found

    def _spec(
        self, name: str, ranks: str | None, size: int | None, args: CommArgs | None
    ) -> GroupSpec:
        if name == BY_ORDER:
            return GroupSpec(name=BY_ORDER, ranks=(), size=UNKNOWN, role="by_order")
        config = self._config(name)
        members = _ranks(ranks) or _int_list(config.get("ranks"))
        known_size = size or len(members) or config.get("pg_size")
        description = (args.description if args else None) or config.get("pg_desc")
        return GroupSpec(
            name=name,
            ranks=members,
            size=known_size if isinstance(known_size, int) else UNKNOWN,
            backend=_text(self.info.get("backend")),
            role="world" if description == "default_pg" else _text(description),
        )

    def _only_group(self) -> str | None:
        """The name of the job's group, where it has only one."""
        configs = self.info.get("pg_config")
        if not isinstance(configs, list) or len(configs) != 1:
            return None
        config = configs[0]
        name = config.get("pg_name") if isinstance(config, dict) else None
        return name if isinstance(name, str) else None

    def _config(self, name: str) -> dict[str, object]:
        """What distributedInfo says of a group: its ranks, where arguments cut them."""
        configs = self.info.get("pg_config")
        for config in configs if isinstance(configs, list) else []:
            if isinstance(config, dict) and str(config.get("pg_name")) == name:
                return config
        return {}


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _ranks(text: str | None) -> tuple[int, ...]:
    """Ranks of a printed list; empty where it is absent or cut with dots."""
    if text is None or not _RANKS.fullmatch(text.strip()):
        return ()
    return tuple(int(rank) for rank in re.findall(r"\d+", text))


def _int_list(value: object) -> tuple[int, ...]:
    if isinstance(value, list) and all(isinstance(item, int) for item in value):
        return tuple(value)
    return ()


def sequence_numbers(group: Int64s, said: Int64s, issued_ns: Int64s) -> Int64s:
    """The number of each collective within its group.

    As the trace says it; where a group's collectives do not all have one, in the
    order of issue, which matches other ranks only if their captures began alike.
    """
    seq = said.copy()
    for one in distinct(group):
        rows = np.flatnonzero(group == one)
        if (said[rows] == UNKNOWN).any():
            rows = rows[np.argsort(issued_ns[rows], kind="stable")]
            seq[rows] = np.arange(len(rows))
    return seq


def collective_bytes(kind: Kind, args: CommArgs | None) -> int:
    """Bytes of a collective's large side, or UNKNOWN."""
    size = UNKNOWN if args is None else _large_side(kind, args)
    return size if size < MAX_BYTES else UNKNOWN


def _large_side(kind: Kind, args: CommArgs) -> int:
    sizes = [n for n in (args.in_nelems, args.out_nelems) if n is not None]
    per_element = element_bytes(args.dtype)
    if sizes and per_element is not None:
        if kind == Kind.ALL_GATHER and args.out_nelems is not None:
            return args.out_nelems * per_element
        if kind == Kind.REDUCE_SCATTER and args.in_nelems is not None:
            return args.in_nelems * per_element
        return max(sizes) * per_element
    tensors = tensor_bytes(args)
    if kind in (Kind.ALL_GATHER, Kind.REDUCE_SCATTER) and len(tensors) < 2:
        return UNKNOWN  # one side only, and not which
    return max(tensors, default=UNKNOWN)


def tensor_bytes(args: CommArgs) -> list[int]:
    """Bytes of each tensor among an operator's inputs, from its recorded shapes."""
    dims, types = _parsed(args.dims), _parsed(args.types)
    found: list[int] = []
    for shape, dtype in zip(dims, types, strict=False):
        per_element = element_bytes(dtype) if isinstance(dtype, str) else None
        numels = _int_list(shape)
        if per_element is not None and numels:
            found.append(math.prod(numels) * per_element)
    return found


def _parsed(text: str | None) -> Sequence[object]:
    if text is None:
        return ()
    try:
        value = json.loads(text)
    except ValueError:
        return ()
    return value if isinstance(value, list) else ()
