"""What the descriptions of ops with activations share: torch's names and sizes of slopes."""

from __future__ import annotations

import math
from typing import Any


def activate(name: str, x: Any) -> Any:
    """An activation of ``x`` by torch."""
    import torch

    functional = torch.nn.functional
    if name == "gelu_tanh":
        return functional.gelu(x, approximate="tanh")
    if name == "relu2":
        return functional.relu(x).square()
    return getattr(functional, name)(x)


def activate_exactly(name: str, x: Any) -> Any:
    """The same for float64; torch's gelu loses its digits where the normal distribution is small,
    and its special values with them."""
    import torch

    if name == "gelu":
        return x * torch.special.erfc(x * -math.sqrt(0.5)) / 2
    if name == "gelu_tanh":
        return x * torch.sigmoid(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))
    return activate(name, x)


def slope_size(name: str, x: Any) -> Any:
    """The size of the terms of which an activation's derivative at ``x`` is the sum."""
    import torch

    if name == "relu":
        return (x > 0).to(x.dtype)
    if name == "relu2":
        return 2 * x.clamp(min=0)
    if name == "gelu":
        bell = torch.exp(-x.square() / 2) / math.sqrt(2 * math.pi)
        return torch.special.erfc(x * -math.sqrt(0.5)) / 2 + x.abs() * bell
    scale = 2 * math.sqrt(2 / math.pi)
    u, slope = x, 1.0
    if name == "gelu_tanh":
        u, slope = scale * (x + 0.044715 * x**3), scale * (1 + 3 * 0.044715 * x.square())
    sigmoid = torch.sigmoid(u)
    return sigmoid + x.abs() * sigmoid * torch.sigmoid(-u) * slope
