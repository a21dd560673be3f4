"""Rotary position embedding (Su et al., 2021)."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import torch
from torch.autograd.function import once_differentiable

from ..runtime import Kernel, empty, launch
from . import checks
from .layouts import Layout, layout
from .registration import define, public

_OP = "rotary"


@dataclasses.dataclass(frozen=True)
class RotaryKernel(Kernel):
    module: ClassVar[str] = "rotary"
    dtype: str
    table: str  # dtype of cos and sin
    turned: int  # elements of a head that are turned
    width_beside: int  # and that are not
    copied: int  # of those, how many are copied: all, or none in place
    vector: int  # pairs turned by a thread, elements per access
    table_vector: int  # elements of cos and sin that can be accessed at a time
    interleaved: bool
    offsets: str  # dtype, or "none"
    cu_seqlens: str  # dtype, or "none"

    @property
    def threads(self) -> int:
        return 256

    @property
    def shared_bytes(self) -> int:
        return 0

    @property
    def full_width(self) -> bool:
        elements = 2 * self.vector if self.interleaved else self.vector
        wide = elements * getattr(torch, self.dtype).itemsize >= 16
        table = min(self.vector, self.table_vector) * getattr(torch, self.table).itemsize >= 16
        return wide and table and not self.copied

    @property
    def scalar_accesses(self) -> int:
        return (self.offsets != "none") + 3 * (self.cu_seqlens != "none")


def rotary(
    input: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    *,
    interleaved: bool = False,
    offsets: int | torch.Tensor = 0,
    cu_seqlens: torch.Tensor | None = None,
    inplace: bool = False,
) -> torch.Tensor:
    """Turn pairs (a, b) of each head into ``(a cos - b sin, a sin + b cos)``.

    Args:
        input: (batch, tokens, heads, D), or (tokens, heads, D) with ``cu_seqlens``, in bfloat16,
            float16 or float32 on a Hopper GPU. Any strides but the last, which must be 1; another
            tensor is copied first.
        cos, sin: (positions, R / 2), in one of the three dtypes, R up to D and even. The first R
            elements of a head are turned, the others kept. No gradient.
        interleaved: pairs are neighbours, (2 i, 2 i + 1), instead of (i, i + R / 2).
        offsets: position of a sequence's first token: a number, or int32 or int64 of
            (sequences,). Positions outside the tables that such a tensor, or cu_seqlens, would
            lead to are taken for the nearest inside.
        cu_seqlens: int32 or int64 (sequences + 1,): where sequences that lie one behind the other
            begin, and the number of tokens.
        inplace: write into input's memory and return input.

    Returns:
        A tensor of input's shape and dtype. Computed in float32; the gradient turns back.

    Raises:
        TypeError: an argument is no tensor or of another dtype.
        ValueError: input is not on a GPU, or shapes, devices or positions do not fit.
    """
    if not inplace:
        return _apart(input, cos, sin, interleaved, offsets, cu_seqlens)
    arguments = _arguments(input, cos, sin, interleaved, offsets, cu_seqlens)
    if checks.needs_grad(input):
        return _Gradient.apply(input, *arguments, True)
    _op_in_place(input, *arguments, 1.0)
    # who saved input for a backward is told, which a call that is repeated could not
    torch.autograd.graph.increment_version(input)
    return input


@public
def _apart(
    x: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    interleaved: bool,
    offsets: int | torch.Tensor,
    cu_seqlens: torch.Tensor | None,
) -> torch.Tensor:
    arguments = _arguments(x, cos, sin, interleaved, offsets, cu_seqlens)
    if checks.needs_grad(x):
        return _Gradient.apply(x, *arguments, False)
    return _op(x, *arguments, 1.0)


def _arguments(
    x: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    interleaved: bool,
    offsets: int | torch.Tensor,
    cu_seqlens: torch.Tensor | None,
) -> tuple[Any, ...]:
    """The low-level op's arguments behind the input, checked."""
    _check(x, cos, sin, offsets, cu_seqlens)
    if torch.is_grad_enabled() and (cos.requires_grad or sin.requires_grad):
        raise ValueError(f"{_OP}: cos and sin have no gradient; pass them detached")
    each = offsets if isinstance(offsets, torch.Tensor) else None
    start = 0 if each is not None else offsets
    return cos, sin, each, cu_seqlens, start, interleaved


def _check(
    x: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    offsets: int | torch.Tensor,
    cu_seqlens: torch.Tensor | None,
) -> None:
    checks.row_input(_OP, "input", x)
    dims = "(batch, tokens, heads, D)" if cu_seqlens is None else "(tokens, heads, D)"
    if x.dim() != (4 if cu_seqlens is None else 3):
        raise ValueError(f"{_OP}: input has shape {tuple(x.shape)}; expected {dims}")
    for name, table in (("cos", cos), ("sin", sin)):
        checks.row_input(_OP, name, table)
        if table.dim() != 2 or table.shape[1] * 2 > x.shape[-1]:
            raise ValueError(
                f"{_OP}: {name} has shape {tuple(table.shape)}; expected (positions, R / 2) "
                f"with R up to input's D, {x.shape[-1]}"
            )
        if table.device != x.device:
            raise ValueError(f"{_OP}: {name} is on {table.device}, input on {x.device}")
    if cos.shape != sin.shape or cos.dtype != sin.dtype:
        raise ValueError(
            f"{_OP}: sin has shape {tuple(sin.shape)} and dtype {sin.dtype}; expected cos's, "
            f"{tuple(cos.shape)} and {cos.dtype}"
        )
    sequences = x.shape[0]
    if cu_seqlens is not None:
        _integers("cu_seqlens", cu_seqlens, x)
        if cu_seqlens.dim() != 1 or cu_seqlens.shape[0] < 2:
            raise ValueError(
                f"{_OP}: cu_seqlens has shape {tuple(cu_seqlens.shape)}; expected (sequences + 1,)"
            )
        sequences = cu_seqlens.shape[0] - 1
    if isinstance(offsets, torch.Tensor):
        _integers("offsets", offsets, x)
        if tuple(offsets.shape) != (sequences,):
            raise ValueError(
                f"{_OP}: offsets has shape {tuple(offsets.shape)}; expected ({sequences},)"
            )
    elif not isinstance(offsets, int):
        raise TypeError(f"{_OP}: offsets must be an int or a tensor, got {type(offsets).__name__}")
    elif offsets < 0 or (cu_seqlens is None and offsets + x.shape[1] > cos.shape[0]):
        raise ValueError(
            f"{_OP}: offsets is {offsets}; with {x.shape[1]} tokens and tables of "
            f"{cos.shape[0]} positions, accepted are 0 to {cos.shape[0] - x.shape[1]}"
        )


