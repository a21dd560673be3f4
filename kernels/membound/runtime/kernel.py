"""Names of kernels: what is compiled, without compiling it."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

_PACKAGE = __package__.rpartition(".")[0]

#: Of the ops in torch.ops. From this package's name, so that two checkouts load side by side.
NAMESPACE = _PACKAGE.replace(".", "_")

#: Folder of the device code.
DEVICE = Path(__file__).parent.parent / "device"


@dataclasses.dataclass(frozen=True)
class Kernel:
    """One variant of ``device/<module>.py``, named by its configuration.

    A subclass a device module: its fields are the configuration, frozen into the code. The device
    module offers ``trace(kernel)``, which returns the jit function and its example arguments.
    """

    module: ClassVar[str]
    #: The launch function once it is loaded; set on the instance, by the launcher only.
    function: ClassVar[Callable[..., None] | None] = None

    def __reduce__(self) -> tuple[Any, ...]:
        # a loaded function stays in its process
        return type(self), tuple(getattr(self, field.name) for field in dataclasses.fields(self))

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

    @property
    def full_width(self) -> bool:
        """Whether the vectors of all matrices are moved by 128 bits, and nothing narrower."""
        return True

    @property
    def scalar_accesses(self) -> int:
        """Global accesses in the code to single values a row, such as a row's sum."""
        return 0

    @classmethod
    def device_module(cls) -> ModuleType:
        """Import the device code; needs the CuTe-DSL."""
        return importlib.import_module(f"{_PACKAGE}.device.{cls.module}")
