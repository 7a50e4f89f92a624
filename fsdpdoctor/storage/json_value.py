"""What JSON says and nothing else: values that are msgspec's Structs, frozen and by
keyword as every value here. It writes and reads them, and to declare one takes a
thirtieth of what a dataclass does: each command imports some thirty.
"""

from typing import TYPE_CHECKING

from msgspec.structs import asdict

if TYPE_CHECKING:  # the same to a type checker, which knows a dataclass's names
    from dataclasses import replace
else:
    from msgspec.structs import replace

__all__ = ["asdict", "replace"]
