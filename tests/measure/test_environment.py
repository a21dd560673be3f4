import importlib.metadata
import subprocess
import sys

import pytest
import torch

from bandwatch.measure import environment


def run(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)


def test_torchs_own_dsl_kernels_are_off_before_torch_is_imported():
    code = (
        "import os, sys; os.environ.pop('TORCH_DISABLE_NATIVE_JIT', None);"
        "{first}from bandwatch.measure import environment;"
        "assert os.environ['TORCH_DISABLE_NATIVE_JIT'] == '1'; print(environment.native_jit())"
    )
    assert run(code.format(first="")).stdout.strip() == "disabled"
    assert run(code.format(first="import torch;")).stdout.startswith("undecided")


def test_importing_measure_imports_neither_torch_nor_cutlass():
    code = (
        "import sys, bandwatch.measure.session, bandwatch.measure.static;"
        "print(sorted({'torch', 'cutlass', 'tvm_ffi', 'pynvml'} & set(sys.modules)))"
    )
    assert run(code).stdout.strip() == "[]"


def test_versions_are_of_the_installed_packages():
    versions = environment.versions()
    assert versions["torch"] == importlib.metadata.version("torch")
    assert versions["python"] == f"{sys.version_info.major}.{sys.version_info.minor}"
    if "nvidia-cutlass-dsl" in versions:
        assert "cu1" in versions["dsl_cuda"]


def test_a_card_is_told_by_a_digest_not_by_its_uuid():
    one, other = environment.card("GPU-1"), environment.card("GPU-2")
    assert one != other and len(one) == 8 and int(one, 16) >= 0


@pytest.mark.parametrize(
    ("cuda", "available", "capability", "reason"),
    [
        (None, False, None, "is built without CUDA"),
        ("13.0", False, None, "no CUDA device is visible"),
        ("13.0", True, (8, 0), "has compute capability 8.0; kernels are compiled for sm_90a"),
        ("13.0", True, (9, 0), None),
    ],
)
def test_unavailable_says_why(monkeypatch, cuda, available, capability, reason):
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: available)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: "NVIDIA A100")
    got = environment.unavailable()
    assert got is None if reason is None else reason in got


def test_without_a_gpu_the_environment_says_so(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert environment.describe()["gpu"] == "none"
