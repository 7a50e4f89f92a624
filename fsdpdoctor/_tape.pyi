from collections.abc import Callable
from typing import Any

VERSION: int

Row = tuple[int, int, int, int, Any, int, int]
"""Code, call, time in nanoseconds, facts, subject, and two numbers."""

class Tape:
    off: bool
    def __new__(
        cls,
        *,
        unit_of: Callable[[Any], Any],
        units_of_params: dict[int, Any],
        owner: object,
        indices: dict[Any, int],
        index_of: Callable[[Any], int | None],
        graph_task: Callable[[], int],
        states: tuple[Any, Any, Any, Any],
        unsharded: object,
        compiler: dict[str, Any],
        recording: object,
        kept: Callable[[Any], Any],
        tensor: type,
        modes: Callable[[], int],
        size_of: Callable[[Any], int | None],
    ) -> Tape: ...
    def take(self) -> list[Row]: ...
    def take_cost(self) -> int: ...
    def take_error(self) -> Exception | None: ...
    def __len__(self) -> int: ...

class Hook:
    def __new__(
        cls,
        tape: Tape,
        original: Callable[..., Any],
        code: int,
        shape: int,
        live: Callable[..., Any] | None = None,
        swapped: type | None = None,
        *,
        asks_modules: bool = False,
        asks_flags: bool = False,
        asks_size: bool = False,
        group_at: int = 0,
    ) -> Hook: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...
    def step_aside(self, there: Any) -> None: ...
    def beneath(self) -> Any: ...
