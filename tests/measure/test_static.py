import hashlib
import importlib.util
from importlib.metadata import version
from types import SimpleNamespace

import pytest

from bandwatch.measure import controls, static

if importlib.util.find_spec("cutlass") is None:
    pytest.skip("compiling needs nvidia-cutlass-dsl", allow_module_level=True)

from bandwatch.measure import stream_kernel  # isort: skip  # sets the architecture first

import cutlass
import cutlass.cute as cute
from cutlass.cute.runtime import make_fake_stream, make_fake_tensor

MIXES = ((1, 1), (2, 1), (3, 2), (1, 0), (0, 1))


@pytest.fixture(scope="module")
def cubins():
    configs = [config for config in stream_kernel.CONFIGS if (config.reads, config.writes) in MIXES]
    return {config: stream_kernel.cubin(config) for config in configs}


@cute.kernel
def narrow_kernel(source: cute.Tensor, target: cute.Tensor):
    thread, _, _ = cute.arch.thread_idx()
    target[thread] = source[thread]


@cute.jit
def narrow(source: cute.Tensor, target: cute.Tensor, stream):
    narrow_kernel(source, target).launch(grid=[1, 1, 1], block=[64, 1, 1], stream=stream)


@pytest.fixture(scope="module")
def narrow_cubin(tmp_path_factory):
    """A kernel that copies one 16-bit element a thread: the opposite of the control."""
    n = cute.sym_int64()
    one = [make_fake_tensor(cutlass.Float16, (n,), (1,), assumed_align=2) for _ in range(2)]
    stream = make_fake_stream(use_tvm_ffi_env_stream=True)
    options = f"--enable-tvm-ffi --keep-cubin --dump-dir {tmp_path_factory.mktemp('narrow')}"
    return cute.compile(narrow, *one, stream, options=options).__cubin__


def test_the_control_moves_full_vectors_and_never_spills(cubins):
    for config, cubin in cubins.items():
        facts = static.analyse(cubin, threads=config.threads, dynamic_smem=0)
        reads = config.reads * config.vectors or 1  # at least the one vector that is written
        writes = config.writes * config.vectors or 1  # at least the one that is never written
        assert facts.global_accesses == {"128": reads + writes}, config
        assert facts.narrow_access_share == 0.0
        assert (facts.spills, facts.stack_bytes, facts.shared_bytes) == (0, 0, 0)
        # Enough in flight to cover latency at 4.8 TB/s: about 32 KiB an SM.
        resident = facts.occupancy * static.MAX_WARPS * static.WARP
        held = config.vectors * max(config.reads, config.writes)
        assert resident * held * stream_kernel.VECTOR_BYTES >= 32 * 1024


def test_the_kernels_in_the_package_are_those_of_the_source(cubins):
    frozen = controls.frozen()
    if frozen["nvidia-cutlass-dsl"] != version("nvidia-cutlass-dsl"):
        pytest.skip("another compiler than the one that froze them")
    found = {config.label: hashlib.sha256(cubin).hexdigest() for config, cubin in cubins.items()}
    assert found == {label: frozen["kernels"][label] for label in found}


def test_analysis_is_deterministic(cubins):
    config = stream_kernel.CONFIGS[1]
    assert stream_kernel.cubin(config) == cubins[config]
    first, second = (
        static.analyse(cubins[config], threads=config.threads, dynamic_smem=0) for _ in range(2)
    )
    assert first == second


def test_narrow_accesses_are_seen(narrow_cubin):
    facts = static.analyse(narrow_cubin, threads=64, dynamic_smem=0)
    assert facts.global_accesses == {"16": 2}
    assert facts.narrow_access_share == 1.0


