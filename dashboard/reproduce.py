"""The command line that measures an incident again."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence


def command(good: str, bad: str, benchmarks: Sequence[str]) -> str:
    """One shell command: asv measures both commits, then compares them.

    ``benchmarks`` are asv's names; with none, everything is measured. Every word is quoted but the
    name of the machine, without which asv compares nothing where results of several are recorded.
    """
    bench = [f"--bench={'|'.join(f'^{re.escape(name)}' for name in benchmarks)}"] * bool(benchmarks)
    steps = (
        "asv machine --yes",
        shlex.join(["asv", "run", *bench, f"{good}^!"]),
        shlex.join(["asv", "run", *bench, f"{bad}^!"]),
        f'asv compare --machine "$(uname -n)" {shlex.join([good, bad])}',
    )
    return " && \\\n".join(steps)
