"""What is recognised in a graph: each rule gives a replacement, nothing, or raises ``Kept``."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Node
from torch.fx.experimental.symbolic_shapes import is_concrete_int

from .calls import call, value
from .graph import COLUMNS, Kept, Replacement, View, result, rows, same_device, tensor

Rule = Callable[[View, Node], Replacement | None]


def suite(name: str) -> Callable[..., Any]:
    """The suite's public function of that name."""
    package = sys.modules[__name__.rsplit(".", 2)[0]]
    function = getattr(package, name, None)
    if function is None:
        raise Kept("it is not in this version of the suite")
    return function


def _softmax(view: View, node: Node) -> Replacement | None:
    name, given = call(node)
    if name not in ("softmax", "log_softmax"):
        return None
    source = given["input"]
    x = tensor(source)
    dim = given.get("dim")
    if dim is None:
        raise Kept("dim is not given")
    if dim not in (-1, x.dim() - 1):
        raise Kept(f"dim is {dim}, not the last of {x.dim()}")
    rows(x)
    inner: tuple[Node, ...] = ()
    in_float = result(node, x)
    if in_float and len(node.users) == 1:
        # a result that is only rounded back needs no memory in float32
        user = next(iter(node.users))
        if call(user)[0] == "cast" and value(user).dtype == x.dtype:
            node, inner, in_float = user, (node,), result(user, x)
    return Replacement(name, node, suite(name), (source, -1), {}, inner, in_float)


def _cross_entropy(view: View, node: Node) -> Replacement | None:
    name, given = call(node)
    if name != "cross_entropy":
        return None
    x = tensor(given["input"])
    if x.dim() > 2:
        raise Kept("the classes are not the last dimension")
    rows(x)
    target = value(given["target"])
    if not isinstance(target, torch.Tensor) or target.dtype != torch.int64:
        raise Kept("target holds no class indices in int64")
    same_device(x, target, "target")
    for old in ("size_average", "reduce"):
        if given.get(old) is not None:
            raise Kept(f"{old} is given")
    if given.get("weight") is not None:
        weight = tensor(given["weight"], "weight")
        same_device(x, weight, "weight")
        if weight.requires_grad:
            raise Kept("weight requires a gradient")
    options = {"weight": None, "ignore_index": -100, "reduction": "mean", "label_smoothing": 0.0}
    options |= {key: given[key] for key in options if key in given}
    _constants(options, "ignore_index", "label_smoothing")
    in_float = result(node, x)
    function = suite(name)
    # torch does not wait for the GPU to see its targets either
    options["check_target"] = False
    return Replacement(
        name, node, function, (given["input"], given["target"]), options, (), in_float
    )


def _constants(options: dict[str, Any], *names: str) -> None:
    """Put the numbers of that name in place of the nodes that hold them."""
    for name in names:
        options[name] = _number(options[name])
        if options[name] is None:
            raise Kept(f"{name} is no number")


def _number(node: Any) -> float | None:
    """The number that ``node`` stands for; one of a dynamic capture is then guarded."""
    number = value(node)
    if isinstance(number, torch.SymFloat):
        return float(number)
    if isinstance(number, torch.SymInt):
        return int(number)
    return number if isinstance(number, (int, float)) else None


def _norm(view: View, node: Node) -> Replacement | None:
    name, given = call(node)
    if name not in ("rms_norm", "layer_norm"):
        return None
    shape = given["normalized_shape"]
    options = {key: given.get(key) for key in ("weight", "bias") if given.get(key) is not None}
    options["eps"] = given.get("eps", 1e-5 if name == "layer_norm" else None)
    if options["eps"] is not None:
        _constants(options, "eps")
    return _any_norm(view, name, node, given["input"], shape, options, ())


def _any_norm(
    view: View,
    name: str,
    node: Node,
    source: Node,
    shape: Any,
    options: dict[str, Any],
    inner: tuple[Node, ...],
    written: str = "",
) -> Replacement:
    x = tensor(source)
    sizes = value(shape)
    rows(x, len(sizes) if isinstance(sizes, (tuple, list)) else 1)
    for part in ("weight", "bias"):
        if part in options:
            same_device(x, tensor(options[part], part), part)
    in_float = result(node, x)
    function = suite(name)
    op = name + written
    alone = Replacement(op, node, function, (source, shape), options, inner, in_float)
    if in_float:
        return alone
    name, sum_of = call(source)
    if name != "add" or source in view.taken:
        return alone
    try:
        added, residual = _summands(source, sum_of, x)
        together = Replacement(
            f"add + {op}",
            node,
            function,
            (added, shape),
            {**options, **residual},
            (source, *inner),
            total=source,
        )
        view.check(together)
        needed = (together.args, together.kwargs)
        others = [user for user in source.users if user is not node and user not in inner]
        if view.may_move(needed, source) or all(view.before(node, user) for user in others):
            return together
    except Kept:
        pass
    return alone


