"""What rms_norm and layer_norm share: checks, gradients, and which kernels run."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar

import torch
from torch.autograd.function import once_differentiable

from ..runtime import Kernel, empty, launch, multiprocessors
from . import checks
from .columns import sum_columns
from .layouts import Layout, fresh, layout
from .registration import define
from .tiling import MAX_COLUMNS, RowTiling, row_tiling, shared_vector

#: Dropout compares as many random bits with the probability.
_DROPOUT_BITS = 24

#: Fewest threads of a CTA; how many CTAs that only sum over rows to have for each multiprocessor,
#: and the fewest rows that are worth a part of the sums.
_CTA = 128
_CTAS_PER_PROCESSOR = 8
_LEAST_ROWS = 16

#: Threads of a multiprocessor whose CTAs stay for many rows; and how, in order of preference: the
#: elements of a row that each holds, whether it asks for the next row ahead, and the most CTAs of
#: a cluster. Where it holds 16, the bytes for each that leave room for the rest: fewer where rows
#: share a CTA or every element is checked.
_RESIDENT_THREADS = 512
_STAYING = ((16, True, 1), (8, True, 8), (16, False, 8))
_ELEMENT_BYTES, _ELEMENT_BYTES_CHECKED = 16, 12

#: Columns of which a cluster can hold one matrix's row.
_LONGEST_HELD = 1 << 18


def _size(dtype: str) -> int:
    return getattr(torch, dtype).itemsize


@dataclasses.dataclass(frozen=True)
class NormKernel(Kernel):
    module: ClassVar[str] = "norm"
    form: str  # "rms_norm" or "layer_norm"
    dtype: str
    out: str  # dtype of the result
    residual: str  # dtype of what is added before, or "none"
    total: str  # dtype of the sum with the residual, or "none"
    weight: str
    weight_vector: int  # elements of the weight that can be accessed at a time
    bias: str
    bias_vector: int
    heads: bool  # whether rows take turns in the weight's and the bias's rows
    offset: bool  # whether something is added to the weight
    dropout: bool
    statistics: bool  # whether the rows' statistics are results
    tiling: RowTiling

    @property
    def threads(self) -> int:
        return self.tiling.threads

    @property
    def cluster(self) -> int:
        return self.tiling.cluster

    @property
    def shared_bytes(self) -> int:
        if self.form == "rms_norm":
            values = 1
        else:  # where all warps have as many columns, that is not exchanged
            tiling = self.tiling
            threads = tiling.row_threads * tiling.cluster
            count = -(-tiling.columns // (threads * tiling.vector * tiling.chunks))
            whole = threads * tiling.vector * tiling.chunks * count == tiling.columns
            values = 2 if whole and not tiling.shifted else 3
        return 4 * values * self.tiling.warp_slots  # float32

    @property
    def full_width(self) -> bool:
        rows = (self.dtype, self.out, self.residual, self.total)
        shared = [(self.weight, self.weight_vector), (self.bias, self.bias_vector)]
        return self.tiling.full_width(*(_size(name) for name in rows if name != "none")) and all(
            vector * _size(name) >= 16 for name, vector in shared if name != "none"
        )

    @property
    def scalar_accesses(self) -> int:
        statistics = {"rms_norm": 1, "layer_norm": 2}[self.form]
        seeds = self.dropout * (1 if self.tiling.chunks == 1 else 2)
        return statistics * self.statistics + seeds


def check(
    op: str,
    x: torch.Tensor,
    normalized_shape: int | Sequence[int],
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    residual: torch.Tensor | None,
    residual_dtype: torch.dtype | None,
    dropout_p: float,
    dropout_seed: torch.Tensor | None,
) -> int:
    """Require what the norms take; returns how many of the last dimensions are a row."""
    checks.row_input(op, "input", x)
    kinds = (int, torch.SymInt)  # the latter while torch compiles for any size
    shape = (normalized_shape,) if isinstance(normalized_shape, kinds) else normalized_shape
    if not isinstance(shape, Sequence) or not all(isinstance(n, kinds) for n in shape):
        raise TypeError(
            f"{op}: normalized_shape must be an int or a sequence of ints, got {shape!r}"
        )
    shape = tuple(shape)
    if not shape or tuple(x.shape[-len(shape) :]) != shape:
        raise ValueError(
            f"{op}: normalized_shape {shape} must be the last dimensions of input, "
            f"which has shape {tuple(x.shape)}"
        )
    columns = math.prod(shape)
    checks.row_shape(op, x, columns, MAX_COLUMNS)
    if weight is not None or bias is not None:
        _check_shared(op, x, shape, weight, bias)
    if residual is not None:
        checks.row_input(op, "residual", residual)
        if residual.shape != x.shape:
            raise ValueError(
                f"{op}: residual has shape {tuple(residual.shape)}; expected that of input, "
                f"{tuple(x.shape)}"
            )
        _same_device(op, "residual", residual, x)
    if residual_dtype is not None:
        if residual is None:
            raise ValueError(f"{op}: residual_dtype is {residual_dtype}, but there is no residual")
        if residual_dtype not in checks.DTYPES:
            raise TypeError(
                f"{op}: residual_dtype is {residual_dtype}; accepted are bfloat16, float16, float32"
            )
    if dropout_p or dropout_seed is not None:
        _check_dropout(op, x, residual, dropout_p, dropout_seed)
    return len(shape)


def _check_shared(
    op: str,
    x: torch.Tensor,
    shape: tuple[int, ...],
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
) -> None:
    accepted = [shape]
    if x.dim() > len(shape):
        accepted.append(tuple(x.shape[-len(shape) - 1 :]))
    for name, value in (("weight", weight), ("bias", bias)):
        if value is None:
            continue
        checks.row_input(op, name, value)
        if tuple(value.shape) not in accepted:
            expected = " or ".join(map(str, accepted))
            raise ValueError(f"{op}: {name} has shape {tuple(value.shape)}; expected {expected}")
        _same_device(op, name, value, x)
    if weight is not None and bias is not None and weight.shape != bias.shape:
        raise ValueError(
            f"{op}: bias has shape {tuple(bias.shape)}; expected that of weight, "
            f"{tuple(weight.shape)}"
        )


def _check_dropout(
    op: str,
    x: torch.Tensor,
    residual: torch.Tensor | None,
    p: float,
    seed: torch.Tensor | None,
) -> None:
    if not 0 <= p <= 1:
        raise ValueError(f"{op}: dropout_p is {p}; accepted are probabilities from 0 to 1")
    if residual is None:
        raise ValueError(f"{op}: dropout_p is {p}, but there is no residual to add afterwards")
    if seed is not None:
        if not isinstance(seed, torch.Tensor) or seed.dtype != torch.int64 or seed.numel() != 1:
            found = (
                f"{seed.dtype} of shape {tuple(seed.shape)}"
                if isinstance(seed, torch.Tensor)
                else type(seed).__name__
            )
            raise TypeError(
                f"{op}: dropout_seed must be a torch.Tensor of one int64 value, got {found}"
            )
        _same_device(op, "dropout_seed", seed, x)


def _same_device(op: str, name: str, value: torch.Tensor, x: torch.Tensor) -> None:
    if value.device != x.device:
        raise ValueError(f"{op}: {name} is on {value.device}, input on {x.device}")


def norm(
    op: str,
    x: torch.Tensor,
    dims: int,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    eps: float,
    residual: torch.Tensor | None,
    residual_dtype: torch.dtype | None,
    weight_offset: float,
    dropout_p: float,
    dropout_seed: torch.Tensor | None,
    statistics: bool,
) -> torch.Tensor | tuple[torch.Tensor, ...]:
    """The results of a checked call: a tensor or a tuple of the result, the sum, statistics.

    ``dims`` of the last dimensions are a row.
    """
    seed = None
    if dropout_p:
        # drawn on the device, so that a CUDA graph draws anew in each replay
        seed = dropout_seed
        if seed is None:
            seed = torch.randint(1 << 62, (1,), dtype=torch.int64, device=x.device)
        seed = seed.reshape(1)
    total = ""
    if residual is not None:
        total = str(residual_dtype or residual.dtype).removeprefix("torch.")
    arguments = (x, weight, bias, residual, seed, dims, eps, weight_offset)
    arguments += (float(dropout_p), total)
    if checks.needs_grad(x, weight, bias, residual):
        results = _Gradient.apply(op, *arguments, statistics)
        return results[0] if len(results) == 1 else results
    results = _forward_ops[op](*arguments, statistics)
    return results[0] if len(results) == 1 else tuple(results)


class _Gradient(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        op: str,
        x: torch.Tensor,
        weight: torch.Tensor | None,
        bias: torch.Tensor | None,
        residual: torch.Tensor | None,
        seed: torch.Tensor | None,
        dims: int,
        eps: float,
        offset: float,
        dropout_p: float,
        total: str,
        statistics: bool,
    ) -> tuple[torch.Tensor, ...]:
        results = _forward_ops[op](
            x, weight, bias, residual, seed, dims, eps, offset, dropout_p, total, True
        )
        shown = len(results) - (1 if op == "rms_norm" else 2)
        of_rows = results[shown:]
        normed = x if residual is None else results[1]
        ctx.save_for_backward(normed, weight, seed, *of_rows)
        ctx.op, ctx.dims, ctx.offset, ctx.dropout_p = op, dims, offset, dropout_p
        ctx.dtypes = tuple(
            None if one is None else str(one.dtype).removeprefix("torch.")
            for one in (x, weight, bias, residual)
        )
        ctx.shapes = tuple(None if one is None else one.shape for one in (weight, bias))
        if not torch.compiler.is_compiling():  # which does not know it, and can do without
            ctx.set_materialize_grads(False)
        if not statistics:
            return tuple(results[:shown])
        ctx.mark_non_differentiable(*of_rows)
        return tuple(results)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        normed, weight, seed, *of_rows = ctx.saved_tensors
        needs = dict(
            zip(("x", "weight", "bias", "residual"), ctx.needs_input_grad[1:5], strict=True)
        )
        dtypes = dict(zip(needs, ctx.dtypes, strict=True))
        grad = grads[0]
        of_total = grads[1] if dtypes["residual"] is not None else None
        found: dict[str, torch.Tensor | None] = dict.fromkeys(needs)
        if grad is not None or of_total is not None:
            if grad is None:
                grad = normed.new_zeros((), dtype=getattr(torch, dtypes["x"])).expand(normed.shape)
            # without dropout, input and residual have one gradient
            same = not ctx.dropout_p and needs["x"] and needs["residual"]
            same = same and dtypes["x"] == dtypes["residual"]
            wanted = {
                name: dtypes[name] if needed and not (same and name == "residual") else ""
                for name, needed in needs.items()
            }
            results = iter(
                _backward_ops[ctx.op](
                    normed,
                    grad,
                    of_total,
                    weight,
                    of_rows[0] if ctx.op == "layer_norm" else None,
                    of_rows[-1],
                    seed,
                    ctx.dims,
                    heads_of(ctx.dims, *ctx.shapes),
                    ctx.offset,
                    ctx.dropout_p,
                    *(wanted[name] for name in ("x", "residual", "weight", "bias")),
                )
            )
            for name in ("x", "residual", "weight", "bias"):
                if wanted[name]:
                    found[name] = next(results)
            if same:
                found["residual"] = found["x"]
            for name, shape in zip(("weight", "bias"), ctx.shapes, strict=True):
                if found[name] is not None:
                    found[name] = found[name].view(shape)
        return None, *(found[name] for name in needs), *[None] * 7


_kernels: dict[tuple[Any, ...], NormKernel] = {}
_plans: dict[tuple[Any, ...], list[Kernel]] = {}


def heads_of(dims: int, *shared: torch.Tensor | torch.Size | None) -> int:
    """In how many rows of the weight and bias the rows of the input take turns."""
    for one in shared:
        if one is not None:
            shape = one.shape if isinstance(one, torch.Tensor) else one
            return shape[0] if len(shape) > dims else 1
    return 1


def rows_of(shared: torch.Tensor | None, columns: int) -> torch.Tensor | None:
    """Rows of what may not be there."""
    return None if shared is None else checks.as_rows(shared, columns)


def layout_of(tensor: torch.Tensor | None) -> Layout | None:
    """The layout of what may not be there."""
    return None if tensor is None else layout(tensor)


def _name(of: Layout | None) -> str:
    return "none" if of is None else str(of.dtype).removeprefix("torch.")


def _tiling(
    columns: int, rows: Sequence[Layout], shared: Sequence[Layout | None], held: int
) -> tuple[RowTiling, list[int]]:
    """Tiling of matrices, and how many elements can be accessed at a time in what rows share."""
    given = [one for one in shared if one is not None]
    beside = fresh(columns, given[0].dtype) if given else None
    tiling = row_tiling(columns, *rows, shared=beside, held=held)
    return tiling, [0 if one is None else shared_vector(one, tiling) for one in shared]


def _dropout(p: float) -> tuple[int, float]:
    """What the kernels compare random numbers with, and the factor on what is kept."""
    return round(p * (1 << _DROPOUT_BITS)), 1 / (1 - p) if p < 1 else 0.0


def _run(
    op: str,
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    residual: torch.Tensor | None,
    seed: torch.Tensor | None,
    dims: int,
    eps: float,
    offset: float,
    dropout_p: float,
    total: str,
    statistics: bool,
) -> tuple[torch.Tensor, ...]:
    columns = math.prod(x.shape[-dims:])
    out = empty(x.shape, x.dtype, x.device)
    results = [out]
    sums = mean = rstd = None
    if residual is not None:
        sums = empty(x.shape, getattr(torch, total), x.device)
        results.append(sums)
    if statistics:
        shape = x.shape[:-dims]
        if op == "layer_norm":
            mean = empty(shape, torch.float32, x.device)
            results.append(mean)
        rstd = empty(shape, torch.float32, x.device)
        results.append(rstd)
    if not x.numel():
        return tuple(results)
    rows, others = checks.as_rows(x, columns), rows_of(residual, columns)
    weights, biases = rows_of(weight, columns), rows_of(bias, columns)
    key = (op, layout(rows), layout_of(others), total, layout_of(weights), layout_of(biases))
    key += (heads_of(dims, weight, bias) > 1, offset != 0.0, seed is not None, statistics, x.dtype)
    kernel = _kernels.get(key)
    if kernel is None:
        kernel = _kernels[key] = forward_kernel(*key)
    launch(
        kernel,
        rows,
        others,
        weights,
        biases,
        out.view(-1, columns),
        None if sums is None else sums.view(-1, columns),
        None if mean is None else mean.view(-1),
        None if rstd is None else rstd.view(-1),
        seed,
        eps,
        offset,
        *_dropout(dropout_p),
    )
    return tuple(results)


def forward_kernel(
    op: str,
    x: Layout,
    residual: Layout | None,
    total: str,
    weight: Layout | None,
    bias: Layout | None,
    heads: bool,
    offset: bool,
    dropout: bool,
    statistics: bool,
    out: torch.dtype,
) -> NormKernel:
    """The kernel for a forward on rows of these layouts; ``total`` is a dtype's name or empty."""
    rows = [x, fresh(x.columns, out)]
    if residual is not None:
        rows += [residual, fresh(x.columns, getattr(torch, total))]
    # parts of longer rows are held one after another: smaller ones cost little
    held = 1 if residual is None and x.columns <= _LONGEST_HELD else 2
    tiling, vectors = _tiling(x.columns, rows, (weight, bias), held)
    if op == "layer_norm" and tiling.vector == 1:  # every element is checked: registers run short
        tiling, vectors = _tiling(x.columns, rows, (weight, bias), 2 * held)
    return NormKernel(
        form=op,
        dtype=_name(x),
        out=str(out).removeprefix("torch."),
        residual=_name(residual),
        total=total or "none",
        weight=_name(weight),
        weight_vector=vectors[0],
        bias=_name(bias),
        bias_vector=vectors[1],
        heads=heads,
        offset=offset and weight is not None,
        dropout=dropout,
        statistics=statistics,
        tiling=tiling,
    )


