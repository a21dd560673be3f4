"""Facts of a compiled kernel that need no GPU and have no noise, read from its cubin.

Uses NVIDIA's ``cuobjdump`` and ``nvdisasm``, from their pip packages or from PATH.
"""

from __future__ import annotations

import bisect
import itertools
import re
import shutil
import site
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

#: The pip package that brings each tool.
TOOLS = {"cuobjdump": "nvidia-cuda-cuobjdump", "nvdisasm": "nvidia-cuda-nvdisasm"}

# Limits of compute capability 9.0 (CUDA C++ Programming Guide, "Compute Capabilities").
WARP = 32
MAX_WARPS = 64
MAX_BLOCKS = 32
MAX_THREADS_PER_BLOCK = 1024
MAX_CLUSTER = 16
REGISTERS = 65536
REGISTER_STEP = 256  # registers are handed out to a warp in steps of this many
SHARED_BYTES = 228 * 1024
SHARED_STEP = 128
RESERVED_SHARED_BYTES = 1024  # of every block, for the system

_INSTRUCTION = re.compile(r"/\*([0-9a-f]{4,})\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_]*)((?:\.\w+)*)")
_RESOURCES = re.compile(r"REG:(\d+) STACK:(\d+) SHARED:(\d+)")

#: Loads and stores that name global memory, thread by thread.
_GLOBAL = ("LDG", "STG", "LDGSTS")
#: Bulk copies (TMA): whole rows or tiles by one instruction, never narrow.
_BULK = ("UBLKCP", "UBLKRED", "UTMALDG", "UTMASTG", "UTMAREDG")
_SPILL = ("LDL", "STL")
#: Padding behind the code.
_PADDING = ("NOP",)


class StaticAnalysisError(RuntimeError):
    """A tool is missing, or a cubin cannot be analysed."""


@dataclass(frozen=True)
class StaticFacts:
    """Counts are of SASS instructions in the code, not of their executions.

    ``spills`` counts local loads and stores; ``shared_bytes`` is static and dynamic shared memory
    of a block; ``global_accesses`` counts loads and stores by width in bits, and ``"bulk"``;
    ``narrow_access_share`` is the share of them below 128 bits; ``occupancy`` is an upper bound,
    warps that fit an SM over those it has room for, and ``idle_warp_share`` is the rest.
    """

    registers: int
    spills: int
    stack_bytes: int
    shared_bytes: int
    instructions: int
    global_accesses: Mapping[str, int] = field(default_factory=dict)
    occupancy: float = 0.0

    @property
    def narrow_access_share(self) -> float:
        total = sum(self.global_accesses.values())
        wide = self.global_accesses.get("128", 0) + self.global_accesses.get("bulk", 0)
        return (total - wide) / total if total else 0.0

    @property
    def idle_warp_share(self) -> float:
        return 1.0 - self.occupancy


class Compiled(Protocol):
    """A compiled kernel: its cubin, and what of its launch the cubin does not hold."""

    cubin: bytes
    threads: int  # per block
    dynamic_smem: int  # bytes per block
    cluster: int  # blocks per cluster


def analyse(cubin: bytes, *, threads: int, dynamic_smem: int, cluster: int = 1) -> StaticFacts:
    """Static facts of the one kernel in ``cubin``, compiled for sm_90a.

    ``threads`` per block, ``dynamic_smem`` in bytes per block and blocks per ``cluster`` are of
    the launch: the cubin does not hold them. Raises :class:`StaticAnalysisError` where a tool is
    missing, it fails, or the cubin does not hold exactly one kernel.
    """
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        usage = _run("cuobjdump", "-res-usage", file.name)
        code = _run("nvdisasm", "-c", file.name)
    return _facts(
        usage,
        [(name, rest) for _, name, rest in _INSTRUCTION.findall(code)],
        threads,
        dynamic_smem,
        cluster,
    )


def analyse_all(kernels: Sequence[Compiled], jobs: int = 1) -> list[StaticFacts]:
    """What :func:`analyse` finds for each of ``kernels``, in their order.

    All are disassembled together: most of the time that the disassembler takes for a kernel of
    ordinary size, 0.2 s, goes into its start.
    """
    if not kernels:
        return []
    cubins = [kernel.cubin for kernel in kernels]
    with tempfile.TemporaryDirectory() as folder:

        def usage(i: int) -> str:
            path = Path(folder, f"{i}.cubin")
            path.write_bytes(cubins[i])
            return _run("cuobjdump", "-res-usage", str(path))

        with ThreadPoolExecutor(jobs) as pool:
            usages = list(pool.map(usage, range(len(cubins))))
        codes = [b"".join(_code(cubin)) for cubin in cubins]
        raw = Path(folder, "code")
        raw.write_bytes(b"".join(codes))
        # Across the borders of kernels there is no flow of data to follow.
        text = _run("nvdisasm", "--binary", "SM90a", "--no-dataflow", str(raw))
    instructions: list[list[tuple[str, str]]] = [[] for _ in codes]
    ends = list(itertools.accumulate(map(len, codes)))
    for offset, name, modifiers in _INSTRUCTION.findall(text):
        instructions[bisect.bisect_right(ends, int(offset, 16))].append((name, modifiers))
    return [
        _facts(*found, kernel.threads, kernel.dynamic_smem, kernel.cluster)
        for kernel, *found in zip(kernels, usages, instructions, strict=True)
    ]


