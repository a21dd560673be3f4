"""A captured graph as the rules see it: what may be computed together, and elsewhere."""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.fx import Graph, Node

from ..ops.checks import DTYPES
from ..ops.tiling import MAX_COLUMNS
from .calls import call, value

_HOPPER = (9, 0)
_MOST_ROWS = (1 << 31) - 1

#: Parts of names of what changes how later nodes are run: autograd, autocast, torch.func.
_MODES = ("_set_grad_enabled", "autocast", "inference_mode", "_nesting", "saved_tensors_hooks")


#: As the second argument: how many columns the first has, where that is known only in a call.
COLUMNS = object()


class Kept(Exception):
    """Torch's op stays, for the reason in the message."""


@dataclasses.dataclass(frozen=True)
class Replacement:
    """A call in place of ``node``, with all that was recognised."""

    op: str
    node: Node
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    inner: tuple[Node, ...] = ()  # computed on the way to node
    in_float: bool = False  # the first argument is converted to float32
    total: Node | None = None  # is the second result, node the first

    @property
    def description(self) -> str:
        text = f"membound.{self.function.__name__}"
        if self.in_float:
            text += ", in float32 as torch"
        return text + (", with the addition before it" if self.total is not None else "")


class View:
    """Order, modes and changes in place of a graph's nodes.

    With a ``refusal`` nothing in the graph can be replaced, for that reason.
    """

    def __init__(self, graph: Graph, refusal: str = "") -> None:
        self.refusal = refusal
        self.nodes = list(graph.nodes)
        self.taken: set[Node] = set()  # into replacements
        self.parts: set[Node] = set()  # of what a rule knows, replaced or not
        self._place = {node: float(i) for i, node in enumerate(self.nodes)}
        self._mode: dict[Node, int] = {}
        self._transformed: set[Node] = set()
        self._changes: list[tuple[float, int | None]] = []  # place, and memory if known
        mode = depth = 0
        for place, node in enumerate(self.nodes):
            name = getattr(node.target, "__name__", "") if node.op == "call_function" else ""
            if any(part in name for part in _MODES):
                mode += 1
                depth += ("_increment_" in name) - ("_decrement_" in name)
            self._mode[node] = mode
            if depth:
                self._transformed.add(node)
            self._changes += [(float(place), memory) for memory in _changed(node)]

    def before(self, node: Node, other: Node) -> bool:
        """Whether ``node`` is computed before ``other``."""
        return self._place[node] < self._place[other]

    def is_transformed(self, node: Node) -> bool:
        """Whether a transform of torch.func, such as vmap, is on where ``node`` is computed."""
        return node in self._transformed

    def insert(self, node: Node, before: Node) -> None:
        """Learn of a new node."""
        self._place[node] = self._place[before] - 0.5
        self._mode[node] = self._mode[before]

    def check(self, found: Replacement) -> None:
        """Require that a call in place of ``found.node`` computes what its nodes computed."""
        node, inner = found.node, found.inner
        if self.refusal:
            raise Kept(self.refusal)
        if self.is_transformed(node):
            raise Kept("it is under a transform of torch.func")
        if any(self._mode[one] != self._mode[node] for one in inner):
            raise Kept("autograd or autocast is switched in the midst of it")
        steps = {*inner, node}
        for one in inner:
            kept = one is found.total or call(one)[0] == "cast"  # has a result of its own
            if not kept and not steps.issuperset(one.users):
                raise Kept("what it computes on the way is used elsewhere, too")
        tensors = [*_nodes((found.args, found.kwargs)), *inner]
        memories = {_memory(value(one)) for one in tensors if _is_tensor(value(one))}
        first = min((self._place[one] for one in inner), default=self._place[node])
        differentiable = value(node).requires_grad
        for place, memory in self._changes:
            if first <= place and (memory is None or memory in memories):
                if place < self._place[node]:
                    raise Kept("what it computes with is changed in place in the midst of it")
                if differentiable:  # the backward passes of torch may not need what is changed
                    raise Kept("what its gradient is computed from is changed in place afterwards")

    def may_move(self, needed: Any, target: Node) -> bool:
        """Whether all nodes in ``needed`` are computed before ``target``."""
        return all(self.before(one, target) for one in _nodes(needed))