@dataclasses.dataclass(frozen=True)
class NormBackwardKernel(Kernel):
    module: ClassVar[str] = "norm_backward"
    form: str
    normed: str  # dtype of what was normalised
    grad: str
    of_total: str  # dtype of the gradient that the sum with the residual has of its own, or "none"
    weight: str
    weight_vector: int
    heads: bool
    offset: bool
    dropout: bool
    input: str  # dtype of the input's gradient, or "none"
    residual: str
    tiling: RowTiling

    @property
    def threads(self) -> int:
        return self.tiling.threads

    @property
    def cluster(self) -> int:
        return self.tiling.cluster

    @property
    def shared_bytes(self) -> int:
        values = {"rms_norm": 1, "layer_norm": 2}[self.form]
        return 4 * values * self.tiling.warp_slots  # float32

    @property
    def full_width(self) -> bool:
        rows = (self.normed, self.grad, self.of_total, self.input, self.residual)
        return self.tiling.full_width(*(_size(name) for name in rows if name != "none")) and (
            self.weight == "none" or self.weight_vector * _size(self.weight) >= 16
        )

    @property
    def scalar_accesses(self) -> int:
        return {"rms_norm": 1, "layer_norm": 2}[self.form] + self.dropout


@dataclasses.dataclass(frozen=True)
class NormGradientsKernel(NormBackwardKernel):
    module: ClassVar[str] = "norm_gradients"
    of_weight: bool  # whether the weight's gradient is wanted
    of_bias: bool
    ahead: bool  # whether a row is asked for while another is worked on

    @property
    def resident(self) -> int:
        """CTAs of a multiprocessor, with 128 registers a thread."""
        return _RESIDENT_THREADS // self.threads

    @property
    def shared_bytes(self) -> int:
        return 2 * super().shared_bytes  # for two rows in turns

    @property
    def scalar_accesses(self) -> int:
        return 3 * super().scalar_accesses  # of the first row, and of two in turns

    def parts(self, rows: int, heads: int, processors: int) -> int:
        """Into how many parts the rows of each head are cut, one for each row of a CTA that stays.

        Args:
            rows: of a head.
            heads: that the rows are dealt to.
            processors: multiprocessors of the device.
        """
        tiling = self.tiling
        ctas = max(1, processors * self.resident // (tiling.cluster * heads))
        return min(ctas, -(-rows // tiling.rows)) * tiling.rows


@dataclasses.dataclass(frozen=True)
class ColumnTiling:
    """Columns over the threads of CTAs, and rows over groups of threads."""

    columns: int
    vector: int  # elements per access
    column_threads: int  # per CTA, a power of two
    row_threads: int  # parts of the rows per CTA
    shifted: ClassVar[bool] = False

    def __str__(self) -> str:
        return f"n{self.columns}_v{self.vector}_t{self.column_threads}_r{self.row_threads}"

    @property
    def threads(self) -> int:
        """Threads per CTA."""
        return self.column_threads * self.row_threads


@dataclasses.dataclass(frozen=True)
class NormColumnsKernel(Kernel):
    module: ClassVar[str] = "norm_columns"
    form: str
    normed: str
    grad: str
    weight: bool
    bias: bool
    tiling: ColumnTiling

    @property
    def threads(self) -> int:
        return self.tiling.threads

    @property
    def shared_bytes(self) -> int:
        return 0

    @property
    def full_width(self) -> bool:
        return self.tiling.vector * min(_size(self.normed), _size(self.grad)) >= 16

    @property
    def scalar_accesses(self) -> int:
        # one a row and statistic, of the four rows at a time and of those that are left over
        return 8 * {"rms_norm": 1, "layer_norm": 2}[self.form]

    def parts(self, rows: int, heads: int, processors: int) -> int:
        """Into how many parts ``rows`` rows are cut: enough to fill the device, but not short."""
        tiling = self.tiling
        across = -(-tiling.columns // (tiling.column_threads * tiling.vector)) * heads
        ctas = -(-processors * _CTAS_PER_PROCESSOR // across)
        return max(1, min(ctas * tiling.row_threads, -(-rows // _LEAST_ROWS)))


def _run_backward(
    op: str,
    normed: torch.Tensor,
    grad: torch.Tensor,
    of_total: torch.Tensor | None,
    weight: torch.Tensor | None,
    mean: torch.Tensor | None,
    rstd: torch.Tensor,
    seed: torch.Tensor | None,
    dims: int,
    heads: int,
    offset: float,
    dropout_p: float,
    d_input: str,
    d_residual: str,
    d_weight: str,
    d_bias: str,
) -> tuple[torch.Tensor, ...]:
    columns = math.prod(normed.shape[-dims:])
    of_rows = [
        empty(normed.shape, getattr(torch, name), normed.device) if name else None
        for name in (d_input, d_residual)
    ]
    if not normed.numel():
        sums = [
            empty((heads, columns), getattr(torch, name), normed.device).zero_() if name else None
            for name in (d_weight, d_bias)
        ]
        return tuple(one for one in (*of_rows, *sums) if one is not None)
    values, grads = checks.as_rows(normed, columns), checks.as_rows(grad, columns)
    further, weights = rows_of(of_total, columns), rows_of(weight, columns)
    key = (op, "backward", layout(values), layout(grads), layout_of(further), layout_of(weights))
    key += (heads > 1, offset != 0.0, seed is not None and d_input != "", d_input, d_residual)
    key += (bool(d_weight), bool(d_bias))
    kernels = _plans.get(key)
    if kernels is None:
        kernels = _plans[key] = _backward_kernels(op, *key[2:])
    statistics = [None if one is None else one.view(-1) for one in (mean, rstd)]
    arguments = (values, grads, further, weights, *statistics, seed if d_input else None)
    arguments += tuple(None if one is None else one.view(-1, columns) for one in of_rows)
    numbers = (offset, *_dropout(dropout_p))
    sums: list[torch.Tensor | None] = [None, None]
    if d_weight or d_bias:
        processors = multiprocessors(normed.device)
        parts = kernels[-1].parts(values.shape[0] // heads, heads, processors)
        sums = [
            empty((parts, heads, columns), torch.float32, normed.device) if name else None
            for name in (d_weight, d_bias)
        ]
    for kernel in kernels:
        if isinstance(kernel, NormGradientsKernel):
            launch(kernel, *arguments, *sums, *numbers)
        elif isinstance(kernel, NormBackwardKernel):
            launch(kernel, *arguments, *numbers)
        else:
            launch(kernel, values, grads, *statistics, *sums)
    results = [*of_rows]
    for one, name in zip(sums, (d_weight, d_bias), strict=True):
        if one is not None:
            flat = one.view(len(one), heads * columns)
            results.append(sum_columns(flat, getattr(torch, name)).view(heads, columns))
    return tuple(one for one in results if one is not None)


def _backward_kernels(
    op: str,
    normed: Layout,
    grad: Layout,
    of_total: Layout | None,
    weight: Layout | None,
    heads: bool,
    offset: bool,
    dropout: bool,
    d_input: str,
    d_residual: str,
    of_weight: bool,
    of_bias: bool,
) -> list[Kernel]:
    """One kernel for all gradients, or one for those of rows and one for sums over rows."""
    loaded = [normed, grad] if of_total is None else [normed, grad, of_total]
    made = [fresh(normed.columns, getattr(torch, name)) for name in (d_input, d_residual) if name]
    fields = {
        "form": op,
        "normed": _name(normed),
        "grad": _name(grad),
        "of_total": _name(of_total),
        "weight": _name(weight),
        "heads": heads and weight is not None,
        "offset": offset and weight is not None,
        "dropout": dropout,
        "input": d_input or "none",
        "residual": d_residual or "none",
    }
    sums = of_weight or of_bias
    if made and sums:
        found = _gradients_tiling(loaded, made, of_weight + of_bias)
        if found is not None:
            tiling, ahead = found
            vector = 0 if weight is None else shared_vector(weight, tiling)
            return [
                NormGradientsKernel(
                    **fields,
                    weight_vector=vector,
                    tiling=tiling,
                    of_weight=of_weight,
                    of_bias=of_bias,
                    ahead=ahead,
                )
            ]
    kernels: list[Kernel] = []
    if made:
        tiling, (vector,) = _tiling(normed.columns, [*loaded, *made], (weight,), len(loaded))
        kernels.append(NormBackwardKernel(**fields, weight_vector=vector, tiling=tiling))
    if sums:
        kernels.append(
            NormColumnsKernel(
                form=op,
                normed=_name(normed),
                grad=_name(grad),
                weight=of_weight,
                bias=of_bias,
                tiling=_column_tiling(normed, grad),
            )
        )
    return kernels


def _gradients_tiling(
    loaded: Sequence[Layout], made: Sequence[Layout], sums: int
) -> tuple[RowTiling, bool] | None:
    """The tiling of CTAs that stay, and whether they can ask for rows ahead; None for long rows.

    ``sums`` is how many sums over rows each thread keeps for each of its columns.
    """
    columns = loaded[0].columns
    basis = row_tiling(columns, *loaded, *made)
    vector = 1 if basis.shifted else basis.vector
    asked = sum(one.size for one in loaded)
    for elements, ahead, cluster in _STAYING:
        if columns > cluster * _RESIDENT_THREADS * elements:
            continue
        row_threads = min(_RESIDENT_THREADS, _power_of_two(-(-columns // elements)))
        ctas = _power_of_two(-(-columns // (row_threads * elements)))
        if elements == 16:
            simple = vector > 1 and row_threads >= _CTA
            simple = simple and (ahead or columns == row_threads * elements * ctas)
            most = _ELEMENT_BYTES if simple else _ELEMENT_BYTES_CHECKED
            if asked * (2 if ahead else 1) + 4 * sums > most or (vector == 1 and not ahead):
                continue
        tiling = dataclasses.replace(
            basis,
            vector=vector,
            row_threads=row_threads,
            rows=max(1, _CTA // row_threads),
            cluster=ctas,
            chunks=1,
            shifted=False,
        )
        return tiling, ahead
    return None


def _power_of_two(least: int) -> int:
    return 1 << (least - 1).bit_length()


def _column_tiling(*rows: Layout) -> ColumnTiling:
    """At most 128 threads side by side, and those that are left over on other rows."""
    columns = rows[0].columns
    tiling = row_tiling(columns, *rows)
    vector = 1 if tiling.shifted else tiling.vector
    column_threads = min(_CTA, _power_of_two(-(-columns // vector)))
    return ColumnTiling(columns, vector, column_threads, _CTA // column_threads)


def _like(
    op: str,
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    residual: torch.Tensor | None,
    seed: torch.Tensor | None,
    dims: int,
    eps: float,
    offset: float,
    dropout_p: float,
    total: str,
    statistics: bool,
) -> tuple[torch.Tensor, ...]:
    results = [x.new_empty(x.shape)]
    if residual is not None:
        results.append(x.new_empty(x.shape, dtype=getattr(torch, total)))
    if statistics:
        for _ in range(1 if op == "rms_norm" else 2):
            results.append(x.new_empty(x.shape[:-dims], dtype=torch.float32))
    return tuple(results)


def _like_backward(normed: torch.Tensor, *rest: Any) -> tuple[torch.Tensor, ...]:
    dims, heads, _, _, *names = rest[6:]
    columns = math.prod(normed.shape[-dims:])
    shapes = (normed.shape, normed.shape, (heads, columns), (heads, columns))
    return tuple(
        normed.new_empty(shape, dtype=getattr(torch, name))
        for shape, name in zip(shapes, names, strict=True)
        if name
    )


_ARGUMENTS = (
    "Tensor input, Tensor? weight, Tensor? bias, Tensor? residual, Tensor? seed, int dims, "
    "float eps, float offset, float dropout_p, str total, bool statistics"
)
_BACKWARD_ARGUMENTS = (
    "Tensor normed, Tensor grad, Tensor? of_total, Tensor? weight, Tensor? mean, Tensor rstd, "
    "Tensor? seed, int dims, SymInt heads, float offset, float dropout_p, str d_input, "
    "str d_residual, str d_weight, str d_bias"
)
_forward_ops = {
    op: define(f"{op}({_ARGUMENTS}) -> Tensor[]", partial(_run, op), partial(_like, op))
    for op in ("rms_norm", "layer_norm")
}
_backward_ops = {
    op: define(
        f"{op}_backward({_BACKWARD_ARGUMENTS}) -> Tensor[]",
        partial(_run_backward, op),
        _like_backward,
    )
    for op in ("rms_norm", "layer_norm")
}