def test_many_kernels_together_give_what_each_gives_alone(cubins, narrow_cubin):
    compiled = [
        SimpleNamespace(cubin=cubin, threads=config.threads, dynamic_smem=64, cluster=1)
        for config, cubin in cubins.items()
    ]
    compiled.insert(1, SimpleNamespace(cubin=narrow_cubin, threads=64, dynamic_smem=0, cluster=2))
    alone = [static.analyse(**vars(kernel)) for kernel in compiled]
    assert len(set(map(str, alone))) > len(alone) / 2  # the order matters
    assert static.analyse_all(compiled, jobs=2) == alone
    assert static.analyse_all([]) == []


SASS = """
        /*0000*/                   LDC R1, c[0x0][0x28] ;
        /*0010*/              @!P0 LDG.E.128.CONSTANT R16, desc[UR4][R28.64] ;
        /*0020*/                   LDGSTS.E.BYPASS.LTC128B.64 [R1], desc[UR4][R28.64] ;
        /*0030*/               @P1 STG.E.U8 desc[UR4][R28.64], R3 ;
        /*0040*/                   LDG.E R4, desc[UR4][R28.64] ;
        /*0050*/             @UP0  UBLKCP.S.G [UR8], [UR4], UR6 ;
        /*0060*/                   STL.64 [R1+0x8], R2 ;
        /*0070*/                   LDL R2, [R1] ;
        /*0080*/                   EXIT ;
        /*0090*/                   BRA `(.L_x_0);
        /*00a0*/                   NOP;
"""
USAGE = " Function k:\n  REG:40 STACK:16 SHARED:3072 LOCAL:0 CONSTANT[0]:560\n"


def test_widths_spills_and_padding(monkeypatch):
    monkeypatch.setattr(static, "_run", lambda tool, *_: USAGE if tool == "cuobjdump" else SASS)
    facts = static.analyse(b"", threads=128, dynamic_smem=512)
    assert facts.global_accesses == {"128": 1, "32": 1, "64": 1, "8": 1, "bulk": 1}
    assert facts.narrow_access_share == pytest.approx(3 / 5)
    assert (facts.spills, facts.instructions) == (2, 10)
    assert (facts.registers, facts.stack_bytes, facts.shared_bytes) == (40, 16, 2048 + 512)


def test_two_kernels_in_one_cubin_are_refused(monkeypatch):
    monkeypatch.setattr(static, "_run", lambda *_: USAGE * 2)
    with pytest.raises(static.StaticAnalysisError, match="2 kernels, one was expected"):
        static.analyse(b"", threads=128, dynamic_smem=0)


@pytest.mark.parametrize(
    ("threads", "registers", "shared", "expected"),
    [
        (256, 32, 0, 1.0),  # 8 blocks of 8 warps
        (256, 64, 0, 0.5),  # registers: 65536 / (64 * 256) = 4 blocks
        (128, 255, 0, 8 / 64),  # 16384 // 8192 = 2 warps a quarter
        (1024, 32, 0, 1.0),
        (32, 16, 0, 0.5),  # at most 32 blocks
        (256, 32, 100 * 1024, 16 / 64),  # 2 blocks of 101 KiB
        (256, 32, 227 * 1024, 8 / 64),
        (256, 32, 228 * 1024, 0.0),  # more than a block may have
        (2048, 16, 0, 0.0),
    ],
)
def test_occupancy_of_sm_90(threads, registers, shared, expected):
    assert static.occupancy(threads, registers, shared) == pytest.approx(expected)


def test_a_missing_tool_names_its_package(monkeypatch):
    monkeypatch.setattr(static.shutil, "which", lambda tool: None)
    monkeypatch.setattr(static.site, "getsitepackages", list)
    monkeypatch.setattr(static.sys, "path", [])
    with pytest.raises(static.StaticAnalysisError, match="pip install nvidia-cuda-nvdisasm"):
        static._find("nvdisasm")


def test_a_damaged_cubin_is_an_error():
    with pytest.raises(static.StaticAnalysisError, match="cuobjdump refused the cubin"):
        static.analyse(b"not a cubin", threads=128, dynamic_smem=0)
