COLUMNS: int

class Scanner:
    def __init__(self, categories: dict[str, int], /) -> None: ...
    def scan(
        self, chunk: bytes, /
    ) -> tuple[int, list[bytes], tuple[bytes, ...]] | None: ...
