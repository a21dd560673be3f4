"""The control's kernel: R streams are read, W streams are written, and nothing else is done.

Written in CuTe-DSL like the suites it is compared with. The package holds it compiled; a change is
a new control version, frozen by ``python -m bandwatch.measure.stream_kernel``.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Without a GPU the DSL would silently compile for sm_100a; it reads this while being imported.
os.environ.setdefault("CUTE_DSL_ARCH", "sm_90a")

import cutlass
import cutlass.cute as cute
from cutlass.cute.runtime import make_fake_stream, make_fake_tensor

from . import controls, objects

#: Bytes of one access, and the 32-bit words it is made of.
VECTOR_BYTES = 16
WORDS = VECTOR_BYTES // 4


@dataclass(frozen=True)
class StreamConfig:
    """Streams read and written, threads of a CTA, and vectors of each stream a thread holds."""

    reads: int
    writes: int
    threads: int
    vectors: int

    @property
    def label(self) -> str:
        return f"r{self.reads}w{self.writes}t{self.threads}v{self.vectors}"


class Streams:
    """Words of ``source`` (reads, vectors, 4), summed over the streams, to every one of ``target``.

    ``target`` is (writes, vectors, 4). Without reads the first vector of ``source`` is written
    everywhere; without writes ``target`` is one vector, written if a thread finds the sentinel.
    Both contiguous and 16-byte aligned.
    """

    def __init__(self, config: StreamConfig) -> None:
        self._reads, self._writes = config.reads, config.writes
        self._threads, self._vectors = config.threads, config.vectors

    @cute.jit
    def __call__(self, source: cute.Tensor, target: cute.Tensor, stream):
        moved = target if cutlass.const_expr(self._writes) else source
        ctas = cute.ceil_div(cute.size(moved, mode=[1]), self._threads * self._vectors)
        self.kernel(source, target, moved.shape[1]).launch(
            grid=[ctas, 1, 1], block=[self._threads, 1, 1], stream=stream
        )

    @cute.kernel
    def kernel(self, source: cute.Tensor, target: cute.Tensor, length: cutlass.Int64):
        thread, _, _ = cute.arch.thread_idx()
        cta, _, _ = cute.arch.block_idx()
        # 64-bit, because the stride of a vector is static and CuTe would multiply in 32 bits.
        first = cutlass.Int64(cta) * (self._threads * self._vectors) + thread
        atom = cute.make_copy_atom(
            cute.nvgpu.CopyUniversalOp(), source.element_type, num_bits_per_copy=8 * VECTOR_BYTES
        )
        reads = max(1, self._reads)
        held = cute.make_rmem_tensor((WORDS, self._vectors, reads), source.element_type)
        if cutlass.const_expr(self._writes == 0):
            held.fill(0)
        if cutlass.const_expr(self._reads == 0):
            for i in cutlass.range_constexpr(self._vectors):
                cute.copy(atom, source[0, 0, None], held[None, i, 0])
        else:
            for i in cutlass.range_constexpr(self._vectors):
                at = first + i * self._threads
                if at < length:
                    for k in cutlass.range_constexpr(self._reads):
                        cute.copy(atom, source[k, at, None], held[None, i, k])
        for k in cutlass.range_constexpr(1, reads):
            for i in cutlass.range_constexpr(self._vectors):
                for word in cutlass.range_constexpr(WORDS):
                    held[word, i, 0] = held[word, i, 0] + held[word, i, k]
        for i in cutlass.range_constexpr(self._vectors):
            at = first + i * self._threads
            if at < length:
                for k in cutlass.range_constexpr(self._writes):
                    cute.copy(atom, held[None, i, 0], target[k, at, None])
        if cutlass.const_expr(self._writes == 0):
            for i in cutlass.range_constexpr(1, self._vectors):
                for word in cutlass.range_constexpr(WORDS):
                    held[word, 0, 0] = held[word, 0, 0] + held[word, i, 0]
            sentinel = cutlass.Int32(controls.SENTINEL)
            if (
                (held[0, 0, 0] == sentinel)
                & (held[1, 0, 0] == sentinel)
                & (held[2, 0, 0] == sentinel)
                & (held[3, 0, 0] == sentinel)
            ):
                cute.copy(atom, held[None, 0, 0], target[0, 0, None])


#: Threads and vectors. Of sixteen tried on an H200 with seven mixes, 16 MB to 1 GB, the best of
#: these was within 0.2 % of the best of all: one vector a thread, except where data are few.
SIZES = ((128, 4), (128, 8), (256, 1), (1024, 1))
CONFIGS = tuple(
    StreamConfig(*mix, threads, vectors) for mix in controls.MIXES for threads, vectors in SIZES
)


def freeze(folder: Path = controls.FROZEN) -> None:
    """Compile all configurations into ``kernels.so``, and say in ``kernels.json`` what they are."""
    folder.mkdir(parents=True, exist_ok=True)
    kernels = {}
    with tempfile.TemporaryDirectory() as dump:
        for config in CONFIGS:
            kernel = _compile(config, f"--enable-tvm-ffi --keep-cubin --dump-dir {dump}")
            kernel.export_to_c(
                object_file_path=f"{dump}/{config.label}.o", function_name=config.label
            )
            kernels[config.label] = hashlib.sha256(kernel.__cubin__).hexdigest()
        linker = shutil.which("gcc") or shutil.which("cc")
        if linker is None:
            raise FileNotFoundError("linking needs a C compiler: no gcc or cc on PATH")
        library = folder / "kernels.so"
        parts = [f"{dump}/{label}.o" for label in kernels]
        parts.append(str(objects.runtime_folder() / "libcuda_dialect_runtime_static.a"))
        subprocess.run([linker, "-shared", "-s", "-o", str(library), *parts], check=True)
    about = {
        "control": controls.CONTROL,
        "nvidia-cutlass-dsl": importlib.metadata.version("nvidia-cutlass-dsl"),
        "library": hashlib.sha256(library.read_bytes()).hexdigest(),
        "kernels": kernels,
    }
    (folder / "kernels.json").write_text(json.dumps(about, indent=1) + "\n")


def cubin(config: StreamConfig) -> bytes:
    """The device code of a configuration, for static analysis; needs no GPU."""
    with tempfile.TemporaryDirectory() as folder:
        return _compile(config, f"--enable-tvm-ffi --keep-cubin --dump-dir {folder}").__cubin__


def _compile(config: StreamConfig, options: str) -> Any:
    # Named by configuration: the default name holds the module path, which can move registers.
    name = f"control_{config.label}"
    Streams.kernel.set_name_prefix(name, keep_mangled_name=False)
    Streams.__call__.set_name_prefix(name, keep_mangled_name=False)

    def words(streams: int) -> Any:
        length = cute.sym_int64()
        shape = (max(1, streams), length, WORDS)
        return make_fake_tensor(
            cutlass.Int32, shape, (cute.sym_int64(divisibility=WORDS), WORDS, 1), assumed_align=16
        )

    stream = make_fake_stream(use_tvm_ffi_env_stream=True)
    return cute.compile(
        Streams(config), words(config.reads), words(config.writes), stream, options=options
    )


if __name__ == "__main__":
    freeze()
