"""Writes docs/kernels.md from the registry: ``python -m asv_bench.workloads.document``."""

from __future__ import annotations

from pathlib import Path

from bandwatch.measure.workload import Op

from . import OPS, describe

PAGE = Path(__file__).parents[2] / "docs" / "kernels.md"

_HEAD = """\
# Kernels

Written by `python -m asv_bench.workloads.document` from the descriptions in
[asv_bench/workloads/](../asv_bench/workloads/), from which tests and benchmarks are generated, too.

Inputs have M rows of N columns, in any number of leading dimensions. *Moves* is the fewest elements
that the op must read and write, from which bandwidth utilisation follows; *is as* names the
definition. Each option's default comes first. Results are compared, element by element, with
float64: one rounding to the result's dtype and the float32 arithmetic before it are allowed,
gradients likewise, against autograd of the definition.

| op | computes | options | dtypes | gradients of | limits | moves | is as |
|---|---|---|---|---|---|---|---|
"""

_NOTES = """
An input whose rows are not contiguous inside is copied first; rows may be strided, start anywhere
and be one row for all. Everything runs on the current stream and can be captured into a CUDA graph;
gradients are deterministic. Input that is not supported raises `TypeError` or `ValueError` before
anything is launched, with a message that names the argument, what it was and what is accepted.
"""


def page() -> str:
    """The whole page."""
    return _HEAD + "".join(map(_line, map(describe, OPS))) + _NOTES


def _line(op: Op) -> str:
    options = "; ".join(f"`{name}`: {', '.join(values)}" for name, values in op.options.items())
    gradients = ", ".join(f"`{name}`" for name in op.differentiable)
    if "backward" not in op.directions:
        gradients = ""
    cells = (
        f"`{op.name}`",
        op.summary,
        options,
        ", ".join(op.dtypes),
        gradients or "none",
        op.limits,
        op.formula,
        op.source,
    )
    return f"| {' | '.join(cells)} |\n"


if __name__ == "__main__":
    PAGE.write_text(page())
