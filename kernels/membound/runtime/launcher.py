"""Launch a kernel on the current stream, or write down that it would be launched."""

from __future__ import annotations

import contextlib
import contextvars
import ctypes
import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch

from .cache import artifact
from .compiler import ENTRY
from .kernel import Kernel
from .toolchain import ARCHITECTURE, MissingDependency, dsl_library_folder


@dataclasses.dataclass(frozen=True)
class Operand:
    """A recorded tensor. It holds the memory but not the tensor: autograd counts references."""

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int  # into the memory, in elements
    memory: torch.UntypedStorage = dataclasses.field(compare=False, repr=False)


@dataclasses.dataclass(frozen=True)
class Launch:
    """One recorded launch: the kernel, and each argument as an :class:`Operand` or scalar."""

    kernel: Kernel
    arguments: tuple[Any, ...]


_recording: contextvars.ContextVar[list[Launch] | None] = contextvars.ContextVar(
    "membound_recording", default=None
)
_loaded: dict[Kernel, Callable[..., None]] = {}


@contextlib.contextmanager
def record_launches() -> Iterator[list[Launch]]:
    """Collect launches instead of making them; ops then also take tensors on the meta device."""
    launches: list[Launch] = []
    token = _recording.set(launches)
    try:
        yield launches
    finally:
        _recording.reset(token)


def recording() -> bool:
    """Whether launches are being collected."""
    return _recording.get() is not None


def launch(kernel: Kernel, *arguments: Any) -> None:
    """Run ``kernel`` on the device and current stream of its first argument, a tensor.

    Raises:
        MissingDependency: the kernel can be neither loaded nor compiled here.
        NotImplementedError: the GPU is no Hopper.
    """
    launches = _recording.get()
    if launches is not None:
        launches.append(Launch(kernel, tuple(describe(a) for a in arguments)))
        return
    (kernel.function or _load(kernel, arguments[0].device))(*arguments)


def describe(argument: Any) -> Any:
    """``argument``, or the :class:`Operand` for a tensor."""
    if not isinstance(argument, torch.Tensor):
        return argument
    return Operand(
        dtype=str(argument.dtype).removeprefix("torch."),
        shape=tuple(argument.shape),
        strides=argument.stride(),
        offset=argument.storage_offset(),
        memory=argument.untyped_storage(),
    )


def _load(kernel: Kernel, device: torch.device) -> Callable[..., None]:
    if kernel not in _loaded:
        _loaded[kernel] = _open(kernel, device)
    object.__setattr__(kernel, "function", _loaded[kernel])
    return _loaded[kernel]


def _open(kernel: Kernel, device: torch.device) -> Callable[..., None]:
    capability = torch.cuda.get_device_capability(device)
    if capability != (9, 0):
        raise NotImplementedError(
            f"{kernel.name} is built for {ARCHITECTURE} (Hopper: H100, H200); "
            f"{torch.cuda.get_device_name(device)} is sm_{capability[0]}{capability[1]}"
        )
    try:
        import tvm_ffi
    except ImportError as error:
        raise MissingDependency(
            f"loading {kernel.name} needs apache-tvm-ffi: pip install 'bandwatch[kernels]'"
        ) from error
    _load_runtime_library()
    return tvm_ffi.load_module(str(artifact(kernel).library))[ENTRY]


@functools.cache
def _load_runtime_library() -> None:
    """Make the DSL's runtime symbols visible to kernel libraries, without importing the DSL."""
    path = dsl_library_folder() / "libcute_dsl_runtime.so"
    ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
