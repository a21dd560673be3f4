"""Softmax, rms_norm and cross-entropy over rows of different lengths in one flat tensor.

Rows are cut into tiles, which CTAs that stay take one after another, so that neither many short
rows nor a long one leave multiprocessors idle. A row of one tile is finished at once. Of a longer
row, each tile leaves its part of the row's statistics and is put on a list; a second launch goes
through the list, combines the parts in their order, and reads the tile again for the result.
"""

from __future__ import annotations

import operator
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64, const_expr
from cutlass.cute.runtime import make_fake_tensor

from .arguments import DTYPES, current_stream, scalars
from .scores import exponential
from .stretches import THREADS, Stretches, first_tile, row_of, tile

WARPS = THREADS // 32


class Ragged:
    """One of the forms over ragged rows; ``second`` goes through the list of long rows' tiles."""

    def __init__(self, kernel: Any) -> None:
        self.form = kernel.form
        self.second = kernel.second
        self.shared_bytes = kernel.shared_bytes
        element = DTYPES[kernel.dtype]
        self.parts = Stretches(element.width // 8)
        self.length = tile(element.width // 8)
        self.exponents = kernel.form in ("softmax", "cross_entropy")
        self.reduces = kernel.form != "cross_entropy_backward"

    @cute.jit
    def __call__(
        self,
        x: cute.Tensor,
        grad: cute.Tensor | None,
        cu_seqlens: cute.Tensor,
        target: cute.Tensor | None,
        out: cute.Tensor | None,
        loss: cute.Tensor | None,
        lse: cute.Tensor | None,
        counters: cute.Tensor,
        statistics: cute.Tensor,
        work: cute.Tensor,
        ignored: Int64,
        eps: Float32,
        ctas: Int32,
        stream: Any,
    ) -> None:
        self.kernel(
            x,
            grad,
            cu_seqlens,
            target,
            out,
            loss,
            lse,
            counters,
            statistics,
            work,
            ignored,
            eps,
        ).launch(
            grid=[ctas, 1, 1],
            block=[THREADS, 1, 1],
            smem=self.shared_bytes,
            stream=stream,
        )

    @cute.kernel
    def kernel(
        self,
        x: cute.Tensor,
        grad: cute.Tensor | None,
        cu_seqlens: cute.Tensor,
        target: cute.Tensor | None,
        out: cute.Tensor | None,
        loss: cute.Tensor | None,
        lse: cute.Tensor | None,
        counters: cute.Tensor,
        statistics: cute.Tensor,
        work: cute.Tensor,
        ignored: Int64,
        eps: Float32,
    ) -> None:
        thread, _, _ = cute.arch.thread_idx()
        allocator = cutlass.memory.SmemAllocator()
        slots = allocator.allocate_tensor(Float32, cute.make_layout((2, WARPS)))
        ticket = allocator.allocate_tensor(Int32, cute.make_layout(1))
        rows = Int32(cu_seqlens.shape[0]) - 1

        # counters: tickets of the first launch, tiles on the list, tickets of the second launch
        queue = counters.iterator + (2 if const_expr(self.second) else 0)
        limit = Int32(work.shape[0])
        if const_expr(self.second):
            limit = counters[1]
        upcoming = Int32(0)
        if thread == 0:
            ticket[0] = cute.arch.atomic_add(queue, Int32(1))
        cute.arch.barrier()
        mine = ticket[0]
        while mine < limit:
            if thread == 0:  # its answer is needed only when this tile is done
                upcoming = cute.arch.atomic_add(queue, Int32(1))
            number = mine
            if const_expr(self.second):
                number = work[mine]
            row = row_of(cu_seqlens, number, rows, self.length)
            part = number - first_tile(cu_seqlens, row, self.length)
            start, stop = Int64(cu_seqlens[row]), Int64(cu_seqlens[row + 1])
            begin = start + Int64(part) * self.length
            end = min(begin + self.length, stop)
            if begin < end or part == 0:
                self.handle(
                    x,
                    grad,
                    target,
                    out,
                    loss,
                    lse,
                    counters,
                    statistics,
                    work,
                    slots,
                    number,
                    row,
                    part,
                    start,
                    stop,
                    begin,
                    end,
                    ignored,
                    eps,
                )
            cute.arch.barrier()
            if thread == 0:
                ticket[0] = upcoming
            cute.arch.barrier()
            mine = ticket[0]

    @cute.jit
    def handle(
        self,
        x: cute.Tensor,
        grad: cute.Tensor | None,
        target: cute.Tensor | None,
        out: cute.Tensor | None,
        loss: cute.Tensor | None,
        lse: cute.Tensor | None,
        counters: cute.Tensor,
        statistics: cute.Tensor,
        work: cute.Tensor,
        slots: cute.Tensor,
        number: Int32,
        row: Int32,
        part: Int32,
        start: Int64,
        stop: Int64,
        begin: Int64,
        end: Int64,
        ignored: Int64,
        eps: Float32,
    ) -> None:
        """Finish a tile, or leave its statistics."""
        thread, _, _ = cute.arch.thread_idx()
        fill = -x.element_type.inf if const_expr(self.exponents) else 0
        if const_expr(self.form == "cross_entropy_backward"):
            fill = -x.element_type.inf
        values = self.parts.load(x, begin, end, fill).load().to(Float32)
        grads = values
        if const_expr(self.form in ("softmax_backward", "rms_norm_backward")):
            grads = self.parts.load(grad, begin, end, 0).load().to(Float32)

        first, second = Float32(0.0), Float32(0.0)
        if const_expr(self.reduces):
            if const_expr(self.second):
                first, second = self.combine(statistics, number - part, stop - start)
            else:
                first, second = self.gather(values, grads)
            first, second = self.share(slots, first, second)

        whole = stop - start <= self.length
        if const_expr(self.second or not self.reduces):
            self.finish(
                values,
                grads,
                x,
                grad,
                target,
                out,
                loss,
                lse,
                row,
                part,
                start,
                stop,
                begin,
                end,
                first,
                second,
                ignored,
                eps,
            )
        elif whole:
            self.finish(
                values,
                grads,
                x,
                grad,
                target,
                out,
                loss,
                lse,
                row,
                part,
                start,
                stop,
                begin,
                end,
                first,
                second,
                ignored,
                eps,
            )
        elif thread == 0:
            statistics[number, 0] = first
            statistics[number, 1] = second
            work[cute.arch.atomic_add(counters.iterator + 1, Int32(1))] = number

    @cute.jit
    def gather(self, values: cute.TensorSSA, grads: cute.TensorSSA) -> tuple:
        """A thread's statistics: maximum and sum of exponentials, or two sums."""
        add = cute.ReductionOp.ADD
        first, second = Float32(0.0), Float32(0.0)
        if const_expr(self.exponents):
            first = values.reduce(cute.ReductionOp.MAX, -Float32.inf, reduction_profile=0)
            second = exponential(values - origin(first)).reduce(add, 0.0, reduction_profile=0)
        elif const_expr(self.form == "softmax_backward"):
            first = (values * grads).reduce(add, 0.0, reduction_profile=0)
        else:
            first = (values * values).reduce(add, 0.0, reduction_profile=0)
            if const_expr(self.form == "rms_norm_backward"):
                second = (values * grads).reduce(add, 0.0, reduction_profile=0)
        return first, second

    @cute.jit
    def combine(self, statistics: cute.Tensor, begin: Int32, length: Int64) -> tuple:
        """A thread's statistics of what all tiles of a row left."""
        thread, _, _ = cute.arch.thread_idx()
        first = -Float32.inf if const_expr(self.exponents) else Float32(0.0)
        second = Float32(0.0)
        at, tiles = thread, Int32((length + self.length - 1) // self.length)
        while at < tiles:
            first, second = self.both(
                first, second, statistics[begin + at, 0], statistics[begin + at, 1]
            )
            at += THREADS
        return first, second

    @cute.jit
    def both(self, first: Float32, second: Float32, other: Float32, more: Float32) -> tuple:
        """The statistics of two parts of a row together."""
        if const_expr(self.exponents):
            top = cute.arch.fmax(first, other)
            second = second * exponential(origin(first) - origin(top))
            second += more * exponential(origin(other) - origin(top))
            first = top
        else:
            first += other
            second += more
        return first, second

    @cute.jit
    def share(self, slots: cute.Tensor, first: Float32, second: Float32) -> tuple:
        """The statistics of all threads of the CTA together, for each of them."""
        lane, warp = cute.arch.lane_idx(), cute.arch.warp_idx()
        if const_expr(self.exponents):
            top = cute.arch.warp_reduction(first, cute.arch.fmax)
            second = second * exponential(origin(first) - origin(top))
            first = top
        else:
            first = cute.arch.warp_reduction(first, operator.add)
        second = cute.arch.warp_reduction(second, operator.add)
        if lane == 0:
            slots[0, warp] = first
            slots[1, warp] = second
        cute.arch.barrier()
        first, second = slots[0, 0], slots[1, 0]
        for i in cutlass.range_constexpr(1, WARPS):
            first, second = self.both(first, second, slots[0, i], slots[1, i])
        return first, second

    @cute.jit
    def finish(
        self,
        values: cute.TensorSSA,
        grads: cute.TensorSSA,
        x: cute.Tensor,
        grad: cute.Tensor | None,
        target: cute.Tensor | None,
        out: cute.Tensor | None,
        loss: cute.Tensor | None,
        lse: cute.Tensor | None,
        row: Int32,
        part: Int32,
        start: Int64,
        stop: Int64,
        begin: Int64,
        end: Int64,
        first: Float32,
        second: Float32,
        ignored: Int64,
        eps: Float32,
    ) -> None:
        """Write a tile's result, given its row's statistics."""
        thread, _, _ = cute.arch.thread_idx()
        if const_expr(self.form == "cross_entropy"):
            if thread == 0 and part == 0:
                index = Int64(target[row])
                result = Float32(0.0)
                if index != ignored:
                    result = Float32(float("nan"))
                    if index >= 0 and index < stop - start:
                        own = x[start + index].to(Float32)
                        result = (origin(first) - own) + cute.math.log(second)
                loss[row] = result
                lse[row] = origin(first) + cute.math.log(second)
        else:
            results = self.parts.fragment(out.element_type, 0)
            if const_expr(self.form == "softmax"):
                result = exponential(values - origin(first)) * (1.0 / second)
            elif const_expr(self.form == "softmax_backward"):
                result = values * (grads - first)
            elif const_expr(self.form == "cross_entropy_backward"):
                result = self.of_loss(values, grad, lse, target, row, start, stop, begin, ignored)
            else:
                rstd = cute.math.rsqrt(first / Float32(stop - start) + eps)
                if const_expr(self.form == "rms_norm"):
                    result = values * rstd
                else:
                    share = second * rstd * rstd / Float32(stop - start)
                    result = (grads - values * share) * rstd
            results.store(result.to(out.element_type))
            self.parts.store(results, out, begin, end)

    @cute.jit
    def of_loss(
        self,
        values: cute.TensorSSA,
        grad: cute.Tensor,
        lse: cute.Tensor,
        target: cute.Tensor,
        row: Int32,
        start: Int64,
        stop: Int64,
        begin: Int64,
        ignored: Int64,
    ) -> cute.TensorSSA:
        """The gradient of cross-entropy by the logits of a tile."""
        index, factor = Int64(target[row]), grad[row]
        if index == ignored:
            factor = Float32(0.0)
        elif index < 0 or index >= stop - start:
            factor = Float32(float("nan"))
        result = self.parts.fragment(Float32, 0.0)
        if factor != 0.0:  # else a row of NaN that is ignored would not be
            result.store(exponential(values - lse[row]) * factor)
            for i in cutlass.range_constexpr(self.parts.count):
                place = self.parts.place(begin, i)
                for v in cutlass.range_constexpr(self.parts.vector):
                    if place + v == start + index:
                        result[v, i] = result[v, i] - factor
        return result.load()


@cute.jit
def origin(top: Float32) -> Float32:
    """What exponents are taken relative to: a part of a row may hold nothing but -inf."""
    return top if top > -Float32.inf else Float32(0.0)


def trace(kernel: Any) -> tuple[Ragged, tuple[Any, ...]]:
    """The jit function of ``kernel`` and arguments that stand for every call of it."""
    element, total, rows, tiles = DTYPES[kernel.dtype], cute.sym_int64(), cute.sym_int(), None

    def flat() -> cute.Tensor:
        return make_fake_tensor(element, (total,), (1,), assumed_align=16)

    def floats(*shape: Any) -> cute.Tensor:
        strides = (shape[1], 1) if len(shape) == 2 else (1,)
        return make_fake_tensor(Float32, shape, strides, assumed_align=4)

    entropy = kernel.form.startswith("cross_entropy")
    backward = kernel.form.endswith("backward")
    grad = None
    if backward:
        grad = floats(rows) if entropy else flat()
    tiles = cute.sym_int()
    return Ragged(kernel), (
        flat(),
        grad,
        scalars(kernel.cu_seqlens, cute.sym_int()),
        scalars(kernel.target, rows) if entropy else None,
        None if kernel.form == "cross_entropy" else flat(),
        floats(rows) if kernel.form == "cross_entropy" else None,
        floats(rows) if entropy else None,
        scalars("int32", 3),
        floats(tiles, 2),
        scalars("int32", tiles),
        Int64(0),
        Float32(0.0),
        Int32(1),
        current_stream(),
    )
