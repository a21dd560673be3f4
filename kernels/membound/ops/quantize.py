"""Quantisation to float8_e4m3fn, alone or of a gated activation's result."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import torch

from ..runtime import Kernel, empty, launch
from . import checks
from .layouts import Layout, layout
from .registration import define, public
from .tiling import MAX_COLUMNS, RowTiling, row_tiling

#: The size of blocks that is offered.
BLOCK = 128


@dataclasses.dataclass(frozen=True)
class QuantizeKernel(Kernel):
    module: ClassVar[str] = "quantize"
    form: str  # what is quantised: the "input", or "swiglu" of two
    dtype: str
    block: int  # columns that share a scale, or 0 for rows
    whole: bool  # whether the last block of a row is as long as the others
    in_phase: bool  # whether rows start as many elements behind a boundary as those of the result
    tiling: RowTiling

    @property
    def threads(self) -> int:
        return self.tiling.threads

    @property
    def cluster(self) -> int:
        return self.tiling.cluster

    @property
    def shared_bytes(self) -> int:
        return 4 * self.tiling.warp_slots  # float32, for the maximum

    @property
    def full_width(self) -> bool:
        return False  # results take fewer bits than what is read


@public
def quantize_fp8(
    input: torch.Tensor, block: int | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantise rows, or blocks of 128 columns of them, to float8_e4m3fn with a scale each.

    ``scale = amax(|x|) / 448``, or 1 where that is 0, and each element becomes the nearest value
    of ``x / scale``, ties to even, as torch rounds it. Where there is NaN the scale and all
    elements are NaN; where there is an infinity the scale is inf, infinite elements are NaN, and
    finite ones 0. No gradient flows through.

    Args:
        input: (..., N) tensor in bfloat16, float16 or float32 on a Hopper GPU, N up to 1,048,576.
            Rows may be strided; a tensor whose last dimension is strided is copied first.
        block: None for a scale a row, or 128 for one each 128 columns, of which a row's last may
            have fewer.

    Returns:
        A float8_e4m3fn tensor of input's shape, and the scales in float32: of shape (...), or
        (..., ceil(N / 128)).

    Raises:
        TypeError: input is no tensor or of another dtype.
        ValueError: input is not on a GPU, has no columns or too many, or block is another.
    """
    checks.row_input("quantize_fp8", "input", input)
    _check("quantize_fp8", input, input.shape[-1], block)
    return _typed(_quantize(input.detach(), block or 0))


