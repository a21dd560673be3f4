"""Names of kernels: what is compiled, without compiling it."""

from __future__ import annotations

import dataclasses
import importlib
from pathlib import Path
from types import ModuleType
from typing import ClassVar

_PACKAGE = __package__.rpartition(".")[0]


@dataclasses.dataclass(frozen=True)
class Kernel:
    """One variant of ``device/<module>.py``, named by its configuration.

    A subclass a device module: its fields are the configuration, frozen into the code. The device
    module offers ``trace(kernel)``, which returns the jit function and its example arguments.
    """

    module: ClassVar[str]

    @property
    def name(self) -> str:
        """Symbol name, e.g. ``softmax_bfloat16_n4096_v8_t256_r1``.

        Holds the whole configuration and never a module path: a symbol can change register
        allocation, and one source must build to one object under any package name.
        """
        fields = (str(getattr(self, field.name)) for field in dataclasses.fields(self))
        return "_".join([self.module, *fields])

    @property
    def threads(self) -> int:
        """Threads per CTA."""
        raise NotImplementedError

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory per CTA in bytes."""
        raise NotImplementedError

    @property
    def cluster(self) -> int:
        """CTAs per cluster."""
        return 1

    @classmethod
    def source(cls) -> Path:
        """The file with the device code."""
        return Path(__file__).parent.parent / "device" / f"{cls.module}.py"

    @classmethod
    def device_module(cls) -> ModuleType:
        """Import the device code; needs the CuTe-DSL."""
        return importlib.import_module(f"{_PACKAGE}.device.{cls.module}")
