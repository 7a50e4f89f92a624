COLUMNS: int
OP_COLUMNS: int
VERSION: int

_Rows = tuple[int, tuple[bytearray, ...]]

class Scanner:
    def __init__(
        self,
        categories: dict[str, int],
        operator: int,
        annotation: int,
        kept_operators: tuple[str, ...],
        /,
    ) -> None: ...
    def scan(
        self, chunk: bytes, /
    ) -> tuple[int, list[bytes], _Rows, _Rows, list[int], dict[str, int]] | None: ...
