COLUMNS: int
VERSION: int

class Scanner:
    def __init__(self, categories: dict[str, int], /) -> None: ...
    def scan(
        self, chunk: bytes, /
    ) -> tuple[int, list[bytes], tuple[bytes, ...], dict[str, int]] | None: ...
