"""What is measured: the workload, the bytes it must move, and how its result is checked.

A suite describes each of its operations once, as an :class:`Op`; tests, benchmarks, static gates
and the table in the docs iterate over those descriptions. Nothing here imports torch: tensors are
passed through.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

#: Storage size in bytes of one element, by torch dtype name.
DTYPE_BYTES: Mapping[str, int] = {"bfloat16": 2, "float16": 2, "float32": 4}

FORWARD, BACKWARD = "forward", "backward"

#: Providers of the harness: what a workload is told against, and what links sessions.
CONTROL, ANCHOR = "control", "anchor"

Tensors = Mapping[str, Any]


@dataclass(frozen=True)
class Traffic:
    """The fewest bytes an operation must move through device memory.

    Each input is read once and each output written once; caches are not counted on. ``streams``
    are the large tensors (read, written), where that is not the smallest ratio of the bytes: on an
    H200 two streams read and two written reach 2 % less than one and one.
    """

    read: int
    written: int
    streams: tuple[int, int] | None = None

    @property
    def total(self) -> int:
        return self.read + self.written


@dataclass(frozen=True)
class Workload:
    """One row of the benchmark grid, without the provider: op, direction, dtype, shape, options.

    ``options`` holds those that are not the op's defaults, in the op's order;
    :meth:`Op.workload` sees to that.
    """

    op: str
    dtype: str
    shape: tuple[int, ...]
    direction: str = FORWARD
    options: tuple[tuple[str, str], ...] = ()

    @property
    def shape_text(self) -> str:
        """The shape as it is written in benchmark parameters, e.g. ``32768x4096``."""
        return "x".join(str(n) for n in self.shape)

    @property
    def case_text(self) -> str:
        """Shape and options as one benchmark parameter, e.g. ``32768x4096/causal=yes``."""
        return "/".join([self.shape_text, *(f"{name}={value}" for name, value in self.options)])

    @property
    def key(self) -> str:
        """Stable identity: ``softmax/forward/bfloat16/32768x4096``; options follow as ``k=v``."""
        return "/".join([self.op, self.direction, self.dtype, self.case_text])


@dataclass(frozen=True)
class Tolerance:
    """How far each element of a result may be from the float64 reference.

    ::

        roundings * u * |expected| + (terms * 2^-24 + saved * u) * size + flushed * smallest

    ``u`` is the unit roundoff of the result's dtype (for ``saved``: of the workload's) and
    ``smallest`` its smallest normal number, below which kernels flush to zero. ``size`` is
    ``|expected|`` for ``"element"``; for ``"row"`` it is the largest ``|expected|`` of the row
    (the last dimension), because a sum whose terms cancel is only as exact as its terms are
    large. Where even that is too small, :attr:`Op.magnitudes` tells the terms' size.

    Attributes:
        roundings: to the result's dtype: 1 where everything before is float32.
        terms: float32 roundings on the way, for a sum as many as the additions that one element
            goes through (not all of them), for an exponential as many as its exponent is large.
        saved: roundings to the workload's dtype of what goes into a sum that cancels, such as
            of a forward result from which a gradient is computed.
        size: what ``terms`` and ``saved`` are relative to.
        flushed: by how much a number below the smallest normal one, which is lost on the way, is
            multiplied afterwards.
        baseline: roundings to the workload's dtype, relative to the row, that other providers
            than the suite's own may do besides: torch rounds between steps.
    """

    roundings: float = 1.0
    terms: float = 64.0
    saved: float = 0.0
    size: str = "element"
    flushed: float = 1.0
    baseline: float = 4.0


def chosen(options: Mapping[str, tuple[str, ...]], workload: Workload) -> dict[str, str]:
    """The value of every option in ``workload``, defaults too."""
    return {name: values[0] for name, values in options.items()} | dict(workload.options)


def _all(workload: Workload) -> bool:
    return True


def _workloads_dtype(workload: Workload) -> tuple[str, ...]:
    return ()


def _no_kernels(workload: Workload) -> Mapping[str, str]:
    return {}


def _no_digest(workload: Workload) -> str | None:
    return None


@dataclass(frozen=True)
class Op:
    """How a suite's operation is fed, counted, checked and run.

    Attributes:
        name: of the suite's public function.
        make_inputs: ``(workload, device, generator)`` to fresh random tensors by name; on the
            meta device the generator is None.
        reference: ``(inputs, workload)`` to the right answer, a tensor or a tuple of tensors, in
            plain torch on float64 (it upcasts the inputs itself), differentiable.
        providers: a provider's name to ``(inputs, workload) -> result``, a tensor or a tuple,
            first the suite's own, then the baselines, of differentiable torch calls.
        traffic: the byte model, of the workload's direction.
        benchmarks: the workloads that are measured.
        options: names to accepted values, the first being the default.
        directions: ``("forward",)``, or ``("forward", "backward")``.
        dtypes: that the op's main input may have.
        differentiable: names of the inputs that can require a gradient.
        tolerance: of results; ``gradient_tolerance``: of gradients.
        magnitudes: ``(inputs, grads, workload)`` to a tensor per differentiable input that can be
            broadcast to its gradient: the size of the terms that the gradient is a sum of, to
            be used as ``size`` in the tolerance. ``grads`` are those of the floating results.
        result_dtypes: the dtypes of the floating results, where they are not all the workload's.
        check: ``(outputs, inputs, workload)``, in place of ``reference`` and ``tolerance`` for
            the results of ops whose right answers are not unique; raises WrongResult. Gradients
            are compared with the reference's all the same.
        accepts: whether the op takes a workload; asked about dtypes, options and awkward shapes.
        shapes: awkward shapes to test, where they are not the usual (rows, columns).
        special: ``(inputs, workload)`` to the right results for rows of NaN and infinities, given
            float32 inputs; the first baseline by default.
        takes_special: whether such rows make sense for the op.
        rowwise: whether row i of all matrices (inputs and results of as many rows as the
            workload's shape tells) belongs together and to no other row, so that rows can be
            checked apart; gradients of other inputs are then sums over the rows.
        leading: whether such matrices may be tensors of more dimensions, whose last is the row.
        summary, limits, formula, source: texts for the docs: what it computes, what it accepts,
            the bytes it moves, where the definition is from.
        kernels: the suite's compiled kernels of a workload, as ``{kernel name: digest}``.
        digest: SHA-256 of all that the suite has the GPU do for a workload, None where it cannot
            tell: equal digests are equal work.
    """

    name: str
    make_inputs: Callable[[Workload, Any, Any], Tensors]
    reference: Callable[[Tensors, Workload], Any]
    providers: Mapping[str, Callable[[Tensors, Workload], Any]]
    traffic: Callable[[Workload], Traffic]
    benchmarks: tuple[Workload, ...] = ()
    options: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    directions: tuple[str, ...] = (FORWARD,)
    dtypes: tuple[str, ...] = tuple(DTYPE_BYTES)
    differentiable: tuple[str, ...] = ()
    tolerance: Tolerance = Tolerance()
    gradient_tolerance: Tolerance = Tolerance(terms=512.0, size="row")
    magnitudes: Callable[[Tensors, tuple[Any, ...], Workload], Tensors] | None = None
    result_dtypes: Callable[[Workload], tuple[str, ...]] = _workloads_dtype
    check: Callable[[tuple[Any, ...], Tensors, Workload], None] | None = None
    accepts: Callable[[Workload], bool] = _all
    shapes: tuple[tuple[int, ...], ...] = ()
    special: Callable[[Tensors, Workload], Any] | None = None
    takes_special: bool = True
    rowwise: bool = True
    leading: bool = True
    summary: str = ""
    limits: str = ""
    formula: str = ""
    source: str = ""
    kernels: Callable[[Workload], Mapping[str, str]] = _no_kernels
    digest: Callable[[Workload], str | None] = _no_digest

    def workload(
        self, dtype: str, shape: tuple[int, ...], direction: str = FORWARD, **options: str
    ) -> Workload:
        """A workload of this op; options that are defaults are left out.

        Raises ValueError for an option or a value that the op does not have.
        """
        return workload_of(self.name, self.options, dtype, shape, direction, **options)


def workload_of(
    op: str,
    accepted: Mapping[str, tuple[str, ...]],
    dtype: str,
    shape: tuple[int, ...],
    direction: str = FORWARD,
    **options: str,
) -> Workload:
    """:meth:`Op.workload` where the op is being described."""
    for name, value in options.items():
        if value not in accepted.get(name, ()):
            raise ValueError(f"{op}: option {name}={value}; accepted are {dict(accepted)}")
    given = tuple(
        (name, options[name])
        for name, values in accepted.items()
        if options.get(name, values[0]) != values[0]
    )
    return Workload(op, dtype, tuple(shape), direction, given)