@public
def swiglu_fp8(
    gate: torch.Tensor, up: torch.Tensor | None = None, block: int | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """:func:`quantize_fp8` of ``silu(gate) * up``, which is computed in float32 and not stored.

    Args:
        gate: (..., N) tensor as for :func:`quantize_fp8`; without up (..., 2 N), the gate and
            behind it up.
        up: tensor of gate's shape and dtype, or None.
        block: None for a scale a row, or 128 for one each 128 columns.

    Returns:
        A float8_e4m3fn tensor (..., N), and the scales in float32: of shape (...), or
        (..., ceil(N / 128)).

    Raises:
        TypeError: gate or up is no tensor or of another dtype.
        ValueError: they are not on one GPU or do not fit, have no columns or too many, or block
            is another.
    """
    checks.row_input("swiglu_fp8", "gate", gate)
    columns = gate.shape[-1]
    if up is None:
        if columns % 2:
            raise ValueError(
                f"swiglu_fp8: gate has {columns} columns and there is no up; "
                "expected an even number, two halves"
            )
        columns //= 2
    else:
        checks.row_input("swiglu_fp8", "up", up)
        if up.dtype != gate.dtype:
            raise TypeError(f"swiglu_fp8: up has dtype {up.dtype}; expected gate's, {gate.dtype}")
        if up.shape != gate.shape:
            raise ValueError(
                f"swiglu_fp8: up has shape {tuple(up.shape)}; expected gate's, {tuple(gate.shape)}"
            )
        if up.device != gate.device:
            raise ValueError(f"swiglu_fp8: up is on {up.device}, gate on {gate.device}")
        up = up.detach()
    _check("swiglu_fp8", gate, columns, block)
    return _typed(_swiglu(gate.detach(), up, block or 0))


def _check(op: str, x: torch.Tensor, columns: int, block: int | None) -> None:
    checks.row_shape(op, x, columns, MAX_COLUMNS)
    if block not in (None, BLOCK):
        raise ValueError(f"{op}: block is {block!r}; accepted are None (a row) and {BLOCK}")
    blocks = x.numel() // x.shape[-1] * -(-columns // (block or columns))
    if blocks >= 1 << 31:
        raise ValueError(f"{op}: {blocks} blocks; the most supported is {(1 << 31) - 1}")


def _typed(results: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    # kernels write bytes: the libraries between do not all know the type
    return results[0].view(torch.float8_e4m3fn), results[1]


_kernels: dict[tuple[Any, ...], QuantizeKernel] = {}


def _kernel(form: str, block: int, *rows: Layout) -> QuantizeKernel:
    key = (form, block, rows)
    kernel = _kernels.get(key)
    if kernel is None:
        x = rows[0]
        # where a row is longest, fewer elements at a time leave registers for its ends
        held = 2 if len(rows) > 1 or x.columns > MAX_COLUMNS // 4 else 1
        tiling = row_tiling(block or x.columns, *rows, held=held)
        kernel = _kernels[key] = QuantizeKernel(
            form=form,
            dtype=str(x.dtype).removeprefix("torch."),
            block=block,
            whole=not block or x.columns % block == 0,
            in_phase=not tiling.shifted
            or (x.offset == 0 and (x.strides[0] - x.columns) % tiling.vector == 0),
            tiling=tiling,
        )
    return kernel


def _run(
    form: str, x: torch.Tensor, up: torch.Tensor | None, block: int
) -> tuple[torch.Tensor, torch.Tensor]:
    columns = x.shape[-1]
    q = empty(x.shape, torch.uint8, x.device)
    scales = empty(_scales_shape(x, block), torch.float32, x.device)
    if x.numel():
        matrices = [checks.as_rows(one, columns) for one in (x, up) if one is not None]
        kernel = _kernel(form, block, *map(layout, matrices))
        other = matrices[1] if up is not None else None
        launch(kernel, matrices[0], other, q.view(-1, columns), scales.view(-1))
    return q, scales


def _run_quantize(x: torch.Tensor, block: int) -> tuple[torch.Tensor, torch.Tensor]:
    return _run("input", x, None, block)


def _run_swiglu(
    gate: torch.Tensor, up: torch.Tensor | None, block: int
) -> tuple[torch.Tensor, torch.Tensor]:
    return _run("swiglu", *_halves(gate, up), block)


def _halves(gate: torch.Tensor, up: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    if up is None:
        half = gate.shape[-1] // 2
        gate, up = gate[..., :half], gate[..., half:]
    return gate, up


def _scales_shape(x: torch.Tensor, block: int) -> tuple[int, ...]:
    return (*x.shape[:-1], -(-x.shape[-1] // block)) if block else x.shape[:-1]


def _fake_quantize(x: torch.Tensor, block: int) -> tuple[torch.Tensor, torch.Tensor]:
    q = x.new_empty(x.shape, dtype=torch.uint8)
    return q, x.new_empty(_scales_shape(x, block), dtype=torch.float32)


def _fake_swiglu(
    gate: torch.Tensor, up: torch.Tensor | None, block: int
) -> tuple[torch.Tensor, torch.Tensor]:
    return _fake_quantize(_halves(gate, up)[0], block)


_quantize = define(
    "quantize_fp8(Tensor input, int block) -> (Tensor, Tensor)", _run_quantize, _fake_quantize
)
_swiglu = define(
    "swiglu_fp8(Tensor gate, Tensor? up, int block) -> (Tensor, Tensor)", _run_swiglu, _fake_swiglu
)
