"""Parts of the grid, for several GPUs or runners: a workload is always in the same part."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Shard:
    """Part ``index`` of ``count``, counted from 1."""

    index: int = 1
    count: int = 1

    def takes(self, key: str) -> bool:
        """Whether the workload ``key`` is in this part, whatever else is in the grid."""
        number = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big")
        return number % self.count == self.index - 1


def parse(text: str) -> Shard:
    """``"2/4"``: the second of four. Raises ValueError for anything else."""
    found = re.fullmatch(r"(\d{1,4})/(\d{1,4})", text.strip())
    index, count = map(int, found.groups()) if found else (0, 0)
    if not 1 <= index <= count:
        raise ValueError(f"shard {text!r}: expected i/n with 1 <= i <= n, such as 2/4")
    return Shard(index, count)
