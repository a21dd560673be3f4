"""Facts of a compiled kernel that need no GPU and have no noise, read from its cubin.

Uses NVIDIA's ``cuobjdump`` and ``nvdisasm``, from their pip packages or from PATH.
"""

from __future__ import annotations

import re
import shutil
import site
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

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

_INSTRUCTION = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_]*)((?:\.\w+)*)")
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
    kernels = _RESOURCES.findall(usage)
    if len(kernels) != 1:
        raise StaticAnalysisError(
            f"the cubin holds {len(kernels)} kernels, one was expected: analyse them one by one"
        )
    registers, stack, shared = map(int, kernels[0])
    # Of a kernel that uses shared memory, the tool counts the reserved part too.
    shared = max(0, shared - RESERVED_SHARED_BYTES) + dynamic_smem
    instructions = [i for i in _INSTRUCTION.findall(code) if i[0] not in _PADDING]
    return StaticFacts(
        registers=registers,
        spills=sum(name in _SPILL for name, _ in instructions),
        stack_bytes=stack,
        shared_bytes=shared,
        instructions=len(instructions),
        global_accesses=_global_accesses(instructions),
        occupancy=occupancy(threads, registers, shared, cluster),
    )


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
