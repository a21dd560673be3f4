"""Where a session runs: GPU, driver and versions; and why it cannot run where it cannot.

Importing this module sets ``TORCH_DISABLE_NATIVE_JIT=1``, so import it before torch: with some
DSL versions torch overrides ``aten::_fused_rms_norm`` and others by CuTe-DSL kernels it vendors,
and "eager" would then change its meaning with an unrelated package.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import os
import platform
import sys
from typing import Any

from . import telemetry

_NATIVE_JIT = "TORCH_DISABLE_NATIVE_JIT"
_IN_TIME = "torch" not in sys.modules or os.environ.get(_NATIVE_JIT) == "1"
os.environ[_NATIVE_JIT] = "1"

#: Kernels are compiled for sm_90a, which runs on no other compute capability.
CAPABILITY = (9, 0)

#: What decides how fast the suite and its baselines are.
PACKAGES = (
    "torch",
    "triton",
    "nvidia-cutlass-dsl",
    "apache-tvm-ffi",
    "quack-kernels",
    "liger-kernel",
)


def unavailable() -> str | None:
    """Why no GPU measurement can happen in this process; None where it can."""
    if importlib.util.find_spec("torch") is None:
        return "torch is not installed; install the extra 'kernels'"
    import torch

    if torch.version.cuda is None:
        return f"torch {torch.__version__} is built without CUDA"
    if not torch.cuda.is_available():
        return "no CUDA device is visible"
    capability = torch.cuda.get_device_capability(0)
    if capability != CAPABILITY:
        return (
            f"{torch.cuda.get_device_name(0)} has compute capability "
            f"{capability[0]}.{capability[1]}; kernels are compiled for sm_90a (Hopper)"
        )
    return None


def describe() -> dict[str, Any]:
    """The environment of this process, as the session line of a sidecar holds it.

    Without a usable CUDA device ``gpu`` is ``"none"`` and the facts of the device are left out.
    """
    return {**_device(), **versions()}


def versions() -> dict[str, str]:
    """Versions of Python and of the installed packages that decide what runs."""
    found = {"python": ".".join(platform.python_version_tuple()[:2])}
    for package in PACKAGES:
        version = _version(package)
        if version is not None:
            found[package] = version
    flavours = [f for f in ("cu12", "cu13") if _version(f"nvidia-cutlass-dsl-libs-{f}") is not None]
    if flavours:
        found["dsl_cuda"] = "+".join(flavours)
    return found


def native_jit() -> str:
    """Whether torch's own DSL kernels are kept out of eager."""
    return "disabled" if _IN_TIME else "undecided: torch was imported before the harness"


def card(uuid: str) -> str:
    """Short digest of a GPU's UUID: tells cards of one model apart without publishing the UUID."""
    return hashlib.sha256(uuid.encode()).hexdigest()[:8]


def gpu_uuid(index: int = 0) -> str:
    """UUID of a CUDA device as NVML writes it, ``GPU-...``."""
    import torch

    uuid = str(torch.cuda.get_device_properties(index).uuid)
    return uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"


def _device() -> dict[str, Any]:
    if importlib.util.find_spec("torch") is None:
        return {"gpu": "none"}
    import torch

    if not torch.cuda.is_available():
        return {"gpu": "none"}
    properties = torch.cuda.get_device_properties(0)
    uuid = gpu_uuid()
    nvml = telemetry.connect(uuid)
    return {
        "gpu": nvml.name if nvml else properties.name,
        "card": card(uuid),
        **({"driver": nvml.driver} if nvml else {}),
        "cuda": torch.version.cuda,
        "sm_count": properties.multi_processor_count,
        "l2_bytes": properties.L2_cache_size,
        "memory_bytes": properties.total_memory,
    }


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
