"""What a running model may be told between two steps without changing a number.

Each of FSDPModule's methods for it sets an attribute, of a unit's state or of its
parameter groups, which FSDP2 reads when it next comes by. Set here are the same
attributes: so they can be read first, and put back to the very object that was there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from fsdpdoctor.errors import PlanError
from fsdpdoctor.plan_file import Settings, module_names
from fsdpdoctor.recorder.fsdp2 import internals

CANNOT_CHANGE = (
    *("groups", "mesh", "param_dtype", "reduce_dtype", "accumulation"),
    *("separate_reduce_scatter_group",),
)
"""Of a plan's settings. Other units, numbers or process groups need a new start."""


class Place(NamedTuple):
    """An attribute of an object of FSDP2's."""

    owner: Any
    name: str

    @property
    def value(self) -> Any:
        return getattr(self.owner, self.name)

    def holds(self, value: Any) -> bool:
        """Whether it is set to that now; lists by what is in them."""
        there = self.value
        if isinstance(there, list) and isinstance(value, list):
            return list(map(id, there)) == list(map(id, value))
        return there is value or bool(there == value)


class Change(NamedTuple):
    """A place, and what to set there."""

    place: Place
    value: Any


def put(changes: Sequence[Change]) -> None:
    """Set them all. What a signal handler raises meanwhile passes when all are set."""
    try:
        _put(changes)
    except BaseException:
        _put(changes)
        raise


def _put(changes: Sequence[Change]) -> None:
    for place, value in changes:
        setattr(place.owner, place.name, value)


def unlike(changes: Sequence[Change]) -> str | None:
    """The name of the first place that does not hold what it was set to."""
    return next((p.name for p, value in changes if not p.holds(value)), None)


def changes_of(
    settings: Settings, root: Any, states: Mapping[frozenset[str], Any]
) -> list[Change]:
    """What a plan's settings come to for a running model, of whose units `states` are
    the states by names. Raises PlanError where it asks for more than may be told.
    """
    for name in CANNOT_CHANGE:
        if getattr(settings, name) is not None:
            raise PlanError(f"{name} cannot be changed in a running job")
    by_name = {name: state for names, state in states.items() for name in names}
    found = list(_of_units(settings, by_name))
    groups = [g for s in internals.all_states(root) for g in internals.groups_of(s)]
    if settings.unshard_async_op is not None:
        found += _of_all(groups, "unshard_async_op", settings.unshard_async_op)
    if settings.max_input_buffers is not None:
        # The second of them is what FSDP2 reads, once it is initialised.
        name, many = "reduce_scatter_max_input_buffers", settings.max_input_buffers
        found += _of_all([*groups, root._comm_ctx], name, many)
    return found


def _of_all(owners: Sequence[Any], name: str, value: Any) -> Iterator[Change]:
    for owner in owners:
        if not hasattr(owner, name):
            raise PlanError(f"this torch has no {name}")
        yield Change(Place(owner, name), value)


def _of_units(settings: Settings, states: Mapping[str, Any]) -> Iterator[Change]:
    def state(unit: str) -> Any:
        try:
            return states[module_names(unit)[0]]
        except KeyError:
            raise PlanError(f"{unit} is no unit of this model") from None

    for unit, said in settings.units.items():
        one = state(unit)
        if (reshard := said.reshard_after_forward) is not None:
            yield from _resharding(unit, one, reshard)
        for name, targets in (
            ("_states_to_forward_prefetch", said.forward_prefetch),
            ("_states_to_backward_prefetch", said.backward_prefetch),
        ):
            if targets is not None:
                # Several groups of one module are one target.
                there = dict.fromkeys(map(state, targets))
                yield Change(Place(one, name), [t for t in there if t is not one])


def _resharding(unit: str, state: Any, reshard: bool | int) -> Iterator[Change]:
    for group in internals.groups_of(state):
        now = group.post_forward_mesh_info
        # Between passes a unit may lie on the smaller group, and is gathered from it.
        # Nothing here sets a smaller group, so what is there is the script's.
        on_fewer = now is not None and now != group.mesh_info
        if on_fewer is (type(reshard) is bool):
            raise PlanError(f"{unit}: another number of ranks to reshard to needs one")
        if not on_fewer:
            # Whatever is set now: ranks prepare this at different moments.
            place = Place(group, "post_forward_mesh_info")
            yield Change(place, group.mesh_info if reshard else None)


def fingerprint(changes: Sequence[Change], root: Any) -> str:
    """Equal on ranks whose models are told the same."""
    states = internals.all_states(root)
    numbers = {id(state): at for at, state in enumerate(states)}
    for at, state in enumerate(states):
        groups = enumerate(internals.groups_of(state))
        numbers |= {id(group): 1000 * (at + 1) + nth for nth, group in groups}
    said = [
        (numbers.get(id(place.owner)), place.name, _value(value, numbers))
        for place, value in changes
    ]
    return hashlib.sha256(repr(said).encode()).hexdigest()[:16]


def _value(value: Any, numbers: Mapping[int, int]) -> object:
    if isinstance(value, list):
        return [numbers.get(id(one)) for one in value]
    return value if isinstance(value, int) else value is None


def settle(changes: Sequence[Change]) -> None:
    """Have no unit gathered that would not be without these changes: an optimizer is
    about to change its parameters, and what was gathered would be of before.
    """
    for place, value in changes:
        if place.name == "post_forward_mesh_info" and value is None:
            _let_go(place.owner)
        elif place.name.startswith("_states_to_"):
            for state in value:
                for group in internals.groups_of(state):
                    if group._all_gather_result is not None:
                        _let_go(group)


def _let_go(group: Any) -> None:
    """As FSDP2 does at a backward's end, of a unit that backward had no use for."""
    if group._all_gather_result is not None:
        group.wait_for_unshard()
    if internals.is_unsharded(group):
        group._to_sharded()
