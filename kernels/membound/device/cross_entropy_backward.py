"""Gradient of cross-entropy by the logits, from the rows' logarithms of summed exponentials."""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64, const_expr

from .arguments import current_stream, matrix, scalars
from .cross_entropy import weights
from .logits import Logits, target_of
from .row_kernel import RowKernel
from .scores import exponential


class CrossEntropyBackward(RowKernel):
    def __init__(self, kernel: Any) -> None:
        super().__init__(kernel)
        self.logits = Logits(kernel, self.rows)
        self.smoothed = kernel.smoothed

    @cute.jit
    def __call__(
        self,
        d_loss: cute.Tensor,
        d_lse: cute.Tensor | None,
        x: cute.Tensor,
        target: cute.Tensor,
        weight: cute.Tensor | None,
        weight_sum: cute.Tensor | None,
        lse: cute.Tensor,
        out: cute.Tensor,
        ignored: Int64,
        scale: Float32,
        cap: Float32,
        smoothing: Float32,
        z_loss: Float32,
        stream: Any,
    ) -> None:
        self.kernel(
            d_loss,
            d_lse,
            x,
            target,
            weight,
            weight_sum,
            lse,
            out,
            ignored,
            scale,
            cap,
            smoothing,
            z_loss,
        ).launch(**self.shape(x.shape[0], stream))

    @cute.kernel
    def kernel(
        self,
        d_loss: cute.Tensor,
        d_lse: cute.Tensor | None,
        x: cute.Tensor,
        target: cute.Tensor,
        weight: cute.Tensor | None,
        weight_sum: cute.Tensor | None,
        lse: cute.Tensor,
        out: cute.Tensor,
        ignored: Int64,
        scale: Float32,
        cap: Float32,
        smoothing: Float32,
        z_loss: Float32,
    ) -> None:
        thread, row, exists = self.place(x.shape[0])
        columns = self.tiling.columns

        # gradient by a logit: of_share * softmax - of_weights * weight - (at the target) of_target
        own, origin = Int32(-1), Float32(0.0)  # the target's column
        of_share, of_target, of_weights = Float32(0.0), Float32(0.0), Float32(0.0)
        if exists:
            index, counts, share = target_of(target, weight, row, columns, ignored)
            origin = lse[row]
            grad = d_loss[row]
            if const_expr(self.smoothed):
                share = share * (1.0 - smoothing)
            if counts:
                own = Int32(index)
                of_target = grad * share
                of_share = grad * (share + 2.0 * z_loss * origin)
                if const_expr(self.smoothed):
                    of_weights = grad * smoothing / columns
                    mass = Float32(columns)
                    if const_expr(weight is not None):
                        mass = weight_sum[0]
                    of_share += of_weights * mass
            else:  # 0, or NaN for what is no class
                of_share = share
            if const_expr(d_lse is not None):
                of_share += d_lse[row]

        values = self.rows.fragment(out.element_type, 0)
        for chunk in cutlass.range_constexpr(self.tiling.chunks):
            lane = self.rows.lane(thread, chunk)
            logits = self.logits.load(x, row, exists, lane, scale, cap)
            grads = self.rows.fragment(Float32, 0.0)
            if of_share != 0.0:  # else a row of NaN that is ignored would not be
                grads.store(exponential(logits - origin) * of_share)
            if exists:
                if const_expr(self.smoothed):
                    self.smooth(grads, weight, x, row, lane, of_weights)
                for i in cutlass.range_constexpr(self.rows.count):
                    column = self.rows.column(x[row, None], lane, i)
                    for v in cutlass.range_constexpr(self.rows.vector):
                        if column + v == own:
                            grads[v, i] = grads[v, i] - of_target
            slope = self.logits.slope(logits, scale, cap)
            if const_expr(slope is not None):
                if of_share != 0.0 or of_target != 0.0 or of_weights != 0.0:  # likewise
                    grads.store(grads.load() * slope)
            values.store(grads.load().to(out.element_type))
            if exists:
                self.rows.store(values, out[row, None], lane)

    @cute.jit
    def smooth(
        self,
        grads: cute.Tensor,
        weight: cute.Tensor | None,
        x: cute.Tensor,
        row: Int32,
        lane: Int32,
        of_weights: Float32,
    ) -> None:
        """Take off what smoothing gives each class."""
        if const_expr(weight is not None):
            shares = self.rows.load_shared(weight, x[row, None], lane)
            grads.store(grads.load() - shares.load().to(Float32) * of_weights)
        else:
            grads.store(grads.load() - of_weights)


def trace(kernel: Any) -> tuple[CrossEntropyBackward, tuple[Any, ...]]:
    """The jit function of ``kernel`` and arguments that stand for every call of it."""
    rows = cute.sym_int()
    x, out = (matrix(kernel.dtype, rows, kernel.tiling) for _ in range(2))
    d_lse = scalars("float32", rows) if kernel.d_lse else None
    mass = scalars("float32", 1) if kernel.weight != "none" and kernel.smoothed else None
    arguments = (scalars("float32", rows), d_lse, x, scalars(kernel.target, rows), weights(kernel))
    numbers = (Int64(0), Float32(1.0), Float32(1.0), Float32(0.0), Float32(0.0))
    results = mass, scalars("float32", rows), out
    return CrossEntropyBackward(kernel), (*arguments, *results, *numbers, current_stream())
