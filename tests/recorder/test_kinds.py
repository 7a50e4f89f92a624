"""The members that hooks use are those of the schema, under their own names."""

from __future__ import annotations

from enum import IntEnum
from types import ModuleType

import pytest

from fsdpdoctor.recorder import kinds, lanes, phases
from fsdpdoctor.schema import Kind, Lane, Phase


@pytest.mark.parametrize(
    ("module", "of"), [(kinds, Kind), (lanes, Lane), (phases, Phase)]
)
def test_each_is_the_member_of_its_name(module: ModuleType, of: type[IntEnum]) -> None:
    """A wrong line here would be a wrong row in every record."""
    names = [name for name in vars(module) if name.isupper()]

    assert len(names) >= 4
    assert {name: getattr(module, name) for name in names} == {
        name: of[name] for name in names
    }
