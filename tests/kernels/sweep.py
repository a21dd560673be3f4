"""A small sweep over every op, for NVIDIA's compute-sanitizer.

``compute-sanitizer --tool memcheck python -m tests.kernels.sweep``, and ``--tool racecheck``.
"""

from __future__ import annotations

import itertools
import sys

import torch

from .cases import OPS, Case, laid_out, optional, run, typical

#: Options and layouts to try an op with.
FEW = 2


def sweep(names: list[str]) -> list[Case]:
    """Typical calls of each op, and a few with other options and in other layouts."""
    few = [
        case
        for name in names or OPS
        for kind in (optional, laid_out)
        for case in itertools.islice(kind(OPS[name]), FEW)
    ]
    return [*(case for name in names or OPS for case in typical(OPS[name])), *few]


if __name__ == "__main__":
    cases = sweep(sys.argv[1:])
    for case in cases:
        run(case, "cuda")
    torch.cuda.synchronize()
    print(f"{len(cases)} calls, forward and backward")
