"""Calls of the suite's operations, generated over the registry.

Built on a GPU to be run, on the meta device to be recorded. ``python -m tests.kernels.cases``
compiles the kernels of the GPU tests ahead, on any machine.
"""

from __future__ import annotations

import functools
import itertools
import math
import os
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import membound
import torch

from asv_bench import workloads
from bandwatch.measure import backward
from bandwatch.measure.workload import BACKWARD, FORWARD, Op, Tensors, Workload

from . import views
from .guards import guarded
from .pairwise import pairwise

DTYPES = BF16, FP16, FP32 = workloads.DTYPES
OPS: dict[str, Op] = workloads.ops(membound)

#: Makes a tensor: ``new(dtype, *shape)``.
New = Callable[..., torch.Tensor]

#: Rows and columns to test with default options: in a warp, odd, of a power of two and none,
#: GPT-2's vocabulary, a cluster, more than a cluster holds, more rows than 16 bits count, none.
SHAPES = (
    (1, 1),
    (65_537, 1),
    (3, 8),
    (4097, 8),
    (67, 1000),
    (4097, 1000),
    (67, 1001),
    (3, 1152),
    (67, 1152),
    (65_537, 257),
    (67, 16_384),
    (1, 32_768),
    (67, 50_257),
    (3, 262_144),
    (1, 1_048_576),
    (3, 1_048_575),
    (0, 1000),
)
#: Of these, in dtypes whose kernels are another's but for conversions, or but for the widths.
FEWER = {
    FP16: ((67, 1000), (67, 1001), (3, 262_144)),
    FP32: (
        (65_537, 1),
        (4097, 8),
        (67, 1000),
        (67, 1001),
        (67, 16_384),
        (67, 50_257),
        (3, 262_144),
        (3, 1_048_575),
    ),
}
#: With all pairs of options.
SHAPES_OPTIONS = ((67, 1000), (65, 1001), (2, 300_000))
#: Of other layouts.
SHAPES_VIEWS = ((67, 1000), (66, 1001))


@dataclass(frozen=True)
class Case:
    """A call of an op, forward and then, where it has one, backward.

    ``view`` is the layout of the input ``of``, or, where that is ``"grad"``, of the gradients.
    ``leading`` views the rows as several dimensions: ``(3, 5)`` of 15 rows.
    """

    workload: Workload
    of: str = ""
    view: str = ""
    leading: tuple[int, ...] = ()
    swapped: bool = False

    @property
    def op(self) -> Op:
        return OPS[self.workload.op]

    @property
    def id(self) -> str:
        key = self.workload.key.replace(f"/{FORWARD}/", "/")
        layout = [f"{self.of} {self.view}"] if self.of else []
        dims = [f"rows {self.leading}{' swapped' if self.swapped else ''}"] if self.leading else []
        return "-".join([key, *layout, *dims]).replace("/", "-")

    @property
    def seed(self) -> int:
        return zlib.crc32(self.id.encode())

    def inputs(self, device: str) -> tuple[Tensors, Tensors]:
        """Fresh inputs: as the op is given them, and contiguous copies for the reference.

        Of inputs that are to be viewed as rows of several dimensions, the copies are matrices.
        """
        op, generator = self.op, None
        if device != "meta":
            generator = torch.Generator(device).manual_seed(self.seed)
        given = dict(op.make_inputs(self.workload, device, generator))
        if self.of in given:
            given[self.of] = views.INPUT[self.view](given[self.of])
        copies = {
            name: value.clone(memory_format=torch.contiguous_format)
            for name, value in given.items()
        }
        for name, value in given.items():
            if self.leading and value.dim() and len(value) == self.workload.shape[0]:
                given[name] = self._unfold(value)
        return given, copies

    def _unfold(self, value: torch.Tensor) -> torch.Tensor:
        unfolded = value.view(*self.leading, *value.shape[1:])
        return unfolded.transpose(0, 1).contiguous().transpose(0, 1) if self.swapped else unfolded


@dataclass
class Ran:
    """What came of a case: results, gradients by the input's name, and what they were given."""

    case: Case
    inputs: Tensors  # contiguous copies, for the reference
    outputs: tuple[torch.Tensor, ...]
    grads: dict[int, torch.Tensor]
    gradients: dict[str, torch.Tensor]


def has_backward(op: Op) -> bool:
    return BACKWARD in op.directions


def as_leaves(op: Op, given: Tensors) -> dict[str, torch.Tensor]:
    """Inputs of which those that can require a gradient do."""
    needing = backward.leaves(op, given) if has_backward(op) else {}
    return {**given, **{name: leaf.requires_grad_() for name, leaf in needing.items()}}


