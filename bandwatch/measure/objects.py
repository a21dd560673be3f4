"""Load compiled CuTe-DSL kernels from a shared library, without the compiler."""

from __future__ import annotations

import ctypes
import functools
import importlib.util
from pathlib import Path
from typing import Any

#: CUDA flavours of the DSL, whose runtime library the kernels need, the preferred one first.
_FLAVOURS = ("cu13", "cu12")


@functools.cache
def load(library: Path) -> Any:
    """The library's module: ``module[name]`` is a launch function on torch's current stream.

    Raises NotImplementedError where apache-tvm-ffi or the DSL's libraries are not installed.
    """
    try:
        import tvm_ffi
    except ImportError as error:
        raise NotImplementedError(
            f"{library.name} needs apache-tvm-ffi: pip install 'bandwatch[kernels]'"
        ) from error
    # The symbols of the DSL's runtime, without importing the DSL.
    ctypes.CDLL(str(runtime_folder() / "libcute_dsl_runtime.so"), mode=ctypes.RTLD_GLOBAL)
    return tvm_ffi.load_module(str(library))


def runtime_folder() -> Path:
    """The folder with the DSL's runtime libraries; NotImplementedError where there is none."""
    spec = importlib.util.find_spec("nvidia_cutlass_dsl")
    for location in (spec.submodule_search_locations or ()) if spec else ():
        for flavour in _FLAVOURS:
            folder = Path(location) / flavour / "lib"
            if folder.is_dir():
                return folder
    raise NotImplementedError(
        "no CuTe-DSL runtime libraries: pip install 'nvidia-cutlass-dsl[cu13]'"
    )
