COLUMNS: int
VERSION: int

class Scanner:
    def __init__(self, categories: dict[str, int], /) -> None: ...
    def scan(
        self, chunk: bytes, /
    ) -> tuple[int, int, list[bytes], tuple[bytearray, ...], dict[str, int]] | None: ...
