"""The 1:1 copy of the control as a CuTe-DSL kernel. Frozen: a change is a new control version."""

from __future__ import annotations

import functools
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

# Without a GPU the DSL would silently compile for sm_100a; it reads this while being imported.
os.environ.setdefault("CUTE_DSL_ARCH", "sm_90a")

import cutlass
import cutlass.cute as cute
from cutlass.cute.runtime import make_fake_stream, make_fake_tensor

#: Bytes of one access, and the 32-bit words it is made of.
VECTOR_BYTES = 16
WORDS = VECTOR_BYTES // 4


@dataclass(frozen=True)
class CopyConfig:
    """Threads of a block, and 16-byte vectors that each of them has in flight."""

    threads: int
    vectors: int

    @property
    def label(self) -> str:
        return f"t{self.threads}v{self.vectors}"


#: From many small blocks to few that each hold more in flight; the best differs by size.
CONFIGS = (CopyConfig(128, 8), CopyConfig(256, 4), CopyConfig(512, 2))


class Copy:
    """Copies (vectors, 4) 32-bit words; both tensors contiguous and 16-byte aligned."""

    def __init__(self, config: CopyConfig) -> None:
        self._threads = config.threads
        self._vectors = config.vectors

    @cute.jit
    def __call__(self, source: cute.Tensor, target: cute.Tensor, stream):
        blocks = cute.ceil_div(cute.size(source, mode=[0]), self._threads * self._vectors)
        self.kernel(source, target).launch(
            grid=[blocks, 1, 1], block=[self._threads, 1, 1], stream=stream
        )

    @cute.kernel
    def kernel(self, source: cute.Tensor, target: cute.Tensor):
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        # 64-bit, because the stride of a row is static and CuTe would multiply in 32 bits.
        first = cutlass.Int64(block) * (self._threads * self._vectors) + thread
        rows = source.shape[0]
        atom = cute.make_copy_atom(
            cute.nvgpu.CopyUniversalOp(), source.element_type, num_bits_per_copy=8 * VECTOR_BYTES
        )
        held = cute.make_rmem_tensor((WORDS, self._vectors), source.element_type)
        for i in cutlass.range_constexpr(self._vectors):
            row = first + i * self._threads
            if row < rows:
                cute.copy(atom, source[row, None], held[None, i])
        for i in cutlass.range_constexpr(self._vectors):
            row = first + i * self._threads
            if row < rows:
                cute.copy(atom, held[None, i], target[row, None])


@functools.cache
def compiled(config: CopyConfig) -> Callable[[Any, Any], None]:
    """``copy(source, target)`` on int32 CUDA tensors of shape (n, 4), on torch's current stream."""
    return _compile(config, "--enable-tvm-ffi")


def cubin(config: CopyConfig) -> bytes:
    """The device code of a configuration, for static analysis; needs no GPU."""
    with tempfile.TemporaryDirectory() as folder:
        return _compile(config, f"--enable-tvm-ffi --keep-cubin --dump-dir {folder}").__cubin__


def _compile(config: CopyConfig, options: str) -> Any:
    # Named by configuration: the default name holds the module path, which can move registers.
    name = f"control_copy_{config.label}"
    Copy.kernel.set_name_prefix(name, keep_mangled_name=False)
    Copy.__call__.set_name_prefix(name, keep_mangled_name=False)
    rows = cute.sym_int64()

    def words() -> Any:
        return make_fake_tensor(cutlass.Int32, (rows, WORDS), (WORDS, 1), assumed_align=16)

    stream = make_fake_stream(use_tvm_ffi_env_stream=True)
    return cute.compile(Copy(config), words(), words(), stream, options=options)