def run(case: Case, device: str, op: Op | None = None, suite: Any = None) -> Ran:
    """Run forward and backward in guarded memory; ``op`` may be another suite's."""
    op = op or case.op
    given, copies = case.inputs(device)
    own = op.providers["membound"]
    with guarded(suite) as guards:
        if not (has_backward(op) and backward.leaves(op, given)):
            outputs, grads, gradients = backward.flat(own(given, case.workload)), {}, {}
        else:
            generator = None if device == "meta" else torch.Generator(device).manual_seed(1)
            prepared = backward.prepare(own, op, case.workload, given, generator)
            outputs = prepared.outputs
            if case.of == "grad":
                lay = views.GRADIENT[case.view]
                prepared.grads.update(
                    {i: lay(g) if g.dim() > 1 else g for i, g in prepared.grads.items()}
                )
            grads = prepared.grads
            gradients = dict(zip(prepared.leaves, backward.gradients(prepared), strict=True))
        if device != "meta":
            guards.check()
            assert case.of or all(output.is_contiguous() for output in outputs)
            for name, value in copies.items():
                kept = given[name].reshape(value.shape)
                assert torch.equal(bits(kept), bits(value)), f"input {name} was changed"
    if case.leading:
        outputs = tuple(map(_fold(case), outputs))
        grads = {i: _fold(case)(grad) for i, grad in grads.items()}
        gradients = {
            name: gradient.reshape(copies[name].shape) for name, gradient in gradients.items()
        }
    return Ran(case, copies, outputs, grads, gradients)


def _fold(case: Case) -> Callable[[torch.Tensor], torch.Tensor]:
    """Several dimensions of rows as one again, in tensors that have them."""
    count = len(case.leading)

    def fold(tensor: torch.Tensor) -> torch.Tensor:
        if tuple(tensor.shape[:count]) != case.leading:
            return tensor
        return tensor.reshape(-1, *tensor.shape[count:])

    return fold


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """The bits as integers, in which NaN equals itself."""
    kinds = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return tensor.contiguous().view(kinds[tensor.element_size()])


def new(device: str) -> New:
    """Normal values with a deviation of 4, the same in each run."""
    generator = None if device == "meta" else torch.Generator(device).manual_seed(0)

    def make(dtype: str, *shape: int) -> torch.Tensor:
        values = torch.randn(shape, dtype=getattr(torch, dtype), device=device, generator=generator)
        return values.mul_(4)

    return make


def shifted(dtype: str, rows: int, columns: int, by: int, make: New) -> torch.Tensor:
    """A contiguous matrix that starts ``by`` elements behind an allocation's start."""
    return make(dtype, rows * columns + by)[by:].view(rows, columns)


def _accepted(op: Op, workload: Workload) -> bool:
    return workload.dtype in op.dtypes and op.accepts(workload)


def plain(op: Op, full: bool = False) -> Iterator[Case]:
    """Default options on every awkward shape; ``full``: all options."""
    for dtype in op.dtypes:
        shapes = SHAPES if full else FEWER.get(dtype, SHAPES)
        for shape in op.shapes or shapes:
            if _accepted(op, workload := op.workload(dtype, shape)):
                yield Case(workload)


def optional(op: Op, full: bool = False) -> Iterator[Case]:
    """All pairs of options, dtypes and some shapes; ``full``: all combinations."""
    if not op.options:
        return
    shapes = op.shapes or SHAPES_OPTIONS
    choices = {"dtype": op.dtypes, "shape": shapes, **op.options}

    def workload(chosen: dict[str, Any]) -> Workload:
        return op.workload(**chosen)

    def accepts(chosen: dict[str, Any]) -> bool:
        return _accepted(op, workload(chosen))

    if full:
        names = list(choices)
        combinations = (
            dict(zip(names, values, strict=True)) for values in itertools.product(*choices.values())
        )
        chosen = [one for one in combinations if accepts(one)]
    else:
        chosen = pairwise(choices, accepts)
    yield from (Case(one) for one in map(workload, chosen) if one.options)


def laid_out(op: Op) -> Iterator[Case]:
    """Every floating input in layouts, the first in all of them; dtypes and shapes take turns."""
    turns = itertools.cycle(itertools.product(op.shapes[:2] or SHAPES_VIEWS, (BF16, FP32)))

    def turn(**options: str) -> Workload | None:
        for shape, dtype in itertools.islice(turns, 4):
            if _accepted(op, workload := op.workload(dtype, shape, **options)):
                return workload
        return None

    matrices = views.MATRIX
    for options, name, value in _floating_inputs(op):
        for view in matrices if value.dim() > 1 else views.VECTOR:
            if workload := turn(**options):
                yield Case(workload, name, view)
        if value.dim() > 1:
            matrices = views.FEWER
    if has_backward(op):
        for view in views.GRADIENT:
            if workload := turn():
                yield Case(workload, "grad", view)
    if op.rowwise and op.leading:
        for columns, leading, swapped in (
            (1000, (3, 5), True),
            (1001, (3, 5), False),
            (1001, (2, 3, 4), True),
        ):
            workload = op.workload(BF16, (math.prod(leading), columns))
            if _accepted(op, workload):
                yield Case(workload, leading=leading, swapped=swapped)