def _facts(
    usage: str,
    instructions: list[tuple[str, str]],
    threads: int,
    dynamic_smem: int,
    cluster: int,
) -> StaticFacts:
    kernels = _RESOURCES.findall(usage)
    if len(kernels) != 1:
        raise StaticAnalysisError(
            f"the cubin holds {len(kernels)} kernels, one was expected: analyse them one by one"
        )
    registers, stack, shared = map(int, kernels[0])
    # Of a kernel that uses shared memory, the tool counts the reserved part too.
    shared = max(0, shared - RESERVED_SHARED_BYTES) + dynamic_smem
    instructions = [i for i in instructions if i[0] not in _PADDING]
    return StaticFacts(
        registers=registers,
        spills=sum(name in _SPILL for name, _ in instructions),
        stack_bytes=stack,
        shared_bytes=shared,
        instructions=len(instructions),
        global_accesses=_global_accesses(instructions),
        occupancy=occupancy(threads, registers, shared, cluster),
    )


def _code(cubin: bytes) -> Iterator[bytes]:
    """The machine code in a cubin, which is a 64-bit ELF file: its ``.text.*`` sections."""
    (table,) = struct.unpack_from("<Q", cubin, 40)
    size, count, names = struct.unpack_from("<HHH", cubin, 58)
    headers = [struct.unpack_from("<IIQQQQ", cubin, table + i * size) for i in range(count)]
    for name, _type, _flags, _address, offset, length in headers:
        if cubin.startswith(b".text.", headers[names][4] + name):
            yield cubin[offset : offset + length]


def occupancy(threads: int, registers: int, shared_bytes: int, cluster: int = 1) -> float:
    """Share of an SM's 64 warps that can be resident on sm_90; an upper bound for clusters.

    ``registers`` per thread; ``shared_bytes`` per block without the reserved part. A launch that
    cannot run at all (too many threads, too much memory) has 0.
    """
    if threads < 1 or cluster < 1:
        raise ValueError(f"threads {threads}, cluster {cluster}: at least 1 was expected")
    warps = -(-threads // WARP)
    per_warp = _round_up(max(1, registers) * WARP, REGISTER_STEP)
    per_block = _round_up(shared_bytes + RESERVED_SHARED_BYTES, SHARED_STEP)
    if threads > MAX_THREADS_PER_BLOCK or cluster > MAX_CLUSTER:
        return 0.0
    blocks = min(
        MAX_BLOCKS,
        MAX_WARPS // warps,
        # Registers are split over the four sub-partitions, so a block's warps fill up quarters.
        (REGISTERS // 4 // per_warp) * 4 // warps,
        SHARED_BYTES // per_block,
    )
    return blocks * warps / MAX_WARPS


def _global_accesses(instructions: list[tuple[str, str]]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for name, modifiers in instructions:
        if name in _GLOBAL:
            width = _width(modifiers.split("."))
        elif name in _BULK:
            width = "bulk"
        else:
            continue
        counts[width] = counts.get(width, 0) + 1
    return dict(sorted(counts.items()))


def _width(modifiers: list[str]) -> str:
    """Bits of one thread's access; 32 where no modifier says otherwise."""
    for modifier, bits in (("128", "128"), ("64", "64"), ("U16", "16"), ("S16", "16")):
        if modifier in modifiers:
            return bits
    return "8" if {"U8", "S8"} & set(modifiers) else "32"


def _round_up(value: int, step: int) -> int:
    return -(-value // step) * step


def _run(tool: str, *arguments: str) -> str:
    done = subprocess.run([_find(tool), *arguments], capture_output=True, text=True)
    if done.returncode:
        message = (done.stderr or done.stdout).strip()
        raise StaticAnalysisError(f"{tool} refused the cubin: {message}")
    return done.stdout


def _find(tool: str) -> str:
    # The pip package first: its version is pinned, so the counts do not depend on the machine.
    for folder in dict.fromkeys([*sys.path, *site.getsitepackages()]):
        for path in sorted(Path(folder or ".").glob(f"nvidia/*/bin/{tool}"), reverse=True):
            return str(path)
    found = shutil.which(tool)
    if found is None:
        raise StaticAnalysisError(
            f"{tool} is neither an installed package nor in PATH: pip install {TOOLS[tool]}"
        )
    return found