def tensor(node: Any, name: str = "input") -> torch.Tensor:
    """The example of a tensor that kernels take; :class:`Kept` otherwise."""
    example = value(node)
    if not _is_tensor(example):
        raise Kept(f"{name} is no tensor")
    kind = type(example).__name__
    if kind not in ("FakeTensor", "Tensor", "Parameter") or example.is_nested:
        raise Kept(f"{name} is a {kind if not example.is_nested else 'nested tensor'}")
    if example.layout is not torch.strided:
        raise Kept(f"{name} has the layout {example.layout}")
    if example.dtype not in DTYPES:
        raise Kept(f"{name} has dtype {_plain(example.dtype)}")
    if reason := unsupported(example.device):
        raise Kept(f"{name} is on {reason}")
    return example


def unsupported(device: torch.device) -> str:
    """Why kernels do not run on ``device``, or ""."""
    if device.type != "cuda":
        return f"{device.type}; kernels run on Hopper GPUs"
    if torch.version.hip or torch.cuda.get_device_capability(device) != _HOPPER:
        return f"{torch.cuda.get_device_name(device)}; kernels run on Hopper GPUs"
    return ""


def same_device(x: torch.Tensor, other: torch.Tensor, name: str) -> None:
    """Require that a tensor is where the input is."""
    if other.device != x.device:
        raise Kept(f"{name} is on {other.device}, input on {x.device}")


def rows(x: torch.Tensor, dims: int = 1) -> None:
    """Require rows, the last ``dims`` dimensions, that kernels can count and hold."""
    if x.dim() < dims or dims < 1:
        raise Kept("input is a scalar")
    columns = math.prod(x.shape[-dims:])
    if columns < 1:
        raise Kept("input has rows of 0 elements")
    if columns > MAX_COLUMNS:
        raise Kept(f"input has rows of {columns} elements; the longest supported is {MAX_COLUMNS}")
    if math.prod(x.shape[:-dims]) > _MOST_ROWS:
        raise Kept(f"input has more than {_MOST_ROWS} rows")


def result(node: Node, x: torch.Tensor) -> bool:
    """Whether input is to be converted to float32, for a result as torch's."""
    example = value(node)
    if not _is_tensor(example):
        raise Kept("its result is no tensor")
    if not torch._prims_common.is_contiguous_or_false(example):
        raise Kept("torch's result is not contiguous, that of a kernel is")
    if example.dtype == x.dtype:
        return False
    if example.dtype == torch.float32:
        return True
    raise Kept(
        f"torch's result is {_plain(example.dtype)}, that of a kernel would be {_plain(x.dtype)}"
    )


def _plain(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _is_tensor(example: Any) -> bool:
    return isinstance(example, torch.Tensor)


def _memory(example: Any) -> int | None:
    """What tells memory from other memory, also that of tensors that do not exist."""
    if type(example).__name__ != "FakeTensor" or example.layout is not torch.strided:
        return None
    return example.untyped_storage()._cdata


def _nodes(structure: Any) -> Iterator[Node]:
    if isinstance(structure, Node):
        yield structure
    elif isinstance(structure, (tuple, list)):
        for one in structure:
            yield from _nodes(one)
    elif isinstance(structure, dict):
        yield from _nodes(tuple(structure.values()))


def _changed(node: Node) -> list[int | None]:
    """The memory that ``node`` writes to besides its result's; None stands for any."""
    targets: list[Any] = [node.kwargs.get("out")]
    if node.op == "call_method":
        plain = node.target.endswith("_") and not node.target.endswith("__")
        if plain or node.target == "__setitem__":
            targets.append(node.args[0])
    elif node.op == "call_function":
        name = getattr(node.target, "__name__", "")
        if isinstance(node.target, torch._ops.OpOverload):
            targets += _written(node)
        elif isinstance(node.target, torch._ops.HigherOrderOperator):
            return [None] if "mutation" in node.target.name() else []
        elif _in_place(node, name):
            targets.append(node.args[0])
    return [_memory(value(one)) for one in _nodes(targets)]


def _in_place(node: Node, name: str) -> bool:
    module = getattr(node.target, "__module__", "") or ""
    if module == "_operator":
        return name == "setitem" or (name.startswith("i") and hasattr(torch.Tensor, f"__{name}__"))
    if name.endswith("_") and not name.startswith("_"):
        return bool(node.args)
    if not module.startswith("torch.nn.functional") or not node.args:
        return False
    try:
        bound = inspect.signature(node.target).bind(*node.args, **node.kwargs)
    except (TypeError, ValueError):
        return False
    return bound.arguments.get("inplace", False) is True


def _written(node: Node) -> list[Any]:
    schema = node.target._schema
    named = {argument.name: argument for argument in schema.arguments}
    given = dict(zip(named, node.args, strict=False)) | dict(node.kwargs)
    return [
        one
        for name, one in given.items()
        if named[name].alias_info is not None and named[name].alias_info.is_write
    ]
