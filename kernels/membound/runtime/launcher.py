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
_watched: contextvars.ContextVar[list[Any] | None] = contextvars.ContextVar(
    "membound_watched", default=None
)
_loaded: dict[Kernel, Callable[..., None]] = {}

#: CU_STREAM_CAPTURE_MODE_RELAXED of the CUDA driver.
_CAPTURE_MODE_RELAXED = 2


@contextlib.contextmanager
def record_launches() -> Iterator[list[Launch]]:
    """Collect launches instead of making them; ops then also take tensors on the meta device."""
    launches: list[Launch] = []
    token = _recording.set(launches)
    try:
        yield launches
    finally:
        _recording.reset(token)


@contextlib.contextmanager
def watch() -> Iterator[list[Any]]:
    """Note, in order, each allocation (a tensor) and each launch (a kernel and its arguments)."""
    steps: list[Any] = []
    token = _watched.set(steps)
    try:
        yield steps
    finally:
        _watched.reset(token)


def watched() -> list[Any] | None:
    """The notes of the innermost :func:`watch`, if any."""
    return _watched.get()


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
    if kernel.function is None:
        _first_launch(kernel, arguments)
    else:
        kernel.function(*arguments)
    steps = _watched.get()
    if steps is not None:
        steps.append((kernel, arguments))


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


def _first_launch(kernel: Kernel, arguments: tuple[Any, ...]) -> None:
    function = _loaded.get(kernel)
    if function is None:
        capturing = torch.cuda.is_current_stream_capturing()
        try:
            with _relaxed_capture():
                function = _open(kernel, arguments[0].device)
                function(*arguments)  # which loads the device code too
        except RuntimeError as error:
            if not capturing:
                raise
            raise RuntimeError(
                f"{kernel.name} could not be loaded while a CUDA graph is captured; run what is "
                "captured once before the capture, with the same shapes"
            ) from error
        _loaded[kernel] = function
    else:
        function(*arguments)
    object.__setattr__(kernel, "function", function)


@contextlib.contextmanager
def _relaxed_capture() -> Iterator[None]:
    """Let this thread load code while it, or any other thread, captures a CUDA graph.

    By default a capture forbids that, as it forbids all that is no part of the graph and might be
    missed in a replay; code that is loaded stays so.
    """
    exchange = ctypes.CDLL("libcuda.so.1").cuThreadExchangeStreamCaptureMode
    mode = ctypes.c_int(_CAPTURE_MODE_RELAXED)
    exchange(ctypes.byref(mode))  # leaves the mode that was, to be put back
    try:
        yield
    finally:
        exchange(ctypes.byref(mode))


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