def _integers(name: str, value: torch.Tensor, x: torch.Tensor) -> None:
    if not isinstance(value, torch.Tensor) or value.dtype not in (torch.int32, torch.int64):
        found = value.dtype if isinstance(value, torch.Tensor) else type(value).__name__
        raise TypeError(f"{_OP}: {name} must be a tensor of int32 or int64, got {found}")
    if value.device != x.device:
        raise ValueError(f"{_OP}: {name} is on {value.device}, input on {x.device}")


class _Gradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, *rest: Any) -> torch.Tensor:
        *arguments, inplace = rest
        cos, sin, offsets, cu_seqlens, start, interleaved = arguments
        ctx.save_for_backward(cos, sin, offsets, cu_seqlens)
        ctx.start, ctx.interleaved = start, interleaved
        if inplace:
            _op_in_place(x, *arguments, 1.0)
            ctx.mark_dirty(x)
            return x
        return _op(x, *arguments, 1.0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        d_x = _op(grad, *ctx.saved_tensors, ctx.start, ctx.interleaved, -1.0)
        return d_x, *([None] * 7)


_kernels: dict[tuple[Any, ...], RotaryKernel] = {}


def _kernel(
    x: torch.Tensor,
    out: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    offsets: torch.Tensor | None,
    cu_seqlens: torch.Tensor | None,
    interleaved: bool,
    in_place: bool,
) -> RotaryKernel:
    heads, tables = (layout(x), layout(out)), (layout(cos), layout(sin))
    integers = [
        "none" if value is None else checks.dtype_name(value) for value in (offsets, cu_seqlens)
    ]
    key = (heads, tables, *integers, interleaved, in_place)
    kernel = _kernels.get(key)
    if kernel is None:
        turned, width = 2 * cos.shape[1], x.shape[-1]
        vector = 16 // x.element_size() // (2 if interleaved else 1)
        lengths = (turned // 2, width - turned)
        vector = _fitting(vector, heads, lengths, 2 if interleaved else 1)
        kernel = _kernels[key] = RotaryKernel(
            dtype=checks.dtype_name(x),
            table=checks.dtype_name(cos),
            turned=turned,
            width_beside=width - turned,
            copied=0 if in_place else width - turned,
            vector=vector,
            table_vector=_fitting(vector, tables, (turned // 2,), 1),
            interleaved=interleaved,
            offsets=integers[0],
            cu_seqlens=integers[1],
        )
    return kernel


def _fitting(vector: int, layouts: tuple[Layout, ...], lengths: tuple[int, ...], pair: int) -> int:
    """The most elements up to ``vector`` that divide all lengths and fit every address."""
    while vector > 1 and not (
        all(length % vector == 0 for length in lengths)
        and all(stride % (pair * vector) == 0 for one in layouts for stride in one.strides)
        and all(one.offset % min(16, pair * vector * one.size) == 0 for one in layouts)
    ):
        vector //= 2
    return vector


def _heads(x: torch.Tensor) -> torch.Tensor:
    """``x`` as (batch, tokens, heads, D) with contiguous heads."""
    x = x if x.dim() == 4 else x.unsqueeze(0)
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()


def _launch(
    x: torch.Tensor,
    out: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    offsets: torch.Tensor | None,
    cu_seqlens: torch.Tensor | None,
    start: int,
    interleaved: bool,
    direction: float,
) -> None:
    if not x.numel():
        return
    cos, sin = (table if table.stride(1) == 1 else table.contiguous() for table in (cos, sin))
    offsets, cu_seqlens = (None if v is None else v.contiguous() for v in (offsets, cu_seqlens))
    in_place = x is out
    kernel = _kernel(x, out, cos, sin, offsets, cu_seqlens, interleaved, in_place)
    launch(kernel, x, cos, sin, out, offsets, cu_seqlens, start, direction)


def _run(x: torch.Tensor, *rest: Any) -> torch.Tensor:
    out = empty(x.shape, x.dtype, x.device)
    _launch(_heads(x), out if out.dim() == 4 else out.unsqueeze(0), *rest)
    return out


def _run_in_place(x: torch.Tensor, *rest: Any) -> None:
    heads = _heads(x)
    _launch(heads, heads, *rest)
    if heads.data_ptr() != x.data_ptr():
        x.copy_(heads.view(x.shape))


def _like(x: torch.Tensor, *_: Any) -> torch.Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _nothing(*_: Any) -> None:
    return None


_REST = (
    "Tensor cos, Tensor sin, Tensor? offsets, Tensor? cu_seqlens, SymInt start, bool interleaved, "
    "float direction"
)
_op = define(f"rotary(Tensor input, {_REST}) -> Tensor", _run, _like)
_op_in_place = define(f"rotary_(Tensor(a!) input, {_REST}) -> ()", _run_in_place, _nothing)
