"""How a row is spread over threads. Chosen by rule, so that a shape always gets one kernel."""

from __future__ import annotations

#: Longest row that one CTA holds in registers: 1,024 threads of 32 elements.
MAX_COLUMNS = 32_768


def row_threads(columns: int) -> int:
    """Threads for a row: a power of two, about 16 elements each, at most 1,024."""
    wanted = -(-columns // 16)
    return max(32, min(1024, 1 << (wanted - 1).bit_length()))
