"""The registry of operations: what each computes, how it is fed, counted, checked and run.

One module a family; each exports ``OPS``, functions that describe one operation as an
:class:`~bandwatch.measure.workload.Op`. They take the suite's module, so that today's descriptions
measure any commit's code, and None where nothing is run. torch is imported inside functions only:
asv's discovery imports this package everywhere.

To add an operation, describe it in a family's module, list a new module in ``FAMILIES``, give it a
class a direction in a ``bench_*.py``, and write docs/kernels.md anew (:mod:`.document`). Tests of
its numbers, layouts, graphs and compilation follow from the description.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import ModuleType
from typing import Any

from bandwatch.measure import backward
from bandwatch.measure.workload import BACKWARD, Op, Tensors, Workload

from . import (
    bias_act,
    cross_entropy,
    embedding,
    gated,
    norms,
    quantize,
    ragged,
    reductions,
    rotary,
    softmax,
    topk,
)
from .shared import DTYPES, SHAPES, matrices

__all__ = [
    "DTYPES",
    "OPS",
    "SHAPES",
    "benchmarked",
    "describe",
    "digest",
    "grid",
    "kernels",
    "launches",
    "matrices",
    "ops",
    "quick",
    "unbound",
    "workload",
]

#: The modules that describe operations, one a family.
FAMILIES = (
    softmax,
    norms,
    cross_entropy,
    rotary,
    gated,
    ragged,
    bias_act,
    embedding,
    topk,
    reductions,
    quantize,
)

_DESCRIBE: Mapping[str, Callable[[Any], Op]] = {
    describe.__name__: describe for family in FAMILIES for describe in family.OPS
}

#: Names of the operations.
OPS = tuple(_DESCRIBE)


def describe(name: str) -> Op:
    """The description of an operation, of which the suite's own provider cannot be run."""
    return _DESCRIBE[name](None)


def workload(op: str, dtype: str, case: str, direction: str = "forward") -> Workload:
    """The workload of one benchmark row; ``case`` as asv writes it, e.g. ``"4096x32768"``.

    Options follow the shape: ``"4096x32768/causal=yes"``.
    """
    shape, *options = case.split("/")
    given = dict(option.split("=", 1) for option in options)
    sizes = tuple(int(n) for n in shape.split("x"))
    return describe(op).workload(dtype, sizes, direction, **given)


def grid() -> Iterator[Workload]:
    """Every workload that is benchmarked."""
    for name in OPS:
        yield from describe(name).benchmarks


@functools.cache
def quick() -> frozenset[Workload]:
    """The workloads of a quick run, which shows that everything runs: one of each operation."""
    return frozenset(describe(name).benchmarks[0] for name in OPS)


def benchmarked(op: str, direction: str) -> tuple[Workload, ...]:
    """The workloads of one operation and direction that are benchmarked."""
    return tuple(one for one in describe(op).benchmarks if one.direction == direction)


def unbound(suite: Any, name: str) -> Callable[[Tensors, Workload], Any]:
    """The suite's provider of an operation and nothing around it: torch.compile can trace it."""
    return _DESCRIBE[name](suite).providers["membound"]


def ops(suite: ModuleType) -> dict[str, Op]:
    """The operations that ``suite`` offers, by name; older commits may offer fewer."""
    return {name: _bound(suite, name) for name in OPS if hasattr(suite, name)}


def kernels(suite: ModuleType, op: Op, workload: Workload) -> list[Any]:
    """The kernels that the suite launches for ``workload``, in order, each once; needs no GPU.

    Raises what the operation raises, NotImplementedError where it does not do this workload.
    """
    return list(dict.fromkeys(launch.kernel for launch in launches(suite, op, workload)))


def launches(suite: ModuleType, op: Op, workload: Workload) -> list[Any]:
    """The launches of the suite for ``workload``, as it records them; needs no GPU."""
    return list(_recorded(suite, suite.runtime.record_launches, op, workload))


def digest(suite: ModuleType, op: Op, workload: Workload) -> str | None:
    """The digest of the suite's launch plan for ``workload``; needs no GPU.

    None where the suite, an older commit's, records no plans. Raises as :func:`kernels` does.
    """
    if not hasattr(getattr(suite, "runtime", None), "record_plan"):
        return None
    return _recorded(suite, suite.runtime.record_plan, op, workload).digest()


def _recorded(suite: ModuleType, record: Callable[[], Any], op: Op, workload: Workload) -> Any:
    """What ``record`` collects of the workload's direction alone."""
    inputs = op.make_inputs(workload, "meta", None)
    run = op.providers["membound"]
    if workload.direction == BACKWARD:
        with suite.runtime.record_launches():
            prepared = backward.prepare(run, op, workload, inputs, None)
        with record() as recorded:
            backward.gradients(prepared)
    else:
        with record() as recorded:
            run(inputs, workload)
    return recorded


def _bound(suite: ModuleType, name: str) -> Op:
    op = _DESCRIBE[name](suite)

    def digests(workload: Workload) -> Mapping[str, str]:
        artifacts = [suite.runtime.artifact(kernel) for kernel in kernels(suite, op, workload)]
        return {artifact.name: artifact.digest for artifact in artifacts}

    def plan(workload: Workload) -> str | None:
        return digest(suite, op, workload)

    own = partial(_or_not_available, op.providers["membound"])
    providers = {**op.providers, "membound": own}
    op = dataclasses.replace(op, providers=providers, kernels=digests, digest=plan)
    return op


def _or_not_available(
    own: Callable[[Tensors, Workload], Any], inputs: Tensors, workload: Workload
) -> Any:
    """Run the suite's provider; what an older commit's function does not know is not available."""
    try:
        return own(inputs, workload)
    except TypeError as error:
        if "unexpected keyword argument" in str(error):
            raise NotImplementedError(str(error)) from error
        raise
