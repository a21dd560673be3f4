"""The descriptions of the operations: bytes, references and tolerances that can tell."""

from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from asv_bench import workloads
from bandwatch.measure.workload import Traffic

torch = pytest.importorskip("torch")


def suite_of_torch():
    """A suite that computes by torch and records one launch per call."""
    launched = []

    @contextmanager
    def record_launches():
        launched.clear()
        yield launched

    def softmax(x, dim=-1):
        launched.append(SimpleNamespace(kernel=("softmax", x.dtype)))
        return torch.softmax(x, dim)

    def rms_norm(x, normalized_shape, weight=None, eps=None):
        launched.extend([SimpleNamespace(kernel=("rms_norm", x.dtype))] * 2)
        return torch.nn.functional.rms_norm(x, normalized_shape, weight, eps)

    def artifact(kernel):
        return SimpleNamespace(name=kernel[0], digest="ab" * 32)

    return SimpleNamespace(
        softmax=softmax,
        rms_norm=rms_norm,
        runtime=SimpleNamespace(record_launches=record_launches, artifact=artifact),
    )


def test_the_grid_is_every_operation_dtype_and_shape():
    grid = list(workloads.grid())

    assert len(grid) == 2 * 3 * 8
    assert len({workload.key for workload in grid}) == len(grid)
    assert grid[0].key == "softmax/forward/bfloat16/32768x256"


def test_an_older_suite_offers_fewer_operations():
    assert list(workloads.ops(SimpleNamespace(rms_norm=None))) == ["rms_norm"]
    assert workloads.ops(SimpleNamespace()) == {}


def test_bytes_are_each_input_once_and_each_output_once():
    ops = workloads.ops(suite_of_torch())

    matrix = 4096 * 32768
    half = workloads.workload("softmax", "bfloat16", "4096x32768")
    assert ops["softmax"].traffic(half) == Traffic(read=2 * matrix, written=2 * matrix)
    single = workloads.workload("rms_norm", "float32", "4096x32768")
    assert ops["rms_norm"].traffic(single) == Traffic(
        read=4 * matrix + 4 * 32768, written=4 * matrix
    )


@pytest.mark.parametrize("dtype", workloads.DTYPES)
@pytest.mark.parametrize("name", workloads.OPS)
def test_the_tolerance_passes_torch_and_catches_three_times_itself(name, dtype):
    op = workloads.ops(suite_of_torch())[name]
    workload = workloads.workload(name, dtype, "8x4096")
    inputs = op.make_inputs(workload, "cpu", torch.Generator().manual_seed(0))
    rtol, atol = op.tolerance(dtype)
    expected = op.reference(inputs)
    assert expected.dtype is torch.float64

    for run in op.providers.values():
        output = run(inputs)
        assert output.dtype is getattr(torch, dtype)
        torch.testing.assert_close(output.double(), expected, rtol=rtol, atol=atol)

    wrong = (expected * (1 + 3 * rtol)).to(getattr(torch, dtype)).double()
    assert not torch.allclose(wrong, expected, rtol=rtol, atol=atol)


def test_kernels_are_found_without_a_gpu_and_named_once():
    suite = suite_of_torch()
    op = workloads.ops(suite)["rms_norm"]
    workload = workloads.workload("rms_norm", "float16", "4096x32768")

    assert workloads.kernels(suite, op, workload) == [("rms_norm", torch.float16)]
    assert op.kernels(workload) == {"rms_norm": "ab" * 32}
