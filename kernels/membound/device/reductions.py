"""Reductions, whatever they run over: what is kept of elements, and how parts are joined."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32
from cutlass._mlir.dialects import llvm

#: Of a maximum of which no element was greater than -inf.
_NOWHERE = (1 << 31) - 1

_maximum = partial(cute.arch.fmax, nan=True)


def select(condition: Any, one: Any, other: Any) -> Float32:
    """Of two values the first where ``condition``, known at run time, holds."""
    return Float32(cutlass.select_(condition, _numeric(one), _numeric(other)))


def _as(kind: type, value: Any) -> Any:
    """The same 32 bits as another type."""
    return kind(llvm.bitcast(kind.mlir_type, _numeric(value).ir_value()))


def _numeric(value: Any) -> Any:
    """``value`` as an object of the DSL."""
    return value if isinstance(value, (Float32, Int32)) else Float32(value)


def _tree(values: Sequence[Float32], join: Callable[[Any, Any], Any]) -> Float32:
    """The values joined in pairs, pairs of pairs and so on: few roundings, short waits."""
    while len(values) > 1:
        pairs = [join(a, b) for a, b in zip(values[::2], values[1::2], strict=False)]
        values = [*pairs, values[-1]] if len(values) % 2 else pairs
    return values[0]


def _sign(value: Float32) -> Float32:
    """1, -1, or 0 for zero and NaN."""
    return select(value > 0.0, 1.0, select(value < 0.0, -1.0, 0.0))


def _add(a: Any, b: Any) -> Any:
    return a + b


class Reduction:
    """What is kept of elements is a state, a tuple of Float32; ``identity`` is that of none.

    ``fill`` is put where there is no element.
    """

    fill = 0.0
    identity: tuple[float, ...] = (0.0,)

    @property
    def width(self) -> int:
        """Values of a state."""
        return len(self.identity)

    def gather(
        self, values: list[Float32], places: list[Int32], present: list[Float32] | None
    ) -> tuple:
        """The state of ``values`` at ascending ``places``, of those whose ``present`` is 1.

        All are where that is None; for others ``present`` is 0 and the value ``fill``.
        """
        raise NotImplementedError

    def join(self, one: tuple, other: tuple) -> tuple:
        """The state of two parts."""
        return (one[0] + other[0],)

    def finish(self, state: tuple, divisor: Float32) -> Any:
        """The result."""
        return state[0]

    def aside(self, state: tuple) -> tuple:
        """What the gradient needs to know besides, a tuple of Float32."""
        return ()

    def factor(self, grad: Float32, aside: tuple) -> Float32:
        """What is the same for all elements that became one result with gradient ``grad``."""
        return grad

    def gradient(self, value: Float32, factor: Float32, aside: tuple) -> Float32:
        """The gradient of an element."""
        raise NotImplementedError


class Sum(Reduction):
    def gather(self, values: list, places: list, present: list | None) -> tuple:
        return (_tree(values, _add),)


class Mean(Sum):
    def finish(self, state: tuple, divisor: Float32) -> Float32:
        return state[0] / divisor


class Norm1(Sum):
    def gather(self, values: list, places: list, present: list | None) -> tuple:
        return super().gather([abs(value) for value in values], places, present)

    def gradient(self, value: Float32, factor: Float32, aside: tuple) -> Float32:
        return _sign(value) * factor


class Norm2(Sum):
    def gather(self, values: list, places: list, present: list | None) -> tuple:
        return super().gather([value * value for value in values], places, present)

    def finish(self, state: tuple, divisor: Float32) -> Float32:
        return cute.math.sqrt(state[0])

    def aside(self, state: tuple) -> tuple:
        return (cute.math.sqrt(state[0]),)

    def factor(self, grad: Float32, aside: tuple) -> Float32:
        return select(aside[0] == 0.0, 0.0, grad / aside[0])

    def gradient(self, value: Float32, factor: Float32, aside: tuple) -> Float32:
        return value * factor


class Var(Reduction):
    """Number, mean and sum of squared differences (Chan, Golub and LeVeque, 1979)."""

    identity = (0.0, 0.0, 0.0)

    def gather(self, values: list, places: list, present: list | None) -> tuple:
        count = Float32(len(values))
        mean = _tree(values, _add) / count
        if present is not None:
            count = _tree(present, _add)
            mean = _tree(values, _add) / _maximum(count, 1.0)
        differences = [value - mean for value in values]
        if present is not None:
            differences = [d * p for d, p in zip(differences, present, strict=True)]
        return count, mean, _tree([d * d for d in differences], _add)

    def join(self, one: tuple, other: tuple) -> tuple:
        count = one[0] + other[0]
        share = other[0] / _maximum(count, 1.0)
        difference = other[1] - one[1]
        squares = one[2] + other[2] + difference * difference * (one[0] * share)
        return count, one[1] + difference * share, squares

    def finish(self, state: tuple, divisor: Float32) -> Float32:
        return state[2] / divisor

    def aside(self, state: tuple) -> tuple:
        return (state[1],)

    def gradient(self, value: Float32, factor: Float32, aside: tuple) -> Float32:
        return (value - aside[0]) * factor


class Amax(Reduction):
    """NaN where any element is."""

    fill = -Float32.inf
    identity = (-Float32.inf,)

    def gather(self, values: list, places: list, present: list | None) -> tuple:
        return (_tree(values, _maximum),)

    def join(self, one: tuple, other: tuple) -> tuple:
        return (_maximum(one[0], other[0]),)


class NormInf(Amax):
    fill = 0.0
    identity = (0.0,)

    def gather(self, values: list, places: list, present: list | None) -> tuple:
        return super().gather([abs(value) for value in values], places, present)


class _Ties(Reduction):
    """The maximum, and how many elements share it, and its gradient: none where it is NaN."""

    def gather(self, values: list, places: list, present: list | None) -> tuple:
        top = _tree(values, _maximum)
        ones = present or [Float32(1.0)] * len(values)
        ties = [select(v == top, one, 0.0) for v, one in zip(values, ones, strict=True)]
        return top, _tree(ties, _add)

    def join(self, one: tuple, other: tuple) -> tuple:
        top = _maximum(one[0], other[0])
        ties = [select(state[0] == top, state[1], 0.0) for state in (one, other)]
        return top, ties[0] + ties[1]

    def aside(self, state: tuple) -> tuple:
        return state

    def factor(self, grad: Float32, aside: tuple) -> Float32:
        return grad / aside[1]

    def gradient(self, value: Float32, factor: Float32, aside: tuple) -> Float32:
        return select(value == aside[0], 1.0, 0.0) * factor


class AmaxTies(_Ties):
    fill = -Float32.inf
    identity = (-Float32.inf, 0.0)


class NormInfTies(_Ties):
    identity = (0.0, 0.0)

    def gather(self, values: list, places: list, present: list | None) -> tuple:
        return super().gather([abs(value) for value in values], places, present)

    def factor(self, grad: Float32, aside: tuple) -> Float32:
        # torch gives elements beside NaN the gradient 0, unlike those of amax
        return select(aside[0] == aside[0], super().factor(grad, aside), 0.0)

    def gradient(self, value: Float32, factor: Float32, aside: tuple) -> Float32:
        return _sign(value) * super().gradient(abs(value), factor, aside)


class Argmax(Reduction):
    """The greatest element and, as the bits of its Float32, its place.

    NaN is greater than all; of equal elements the first counts.
    """

    fill = -Float32.inf
    width = 2

    @property
    def identity(self) -> tuple:
        return -Float32.inf, _as(Float32, Int32(_NOWHERE))

    def gather(self, values: list, places: list, present: list | None) -> tuple:
        top, where = self.identity
        place = Int32(_NOWHERE)
        for value, at in zip(values, places, strict=True):
            # what fills gaps is never greater; a row of nothing else has its maximum at its start
            better = self._greater(value, top)
            top = select(better, value, top)
            place = Int32(cutlass.select_(better, at, place))
        return top, _as(Float32, place)

    def join(self, one: tuple, other: tuple) -> tuple:
        here, there = _as(Int32, one[1]), _as(Int32, other[1])
        better = self._greater(other[0], one[0])
        equal = better == self._greater(one[0], other[0])
        better = better | (equal & (there < here))
        return select(better, other[0], one[0]), select(better, other[1], one[1])

    def finish(self, state: tuple, divisor: Float32) -> Int32:
        place = _as(Int32, state[1])
        return Int32(cutlass.select_(place == _NOWHERE, Int32(0), place))

    def _greater(self, a: Any, b: Any) -> Any:
        a, b = _numeric(a), _numeric(b)
        return (a > b) | ((a != a) & (b == b))


#: By the name in a kernel's configuration.
REDUCTIONS: dict[str, type[Reduction]] = {
    "sum": Sum,
    "mean": Mean,
    "var": Var,
    "amax": Amax,
    "amax_ties": AmaxTies,
    "argmax": Argmax,
    "norm1": Norm1,
    "norm2": Norm2,
    "norm_inf": NormInf,
    "norm_inf_ties": NormInfTies,
}
