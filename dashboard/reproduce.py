"""The command line that measures an incident again."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence


def command(good: str, bad: str, benchmarks: Sequence[str]) -> str:
    """One shell command: asv measures both commits, then compares them.

    ``benchmarks`` are asv's names; with none, everything is measured. Every word is quoted.
    """
    bench = [f"--bench={'|'.join(f'^{re.escape(name)}' for name in benchmarks)}"] * bool(benchmarks)
    steps = (
        ["asv", "run", *bench, f"{good}^!"],
        ["asv", "run", *bench, f"{bad}^!"],
        ["asv", "compare", good, bad],
    )
    return " && \\\n".join(shlex.join(step) for step in steps)
