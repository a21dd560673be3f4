"""The compiler that builds the kernels, and its versions."""

from __future__ import annotations

import functools
import importlib.util
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

ARCHITECTURE = "sm_90a"

#: CUDA flavours of the DSL that the kernels are built with, the preferred one first. A machine
#: without any loads what the preferred one built elsewhere.
_FLAVOURS = ("cu13", "cu12")


class MissingDependency(ModuleNotFoundError):
    """Something that compiling or loading a kernel needs is not installed."""


@functools.cache
def toolchain() -> dict[str, str]:
    """Versions that decide what machine code a kernel becomes, by name; no import of the DSL."""
    return {
        "nvidia-cutlass-dsl": _version("nvidia-cutlass-dsl"),
        "dsl_cuda": _flavour(),
        "apache-tvm-ffi": _version("apache-tvm-ffi"),
        "architecture": ARCHITECTURE,
    }


def dsl_library_folder() -> Path:
    """Folder with the DSL's runtime libraries, for linking.

    Raises:
        MissingDependency: the DSL or its CUDA libraries are not installed.
    """
    spec = importlib.util.find_spec("nvidia_cutlass_dsl")
    for location in (spec.submodule_search_locations or ()) if spec else ():
        folder = Path(location) / _flavour() / "lib"
        if folder.is_dir():
            return folder
    raise MissingDependency(
        f"no CuTe-DSL libraries for {_flavour()}: pip install 'nvidia-cutlass-dsl[{_flavour()}]'"
    )


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "absent"


def _flavour() -> str:
    for flavour in _FLAVOURS:
        if _version(f"nvidia-cutlass-dsl-libs-{flavour}") != "absent":
            return flavour
    return _FLAVOURS[0]
