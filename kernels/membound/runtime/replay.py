"""Repeated calls: what a function did for some layout of its arguments is done again.

Choosing kernels, allocating through torch's front door and making views cost several times the
host time of a launch. So the second call with arguments of one layout is watched, and if all that
it did is allocate, view and launch, every later call does just that.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import itemgetter
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from . import launcher, resources
from .kernel import NAMESPACE

#: Layouts that are remembered a function; a program that needs more starts again.
_MOST = 4096

#: What torch does on the host alone: allocations, and views of what is there.
_HOST_ONLY = frozenset(
    ["alias", "as_strided", "detach", "empty", "empty_strided", "expand", "permute", "reshape"]
    + ["select", "slice", "squeeze", "t", "transpose", "unsqueeze", "view"]
    + ["_unsafe_view", "_reshape_alias"]
)

#: Allocates on the current device in a third of ``torch.empty``'s host time.
_empty_strided = getattr(torch._C._dynamo.guards, "_empty_strided_cuda", None)

#: Exists where torch is built for CUDA, as all tensors do that it is asked about.
_current_device = getattr(torch._C, "_cuda_getDevice", None)

#: What ``get_device`` tells of a tensor on the CPU.
_NO_GPU = -1

_TENSORS = frozenset((torch.Tensor, torch.nn.Parameter))
_OTHERS = frozenset((type(None), bool, int, float, str, tuple, torch.Size, torch.dtype))


class _Plan(NamedTuple):
    """Steps on a growing tuple of values: the arguments, then constants, results and views."""

    constants: tuple[Any, ...]
    allocations: tuple[tuple[Any, ...], ...]  # shape, strides, dtype
    views: tuple[tuple[int, Any, Any], ...]  # of which value, with which shape and strides
    launches: tuple[tuple[Callable[..., None], Callable[[tuple], tuple]], ...]
    result: Callable[[tuple], Any]


class _NotRepeatable(Exception):
    """The call did more than allocate, view and launch."""


class Replay:
    """Calls ``run``, whose work depends on nothing but the layouts and numbers it is given.

    What torch must learn of, be it autograd, a mode, a transform or a tracer, goes ``otherwise``,
    as does what is not on the current GPU or not of an ordinary type.
    """

    def __init__(self, run: Callable[..., Any], otherwise: Callable[..., Any]) -> None:
        self.run = run
        self.otherwise = otherwise
        self._plans: dict[tuple[Any, ...], _Plan | int] = {}

    def __call__(self, *args: Any, **named: Any) -> Any:
        if (
            torch.compiler.is_compiling()
            or torch._C._len_torch_dispatch_stack()
            or torch._C._functorch.peek_interpreter_stack() is not None
            or torch._C._get_tracing_state() is not None
            or launcher.recording()
        ):
            return self.otherwise(*args, **named)
        differentiable = torch.is_grad_enabled()
        given = (*args, *named.values()) if named else args
        key: list[Any] = [*named]
        device = _NO_GPU
        for arg in given:
            kind = type(arg)
            if kind in _TENSORS:
                index = arg.get_device()
                if device == _NO_GPU and index != _NO_GPU and index == _current_device():
                    device = index
                if index != device or index == _NO_GPU or (differentiable and arg.requires_grad):
                    return self.otherwise(*args, **named)
                key += (arg.dtype, arg.shape, arg.stride(), arg.data_ptr() % 16)
            elif kind in _OTHERS:
                key.append(arg)
            else:
                return self.otherwise(*args, **named)
        known = (device, *key)
        found = self._plans.get(known, 0)
        if type(found) is _Plan and resources.allocate is resources.ordinary:
            values = given + found.constants
            for shape, strides, dtype in found.allocations:
                values += (_empty_strided(shape, strides, dtype),)
            for base, shape, strides in found.views:
                values += (values[base].as_strided(shape, strides),)
            for function, chosen in found.launches:
                function(*chosen(values))
            return found.result(values)
        if found == 1 and _can_be_watched(given):
            result, self._plans[known] = _watch(self.run, args, named)
            return result
        if found == 0:
            if len(self._plans) >= _MOST:
                self._plans.clear()
            self._plans[known] = 1
        return self.run(*args, **named)


#: In place of a plan: the call cannot be repeated without ``run``.
_NEVER = -1


def _can_be_watched(given: tuple[Any, ...]) -> bool:
    """Whether what the call does with a tensor tells which argument that is."""
    tensors = [arg for arg in given if type(arg) in _TENSORS]
    return (
        _empty_strided is not None
        and resources.allocate is resources.ordinary
        and launcher.watched() is None
        and len({tensor.data_ptr() for tensor in tensors}) == len(tensors)
        and all(tensor.numel() for tensor in tensors)
    )


def _watch(
    run: Callable[..., Any], args: tuple[Any, ...], named: dict[str, Any]
) -> tuple[Any, _Plan | int]:
    """The result of ``run``, and the plan of what it did or ``_NEVER``."""
    with launcher.watch() as steps, _Torch() as torch_calls:
        result = run(*args, **named)
    if not torch_calls.host_only:
        return result, _NEVER
    try:
        return result, _plan((*args, *named.values()), steps, result)
    except _NotRepeatable:
        return result, _NEVER


class _Torch(TorchDispatchMode):
    """Notes whether torch was called for anything that the GPU takes part in."""

    host_only = True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        namespace, _, name = func._schema.name.partition("::")
        if namespace != NAMESPACE and name not in _HOST_ONLY:
            self.host_only = False
        return func(*args, **(kwargs or {}))


def _plan(args: tuple[Any, ...], steps: list[Any], result: Any) -> _Plan:
    made = [step for step in steps if isinstance(step, torch.Tensor)]
    launches = [step for step in steps if not isinstance(step, torch.Tensor)]
    wanted = [value for _, given in launches for value in given]
    wanted += result if isinstance(result, tuple) else [result]
    constants = [value for value in wanted if not isinstance(value, torch.Tensor)]

    known = [*args, *constants, *made]
    views: list[tuple[int, Any, Any]] = []
    viewed: list[torch.Tensor] = []

    def index(value: Any) -> int:
        if not isinstance(value, torch.Tensor):
            return len(args) + next(i for i, one in enumerate(constants) if one is value)
        for i, one in enumerate([*known, *viewed]):
            if one is value:
                return i
        for i, one in enumerate(known):
            if (
                isinstance(one, torch.Tensor)
                and one.data_ptr() == value.data_ptr() != 0
                and one.dtype == value.dtype
            ):
                views.append((i, value.shape, value.stride()))
                viewed.append(value)
                return len(known) + len(viewed) - 1
        raise _NotRepeatable

    return _Plan(
        constants=tuple(constants),
        allocations=tuple((tuple(one.shape), one.stride(), one.dtype) for one in made),
        launches=tuple(
            (kernel.function, _chooser([index(value) for value in given]))
            for kernel, given in launches
        ),
        result=(
            _chooser([index(value) for value in result])
            if isinstance(result, tuple)
            else itemgetter(index(result))
        ),
        views=tuple(views),
    )


def _chooser(indices: list[int]) -> Callable[[tuple], tuple]:
    if len(indices) == 1:
        (only,) = indices
        return lambda values: (values[only],)
    return itemgetter(*indices)
