"""Quantisation to float8_e4m3fn, whose largest value is 448.

Results are the bytes of that type, as Uint8: bit for bit those that torch gives for
``(x / scale).clamp(-448, 448).to(torch.float8_e4m3fn)``, where it does that in float32.
"""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cutlass import Float8E4M3FN, Float32, Uint8, Uint16, const_expr
from cutlass._mlir import ir
from cutlass._mlir.dialects import llvm, nvvm
from cutlass.cutlass_dsl import dsl_user_op

LARGEST = 448.0

#: Below, a scale's reciprocal might overflow: quotients are then taken of larger numbers.
_SMALL, _ENLARGE = 2.0**-60, 2.0**66


@cute.jit
def scale_of(amax: Float32) -> Float32:
    """The scale of elements of which the greatest magnitude is ``amax``: 1 where that is 0."""
    scale = amax / LARGEST
    return Float32(1.0) if scale == 0.0 else scale


@cute.jit
def quantize(values: cute.Tensor, scale: Float32, out: cute.Tensor) -> None:
    """Put a Float32 register tensor, divided by ``scale`` (:func:`scale_of`), into one of Uint8.

    NaN becomes NaN. Where ``scale`` is infinite, finite elements become 0 and infinite ones NaN.
    """
    # Division by what all elements share (Markstein, 1990): its reciprocal is taken once, and two
    # corrections make each quotient the correctly rounded one.
    factor = Float32(_ENLARGE) if scale < _SMALL else Float32(1.0)
    divisor = scale * factor
    reciprocal = 1.0 / divisor
    if divisor == Float32.inf:
        divisor = Float32(0.0)  # so that the corrections are of 0
    quotients = []
    for i in cutlass.range_constexpr(cute.size(values)):
        value = values[i] * factor
        quotient = value * reciprocal
        for _ in cutlass.range_constexpr(2):  # in an order that keeps the sign of 0
            excess = cute.math.fma(quotient, divisor, -value)
            quotient = cute.math.fma(-excess, reciprocal, quotient)
        quotients.append(quotient)
    pairs = cute.size(values) // 2
    if const_expr(cute.size(values) % 2 == 0):
        packed = cute.recast_tensor(out, Uint16)
        for i in cutlass.range_constexpr(pairs):
            packed[i] = _pair(quotients[2 * i], quotients[2 * i + 1])
    else:
        for i in cutlass.range_constexpr(cute.size(values)):
            out[i] = Uint8(_pair(quotients[i], Float32(0.0)))


@dsl_user_op
def _pair(
    low: Float32,
    high: Float32,
    *,
    loc: ir.Location | None = None,
    ip: ir.InsertionPoint | None = None,
) -> Uint16:
    """Two values rounded to the nearest, and to 448 beyond that, by one instruction."""
    both = nvvm.convert_f32x2_to_f8x2(
        ir.VectorType.get([2], Uint8.mlir_type),
        Float32(high).ir_value(loc=loc, ip=ip),
        Float32(low).ir_value(loc=loc, ip=ip),
        ir.TypeAttr.get(Float8E4M3FN.mlir_type),
        rnd=nvvm.FPRoundingMode.RN,
        sat=nvvm.SaturationMode.SATFINITE,
        loc=loc,
        ip=ip,
    )
    return Uint16(llvm.bitcast(Uint16.mlir_type, both, loc=loc, ip=ip))
