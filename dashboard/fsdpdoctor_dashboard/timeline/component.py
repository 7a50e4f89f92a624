"""The timeline as a Dash component, written by hand: its JavaScript is in timeline/."""

from __future__ import annotations

from dash.development.base_component import Component


class Timeline(Component):
    """A run's timeline, or several runs' under each other.

    Give `runs` as [{"id": ..., "offset": ns, "ranks": [...]}] (all ranks where none
    are named) and `base`, the app's prefix. `start` = {"t0", "t1"} is what is seen
    first; with `urlState` False the view stays out of the address. Dash reads back
    `view`, `selected` and `area`; `jump` = {"run", "rank", "t0", "t1"} moves the view.
    """

    _namespace = "fsdpdoctor_dashboard"
    _type = "Timeline"
    _children_props: list[str] = []  # noqa: RUF012  # Dash declares them so
    _base_nodes: list[str] = ["children"]  # noqa: RUF012
    _valid_wildcard_attributes: list[str] = []  # noqa: RUF012
    _prop_names: list[str] = [  # noqa: RUF012
        "id",
        "runs",
        "base",
        "theme",
        "perfetto",
        "jump",
        "view",
        "selected",
        "area",
        "urlState",
        "start",
    ]
    available_properties = _prop_names
    available_wildcard_properties: list[str] = []  # noqa: RUF012

    def __init__(self, **given: object) -> None:
        super().__init__(**given)  # type: ignore[no-untyped-call]
