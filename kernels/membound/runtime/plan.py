"""What an op has the GPU do, written down without a GPU: its launch plan, and the digest of it."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from .cache import artifact
from .kernel import NAMESPACE, Kernel
from .launcher import Launch, Operand, describe, record_launches


@dataclasses.dataclass(frozen=True)
class Call:
    """One recorded call of torch's own operators: an allocation, a copy, any arithmetic."""

    operator: str
    arguments: list[Any]
    result: Any


@dataclasses.dataclass(frozen=True)
class Plan:
    """The launches of this package and torch's own calls between them, in order.

    Calls that only make views are left out: the GPU sees their effect in the launches' arguments.
    """

    steps: list[Launch | Call]

    @property
    def kernels(self) -> list[Kernel]:
        """The kernels that are launched, in order, each once."""
        launches = (step for step in self.steps if isinstance(step, Launch))
        return list(dict.fromkeys(launch.kernel for launch in launches))

    def describe(self) -> list[list[Any]]:
        """The steps as JSON values: ``[kernel's name, arguments]``, or for one of torch's calls
        ``[operator, arguments, result]``.

        A tensor is ``[dtype, shape, strides, offset in elements, memory]``, where memory is
        numbered by first use: whether a buffer is used again is part of what the GPU does.
        """
        return self._described({kernel: kernel.name for kernel in self.kernels})

    def digest(self) -> str:
        """SHA-256 of the plan with its kernels' digests, the same under any package name.

        Plans of equal digest are equal work for the GPU, given one toolchain and driver.

        Raises:
            MissingDependency: a kernel is not in the cache and cannot be compiled here.
        """
        steps = self._described({kernel: artifact(kernel).digest for kernel in self.kernels})
        return hashlib.sha256(json.dumps(steps, sort_keys=True).encode()).hexdigest()

    def _described(self, kernels: dict[Kernel, str]) -> list[list[Any]]:
        memories: dict[int, int] = {}

        def plain(value: Any) -> Any:
            if isinstance(value, Operand):
                memory = memories.setdefault(value.memory._cdata, len(memories))
                layout = [list(value.shape), list(value.strides), value.offset]
                return [value.dtype, *layout, memory]
            json_has_it = value is None or isinstance(value, (bool, int, float, str))
            return value if json_has_it else str(value)

        return [
            [kernels[step.kernel], tree_map(plain, list(step.arguments))]
            if isinstance(step, Launch)
            else [step.operator, tree_map(plain, step.arguments), tree_map(plain, step.result)]
            for step in self.steps
        ]


@contextlib.contextmanager
def record_plan() -> Iterator[Plan]:
    """Collect what ops do instead of doing it; the ops take tensors on the meta device.

    Facts of the device are constants meanwhile, see :func:`~.resources.multiprocessors`. Unlike
    :func:`~.launcher.record_launches` it also collects torch's own calls.
    """
    with record_launches() as steps, _Calls(steps.append):
        yield Plan(steps)


class _Calls(TorchDispatchMode):
    def __init__(self, record: Callable[[Call], None]) -> None:
        super().__init__()
        self._record = record

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        with self:  # what our own operators and torch's composite ones consist of is seen instead
            if func.namespace == NAMESPACE:
                return func._op_dk(torch._C.DispatchKey.Meta, *args, **kwargs)
            result = func.decompose(*args, **kwargs)
            if result is not NotImplemented:
                return result
        arguments = tree_map(describe, [*args, kwargs])
        result = func(*args, **kwargs)
        if not func.is_view:
            self._record(Call(str(func), arguments, tree_map(describe, result)))
        return result