def _floating_inputs(op: Op) -> Iterator[tuple[dict[str, str], str, torch.Tensor]]:
    """Each floating input and each number of its dimensions, with options that bring it."""
    shape = (op.shapes or SHAPES_VIEWS)[0]
    dtype = BF16 if BF16 in op.dtypes else op.dtypes[0]
    seen: set[tuple[str, int]] = set()
    offered = [{}, *({name: value} for name, values in op.options.items() for value in values)]
    for options in offered:
        workload = op.workload(dtype, shape, **options)
        if not _accepted(op, workload):
            continue
        for name, value in op.make_inputs(workload, "meta", None).items():
            new_one = (name, value.dim()) not in seen
            if value.is_floating_point() and value.dim() and new_one:
                seen.add((name, value.dim()))
                yield options, name, value


@functools.cache
def cases() -> dict[str, Case]:
    """The generated cases of all ops, by id."""
    found = {}
    for op in OPS.values():
        for case in [*plain(op), *optional(op), *laid_out(op)]:
            found[case.id] = case
    return found


def typical(op: Op) -> list[Case]:
    """A few ordinary calls: of aligned rows, odd rows, and, where the op takes them, long rows."""
    shapes = op.shapes[:2] or ((67, 1000), (67, 1001), (67, 32_768), (5, 262_144))
    dtypes = [dtype for dtype in (BF16, FP32) if dtype in op.dtypes] or list(op.dtypes)
    offered = (op.workload(dtypes[i % len(dtypes)], shape) for i, shape in enumerate(shapes))
    return [Case(workload) for workload in offered if _accepted(op, workload)]


@contextmanager
def recorded() -> Iterator[list]:
    """Record launches as on a GPU, where allocations start on boundaries."""
    with membound.runtime.record_launches() as launches:
        yield launches


def launched(case: Case) -> list[membound.runtime.Kernel]:
    """The kernels of a case, with its gradients and without any; needs no GPU."""
    with recorded() as launches:
        run(case, "meta")
        case.op.providers["membound"](case.inputs("meta")[0], case.workload)
    return list(dict.fromkeys(launch.kernel for launch in launches))


def gpu_kernels() -> list[membound.runtime.Kernel]:
    """Every kernel that the GPU tests launch, each once; needs no GPU.

    A call that fails has none here, and fails its own test.
    """
    found: dict[membound.runtime.Kernel, None] = {}
    for case in itertools.chain(cases().values(), *map(extra, OPS.values())):
        with suppress(Exception):
            found |= dict.fromkeys(launched(case))
    return list(found)


def extra(op: Op) -> list[Case]:
    """Cases of the tests that are no generated ones: see test_gpu.py."""
    return [
        *typical(op),
        *special_cases(op),
        *huge_cases(op),
        *varying_rows(op),
    ]


def special_cases(op: Op) -> list[Case]:
    """Calls whose rows will hold NaN and infinities."""
    if not op.takes_special or op.shapes or not op.rowwise:
        return []
    offered = [
        op.workload(dtype, (24, columns))
        for dtype in op.dtypes
        for columns in (8, 1000, 1001, 50_257)
    ]
    return [Case(one) for one in offered if _accepted(op, one)]


def special_gradient_cases(op: Op) -> list[Case]:
    """Generated calls whose gradients are judged at NaN and infinities: no kernel is added.

    Enough rows of at least 24 elements, a few MiB in all. Dropout is left out: torch multiplies by
    0 what it drops, the suite selects.
    """
    if not has_backward(op):
        return []
    return [
        case
        for case in (*plain(op), *optional(op))
        if math.prod(case.workload.shape[:-1]) >= 24
        and case.workload.shape[-1] >= 24
        and op.traffic(case.workload).total <= 4 << 20
        and "dropout" not in dict(case.workload.options)
    ]


def huge_cases(op: Op) -> list[Case]:
    """More than 2^31 elements: in one matrix, or from the first row to the last."""
    if not op.rowwise or op.shapes:
        return []
    offered = [Case(op.workload(BF16, (33_000, 65_536)))]
    workload = op.workload(BF16, (67, 1000))
    for name, value in op.make_inputs(workload, "meta", None).items():
        if value.is_floating_point() and value.shape == workload.shape:
            offered.append(Case(workload, name, "far apart"))
    return [case for case in offered if _accepted(op, case.workload)]


def varying_rows(op: Op) -> list[Case]:
    """The same rows in other numbers, for torch.compile."""
    if op.shapes:
        return typical(op)[:1]
    offered = (op.workload(BF16, (rows, 1000)) for rows in (67, 3, 4097))
    return [Case(one) for one in offered if _accepted(op, one)]


if __name__ == "__main__":
    kernels = gpu_kernels()
    print(f"{len(cases())} cases, {len(kernels)} kernels")
    if sys.argv[1:] != ["--list"]:
        done = iter(range(1, len(kernels) + 1))
        membound.runtime.build(
            kernels,
            jobs=min(16, os.cpu_count() or 1),
            progress=lambda kernel: print(f"{next(done)}/{len(kernels)} {kernel.name}"),
        )
