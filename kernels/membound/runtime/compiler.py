"""Compile one kernel for Hopper, export it, and link it so that it loads without the compiler.

Needs no GPU. Everything that could make two builds of one source differ is fixed here: the
architecture, the options and the symbol names.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import threading
from pathlib import Path

from .kernel import Kernel
from .toolchain import ARCHITECTURE, MissingDependency, dsl_library_folder

OPTIONS = f"--enable-tvm-ffi --keep-cubin --gpu-arch {ARCHITECTURE}"

#: Name under which the loaded library offers the launch function.
ENTRY = "run"

# cute.compile is not thread-safe, and a name prefix is state of the traced function object.
_lock = threading.Lock()


def compile_kernel(kernel: Kernel, folder: Path) -> str:
    """Write ``kernel.o`` (host stub with the device code), ``kernel.cubin`` and ``kernel.so``.

    Returns:
        The kernel's digest: SHA-256 of the module that ``kernel.o`` is generated from. It holds
        the device code and the host stub, which sets shared memory, cluster and grid. The object
        itself will not do: its machine code depends on the processor it was built on.

    Raises:
        MissingDependency: the CuTe-DSL, its libraries or a linker is not installed.
    """
    os.environ.setdefault("CUTE_DSL_ARCH", ARCHITECTURE)
    try:
        import cutlass.cute as cute
    except ImportError as error:
        raise MissingDependency(
            f"compiling {kernel.name} needs the CuTe-DSL: pip install 'bandwatch[kernels]'"
        ) from error
    with _lock:
        function, arguments = kernel.device_module().trace(kernel)
        for part, name in (("__call__", kernel.name), ("kernel", f"{kernel.name}_kernel")):
            getattr(type(function), part).set_name_prefix(
                name, remove_cutlass_symbol=True, keep_mangled_name=False
            )
        # --keep-cubin also writes a file, by default into the working directory
        dump = folder / "dump"
        dump.mkdir()
        compiled = cute.compile(function, *arguments, options=f"{OPTIONS} --dump-dir {dump}")
        compiled.export_to_c(object_file_path=str(folder / "kernel.o"), function_name=ENTRY)
    (folder / "kernel.cubin").write_bytes(compiled.__cubin__)
    shutil.rmtree(dump)
    _link(folder / "kernel.o", folder / "kernel.so")
    return hashlib.sha256(str(compiled.ir_module).encode()).hexdigest()


def _link(object_file: Path, library: Path) -> None:
    linker = shutil.which("gcc") or shutil.which("cc")
    if linker is None:
        raise MissingDependency("linking a kernel needs a C compiler: no gcc or cc on PATH")
    runtime = dsl_library_folder() / "libcuda_dialect_runtime_static.a"
    command = [linker, "-shared", "-o", str(library), str(object_file), str(runtime)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"linking {object_file} failed:\n{done.stderr.strip()}")