def _summands(node: Node, given: dict[str, Any], x: torch.Tensor) -> tuple[Node, dict[str, Any]]:
    """The input, in ``x``'s dtype, and the residual of which ``x`` is the plain sum."""
    if given.get("alpha", 1) not in (1, None):
        raise Kept("alpha is given")
    result(node, x)
    both = [given["input"], given["other"]]
    parts = [tensor(one) for one in both]
    for part in parts:
        same_device(x, part, "residual")
        if part.shape != x.shape:
            raise Kept("a summand is broadcast")
    if parts[0].dtype != x.dtype:
        both.reverse()
        parts.reverse()
    if parts[0].dtype != x.dtype:
        raise Kept("both summands are converted")
    options = {"residual": both[1]}
    if parts[1].dtype != x.dtype:
        options["residual_dtype"] = x.dtype
    return both[0], options


def _written_rms_norm(view: View, node: Node) -> Replacement | None:
    """``x * rsqrt(mean(x * x) + eps)``, in the ways that people write it."""
    core = _root_mean_square(node)
    if core is None:
        return None
    source, eps, steps = core
    x = tensor(source)
    columns = x.shape[-1]
    if is_concrete_int(columns):
        columns = int(columns)
    ways = _with_weight(node, source, columns, steps)
    for end, options, inner in reversed(ways):
        path = {value(one).dtype for one in inner if value(one).shape == value(end).shape}
        # a result that was rounded on the way is not to be computed without
        if value(end).dtype in (x.dtype, torch.float32) and path <= {
            torch.float32,
            value(end).dtype,
        }:
            return _any_norm(
                view,
                "rms_norm",
                end,
                source,
                (columns,) if isinstance(columns, int) else COLUMNS,
                {**options, "eps": eps},
                inner,
                " (written out)",
            )
    raise Kept("the dtypes of its steps differ")


def _root_mean_square(node: Node) -> tuple[Node, float, tuple[Node, ...]] | None:
    """x, eps and the nodes up to ``node``, where that is x over its root mean square."""
    name, given = call(node)
    if name == "mul":
        pairs = [(given["input"], given["other"]), (given["other"], given["input"])]
        inverse = True
    elif name == "div":
        pairs = [(given["input"], given["other"])]
        inverse = False
    else:
        return None
    for scaled, factor in pairs:
        root = _root(factor, inverse)
        if root is None or not isinstance(scaled, Node):
            continue
        below, root_steps = root
        mean, eps = _plus_constant(below, lambda one: call(one)[0] == "mean")
        of_mean = call(mean)[1]
        if mean is None or not _keeps_last(of_mean, value(of_mean["input"])):
            continue
        square = of_mean["input"]
        squared = _squared(square)
        if squared is None:
            continue
        x, casts = _uncast(scaled)
        also_x, more_casts = _uncast(squared)
        if x is not also_x:
            continue
        steps = [*casts, *more_casts, square, mean, below, *root_steps]
        return x, eps, tuple(dict.fromkeys(steps))
    return None


def _root(node: Any, inverse: bool) -> tuple[Node, list[Node]] | None:
    """What ``node`` is the (inverse) square root of, and the nodes that make it."""
    name, given = call(node)
    if not inverse:
        return (given["input"], [node]) if name == "sqrt" else None
    if name == "rsqrt":
        return given["input"], [node]
    if name == "pow" and given["exponent"] == -0.5:
        return given["input"], [node]
    inner = None
    if name == "reciprocal":
        inner = given["input"]
    elif name == "div" and given["input"] in (1, 1.0):
        inner = given["other"]
    root = _root(inner, False)
    return None if root is None else (root[0], [*root[1], node])


def _plus_constant(node: Any, expected: Callable[[Any], bool]) -> tuple[Any, float]:
    """The two summands, where one is as expected and the other a number."""
    name, given = call(node)
    if name == "add" and given.get("alpha", 1) == 1:
        for one, other in (("input", "other"), ("other", "input")):
            if expected(given[one]):
                number = _number(given[other])
                if number is not None:
                    return given[one], float(number)
    return None, 0.0


def _keeps_last(mean: dict[str, Any], x: Any) -> bool:
    dim = mean.get("dim")
    if isinstance(dim, (tuple, list)) and len(dim) == 1:
        (dim,) = dim
    last = isinstance(x, torch.Tensor) and dim in (-1, x.dim() - 1)
    return last and mean.get("keepdim") is True and mean.get("dtype") in (None, torch.float32)


def _squared(node: Any) -> Any:
    name, given = call(node)
    if name == "square" or (name == "pow" and given["exponent"] in (2, 2.0)):
        return given["input"]
    if name == "mul" and given["input"] is given["other"]:
        return given["input"]
    return None


def _uncast(node: Node) -> tuple[Node, list[Node]]:
    """What was converted to float32, and the conversions."""
    casts = []
    while call(node)[0] == "cast":
        before = call(node)[1]["input"]
        if value(node).dtype not in (torch.float32, value(before).dtype):
            break
        casts.append(node)
        node = before
    return node, casts


