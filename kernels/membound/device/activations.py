"""Activations and their derivatives, in float32.

Each function takes a number and returns the value and the slope; what is not used is not computed.
Infinities and NaN give what torch's formulas give; gradients go through :func:`gradient`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import cutlass
import cutlass.cute as cute
from cutlass import Float32

from .scores import LOG2_E, exponential

#: ``Q(x) = t * exp(-x^2 / 2) * polynomial(t)`` with ``t = 1 / (1 + STEP * x)``, for the normal
#: distribution's tail beyond x >= 0: a minimax fit, relative error below 2e-7. Coefficients of the
#: highest power first. Unlike ``1 - erf`` it keeps its digits where the tail is small.
_TAIL_STEP = 0.44 / math.sqrt(2.0)
_TAIL = (
    0.035703811794519424,
    -0.1393757462501526,
    0.14907130599021912,
    -0.01079671923071146,
    0.1083015725016594,
    0.10852969437837601,
    0.12445719540119171,
    0.12410898506641388,
)
#: Of the approximation of gelu by tanh (Hendrycks and Gimpel, 2016).
_TANH_SCALE, _TANH_CUBIC = math.sqrt(2.0 / math.pi), 0.044715


def silu(x: Float32) -> tuple[Float32, Float32]:
    """x * sigmoid(x)."""
    sigmoid = _sigmoid(x)
    return x * sigmoid, sigmoid + x * sigmoid * (1.0 - sigmoid)


def gelu(x: Float32) -> tuple[Float32, Float32]:
    """x * P(x), P being the normal distribution."""
    bell = cute.math.exp2(x * x * (-0.5 * LOG2_E), fastmath=True)
    t = cute.arch.rcp_approx(1.0 + _TAIL_STEP * abs(x))
    tail = Float32(_TAIL[0])
    for coefficient in _TAIL[1:]:
        tail = tail * t + coefficient
    tail = tail * t * bell
    below = Float32(cutlass.select_(x < 0.0, tail, 1.0 - tail))
    return x * below, below + x * bell * (1.0 / math.sqrt(2.0 * math.pi))


def gelu_tanh(x: Float32) -> tuple[Float32, Float32]:
    """x * (1 + tanh(u)) / 2 = x * sigmoid(2 u), u = sqrt(2 / pi) * (x + 0.044715 x^3)."""
    square = x * x
    sigmoid = _sigmoid(x * (2.0 * _TANH_SCALE) * (1.0 + _TANH_CUBIC * square))
    slope = 2.0 * _TANH_SCALE * (1.0 + 3.0 * _TANH_CUBIC * square)
    return x * sigmoid, sigmoid + x * sigmoid * (1.0 - sigmoid) * slope


def relu(x: Float32) -> tuple[Float32, Float32]:
    """max(x, 0)."""
    return cute.arch.fmax(x, Float32(0.0), nan=True), Float32(1.0)  # of x > 0


def relu2(x: Float32) -> tuple[Float32, Float32]:
    """max(x, 0)^2."""
    kept, _ = relu(x)
    return kept * kept, 2.0 * kept


ACTIVATIONS: Mapping[str, Callable[[Float32], tuple[Float32, Float32]]] = {
    activation.__name__: activation for activation in (gelu, gelu_tanh, silu, relu, relu2)
}


#: Where x <= 0 these are flat: whatever the gradient that is given, infinite or not, 0 comes back.
_FLAT_BELOW_0 = (relu, relu2)


def gradient(
    activation: Callable[[Float32], tuple[Float32, Float32]], x: Float32, given: Float32
) -> Float32:
    """The gradient of ``x``, given that of the activation's value."""
    _, slope = activation(x)
    found = given * slope
    if activation not in _FLAT_BELOW_0:
        return found
    return Float32(cutlass.select_(x <= 0.0, Float32(0.0), found))


def _sigmoid(x: Float32) -> Float32:
    return cute.arch.rcp_approx(1.0 + exponential(-x))
