"""The torch calls of a captured graph, by one name and with named arguments each."""

from __future__ import annotations

import operator
from typing import Any

import torch
import torch.nn.functional as F
from torch.fx import Node

_BINARY = ("input", "other", "alpha")
_SOFTMAX = ("input", "dim", "dtype")
_SOFTMAX_MODULE = ("input", "dim", "_stacklevel", "dtype")
_LAYER_NORM = ("input", "normalized_shape", "weight", "bias", "eps", "cudnn_enable")
_RMS_NORM = ("input", "normalized_shape", "weight", "eps")
_CROSS_ENTROPY = (
    *("input", "target", "weight", "size_average", "ignore_index", "reduce", "reduction"),
    "label_smoothing",
)

#: Functions, and names of methods, with what they do and their parameters.
_CALLS: dict[Any, tuple[str, tuple[str, ...]]] = {
    F.softmax: ("softmax", _SOFTMAX_MODULE),
    F.log_softmax: ("log_softmax", _SOFTMAX_MODULE),
    F.layer_norm: ("layer_norm", _LAYER_NORM),
    torch.layer_norm: ("layer_norm", _LAYER_NORM),
    F.rms_norm: ("rms_norm", _RMS_NORM),
    torch.rms_norm: ("rms_norm", _RMS_NORM),
    F.cross_entropy: ("cross_entropy", _CROSS_ENTROPY),
    F.silu: ("silu", ("input", "inplace")),
    F.gelu: ("gelu", ("input", "approximate")),
    F.relu: ("relu", ("input", "inplace")),
    torch.special.softmax: ("softmax", _SOFTMAX),
    torch.special.log_softmax: ("log_softmax", _SOFTMAX),
    operator.add: ("add", _BINARY),
    operator.mul: ("mul", _BINARY),
    operator.truediv: ("div", _BINARY),
    operator.pow: ("pow", ("input", "exponent")),
    operator.getitem: ("getitem", ("input", "index")),
}
for _name, _parameters in {
    "softmax": _SOFTMAX,
    "log_softmax": _SOFTMAX,
    "relu": ("input",),
    "add": _BINARY,
    "mul": _BINARY,
    "multiply": _BINARY,
    "div": _BINARY,
    "divide": _BINARY,
    "true_divide": _BINARY,
    "pow": ("input", "exponent"),
    "square": ("input",),
    "mean": ("input", "dim", "keepdim", "dtype"),
    "rsqrt": ("input",),
    "sqrt": ("input",),
    "reciprocal": ("input",),
    "chunk": ("input", "chunks", "dim"),
    "split": ("input", "split_size_or_sections", "dim"),
}.items():
    _op = {"multiply": "mul", "divide": "div", "true_divide": "div"}.get(_name, _name)
    _CALLS[_name] = _CALLS[getattr(torch, _name)] = (_op, _parameters)

_CASTS = frozenset(["to", "type", "type_as", "float", "half", "bfloat16"])
_ALIASES = {"axis": "dim", "keepdims": "keepdim"}


def call(node: Any) -> tuple[str, dict[str, Any]]:
    """What ``node`` calls and with which arguments; ("", {}) for what no rule asks about.

    A change of dtype alone is "cast" of "input".
    """
    if not isinstance(node, Node) or node.op not in ("call_function", "call_method"):
        return "", {}
    if node.op == "call_method" and node.target in _CASTS:
        return ("cast", {"input": node.args[0]}) if _is_cast(node) else ("", {})
    try:
        name, parameters = _CALLS.get(node.target, ("", ()))
    except TypeError:  # a target that cannot be hashed
        return "", {}
    named = {_ALIASES.get(key, key): value for key, value in node.kwargs.items()}
    if not name or len(node.args) > len(parameters) or not named.keys() <= set(parameters):
        return "", {}
    return name, {**dict(zip(parameters, node.args, strict=False)), **named}


def _is_cast(node: Node) -> bool:
    before, after = value(node.args[0]), value(node)
    return (
        isinstance(before, torch.Tensor)
        and isinstance(after, torch.Tensor)
        and before.device == after.device
        and not node.kwargs.keys() & {"memory_format", "copy"}
        and not any(arg is True for arg in node.args[1:])
    )


def value(node: Any) -> Any:
    """The example of what ``node`` gives, or the constant that stands in its place."""
    return node.meta.get("example_value") if isinstance(node, Node) else node