def _with_weight(
    node: Node, source: Node, columns: Any, inner: tuple[Node, ...]
) -> list[tuple[Node, dict[str, Any], tuple[Node, ...]]]:
    """Results from ``node`` on: after conversions and after the product with a weight."""
    options: dict[str, Any] = {}
    inner = tuple(one for one in inner if one is not source)
    ways = [(node, options, inner)]
    while len(node.users) == 1:
        user = next(iter(node.users))
        name, given = call(user)
        if name == "mul" and not options:
            factor = given["other"] if given["input"] is node else given["input"]
            weight, offset = _weight(factor, columns)
            if weight is None:
                break
            options = {"weight": weight} | ({"weight_offset": offset} if offset else {})
        elif name != "cast":
            break
        inner = (*inner, node)
        node = user
        ways.append((node, options, inner))
    return ways


def _weight(node: Any, columns: Any) -> tuple[Node | None, float]:
    """The weight of ``columns`` values, and the constant that is added to it."""

    def fits(one: Any) -> bool:
        example = value(one)
        return isinstance(example, torch.Tensor) and tuple(example.shape) == (columns,)

    if not isinstance(node, Node) or not fits(node):
        return None, 0.0
    node, _ = _uncast(node)
    below, offset = _plus_constant(node, fits)
    return (node, 0.0) if below is None else (_uncast(below)[0], offset)


_GATED = {"silu": "swiglu", "gelu": "geglu", "relu": "reglu"}


def _gated(view: View, node: Node) -> Replacement | None:
    name, product = call(node)
    if name != "mul":
        return None
    for one, other in (("input", "other"), ("other", "input")):
        activation = product[one]
        name, given = call(activation)
        if name in _GATED and isinstance(value(product[other]), torch.Tensor):
            break
    else:
        return None
    view.parts.add(activation)
    function = suite(_GATED[name])
    gate, up = given["input"], product[other]
    x, factor = tensor(gate), tensor(up, "factor")
    if given.get("inplace", False):
        raise Kept(f"{name} works in place")
    rows(x)
    same_device(x, factor, "factor")
    if factor.shape != x.shape:
        raise Kept("the factor is broadcast")
    if factor.dtype != x.dtype or result(node, x):
        raise Kept("gate, factor and result differ in dtype")
    options = {"approximate": given["approximate"]} if "approximate" in given else {}
    inner: tuple[Node, ...] = (activation,)
    packed = _packed(gate, up)
    if packed is not None:
        return Replacement(f"{name} * up", node, function, (packed,), options, (*inner, gate, up))
    return Replacement(f"{name} * up", node, function, (gate, up), options, inner)


def _packed(gate: Node, up: Any) -> Node | None:
    """The tensor of which ``gate`` and ``up``, used only so, are the two halves."""
    (name, first), (other, second) = call(gate), call(up)
    if name != "getitem" or other != "getitem" or first["input"] is not second["input"]:
        return None
    if (first["index"], second["index"]) != (0, 1):
        return None
    if len(gate.users) > 1 or len(up.users) > 1:
        return None
    name, given = call(first["input"])
    if name not in ("chunk", "split"):
        return None
    x, half = value(given["input"]), value(gate)
    if given.get("dim", 0) not in (-1, x.dim() - 1) or x.shape[-1] != 2 * half.shape[-1]:
        return None
    return given["input"]


def _biased_gelu(view: View, node: Node) -> Replacement | None:
    name, given = call(node)
    if name != "gelu":
        return None
    name, total = call(given["input"])
    source, bias = total.get("input"), total.get("other")
    if name != "add" or not all(isinstance(value(one), torch.Tensor) for one in (source, bias)):
        raise Kept("no bias is added just before it")
    if value(source).dim() < value(bias).dim():
        source, bias = bias, source
    x, vector = tensor(source), tensor(bias, "bias")
    rows(x)
    if vector.dim() != 1 or x.dim() < 2 or vector.shape[0] != x.shape[-1]:
        raise Kept("what is added before it is no vector of biases")
    same_device(x, vector, "bias")
    if total.get("alpha", 1) != 1:
        raise Kept("the bias has a factor")
    if vector.dtype != x.dtype or result(node, x):
        raise Kept("input, bias and result differ in dtype")
    activation = "gelu_tanh" if given.get("approximate", "none") == "tanh" else "gelu"
    return Replacement(
        "gelu(x + bias)",
        node,
        suite("bias_act"),
        (source, bias),
        {"activation": activation},
        (given["input"],),
    )


def _lone_silu(view: View, node: Node) -> Replacement | None:
    if call(node)[0] == "silu":
        raise Kept("its result is not just a factor of another tensor")
    return None


#: In the order in which they are tried at each node, with the name of what they know where that is
#: not torch's.
RULES: tuple[tuple[str, Rule], ...] = (
    ("", _softmax),
    ("", _cross_entropy),
    ("", _norm),
    ("rms_norm (written out)", _written_rms_norm),
    ("activation * up", _gated),
    ("", _biased_gelu),
    ("", _lone_silu),
)
