"""Bad input is refused by name, good input becomes launches, and nothing more."""

import membound
import pytest
import torch

from asv_bench import workloads

from .cases import BF16, DTYPES, FP32, OPS, new

make = new("meta")


def softmax(*args, **kwargs):
    return lambda: membound.softmax(*args, **kwargs)


def rms_norm(*args, **kwargs):
    return lambda: membound.rms_norm(*args, **kwargs)


x = make(BF16, 3, 8)

#: Call, error, and what the message must hold: the argument, what it was, what is accepted.
BAD = {
    "softmax of a list": (
        softmax([1.0]),
        TypeError,
        ["softmax: x", "torch.Tensor", "list"],
    ),
    "softmax of integers": (
        softmax(torch.ones(3, 8, dtype=torch.int32)),
        TypeError,
        ["softmax: x", "torch.int32", "bfloat16, float16, float32"],
    ),
    "softmax of float64": (
        softmax(torch.ones(3, 8, dtype=torch.float64)),
        TypeError,
        ["softmax: x", "torch.float64", "bfloat16, float16, float32"],
    ),
    "softmax of a scalar": (
        softmax(torch.tensor(1.0)),
        ValueError,
        ["softmax: x", "scalar", "at least one dimension"],
    ),
    "softmax of no columns": (
        softmax(make(BF16, 3, 0)),
        ValueError,
        ["softmax: x", "0 columns", "(3, 0)", "at least 1"],
    ),
    "softmax on the CPU": (
        softmax(torch.ones(3, 8)),
        ValueError,
        ["softmax: x", "CUDA", "cpu"],
    ),
    "softmax over rows": (
        softmax(x, dim=0),
        ValueError,
        ["softmax: dim", "last", "-1 or 1", "got 0"],
    ),
    "softmax over a dimension that is not there": (
        softmax(x, dim=2),
        ValueError,
        ["softmax: dim", "-1 or 1", "got 2"],
    ),
    "softmax of a long row": (
        softmax(make(BF16, 1, 262_145)),
        ValueError,
        ["softmax: ", "262145", "262144"],
    ),
    "softmax with a gradient": (
        softmax(make(FP32, 3, 8).requires_grad_()),
        NotImplementedError,
        ["softmax: x", "requires a gradient", "no_grad", "x.detach()"],
    ),
    "rms_norm of nothing": (
        rms_norm(None, 8),
        TypeError,
        ["rms_norm: x", "torch.Tensor", "NoneType"],
    ),
    "rms_norm of complex numbers": (
        rms_norm(torch.ones(3, 8, dtype=torch.complex64), 8),
        TypeError,
        ["rms_norm: x", "torch.complex64", "bfloat16, float16, float32"],
    ),
    "rms_norm on the CPU": (
        rms_norm(torch.ones(3, 8), 8),
        ValueError,
        ["rms_norm: x", "CUDA", "cpu"],
    ),
    "rms_norm of no columns": (
        rms_norm(make(BF16, 3, 0), 0),
        ValueError,
        ["rms_norm: x", "0 columns", "(3, 0)", "at least 1"],
    ),
    "rms_norm over another length": (
        rms_norm(x, 7),
        ValueError,
        ["rms_norm: normalized_shape (7,)", "last dimensions of x", "(3, 8)"],
    ),
    "rms_norm over the first dimension": (
        rms_norm(x, (3,)),
        ValueError,
        ["rms_norm: normalized_shape (3,)", "last dimensions of x", "(3, 8)"],
    ),
    "rms_norm over more dimensions than there are": (
        rms_norm(x, (2, 3, 8)),
        ValueError,
        ["rms_norm: normalized_shape (2, 3, 8)", "(3, 8)"],
    ),
    "rms_norm over no dimension": (
        rms_norm(x, ()),
        ValueError,
        ["rms_norm: normalized_shape ()", "last dimensions of x", "(3, 8)"],
    ),
    "rms_norm of no columns in several dimensions": (
        rms_norm(make(BF16, 3, 0, 5), (0, 5)),
        ValueError,
        ["rms_norm: ", "0 elements", "(3, 0, 5)", "at least 1"],
    ),
    "rms_norm over a fraction": (
        rms_norm(x, 8.0),
        TypeError,
        ["rms_norm: normalized_shape", "8.0", "int"],
    ),
    "rms_norm over fractions": (
        rms_norm(x, (8.0,)),
        TypeError,
        ["rms_norm: normalized_shape", "(8.0,)", "int"],
    ),
    "softmax of too many rows": (
        softmax(make(BF16, 1 << 31, 1)),
        ValueError,
        ["softmax: 2147483648 rows", "2147483647"],
    ),
    "rms_norm of long rows": (
        rms_norm(make(BF16, 1, 512, 513), (512, 513)),
        ValueError,
        ["rms_norm: ", "262656", "262144"],
    ),
    "a weight of another shape": (
        rms_norm(x, 8, make(BF16, 7)),
        ValueError,
        ["rms_norm: weight", "(7,)", "expected (8,)"],
    ),
    "a weight of more dimensions": (
        rms_norm(x, 8, make(BF16, 1, 8)),
        ValueError,
        ["rms_norm: weight", "(1, 8)", "expected (8,)"],
    ),
    "a weight of another type": (
        rms_norm(x, 8, torch.ones(8, dtype=torch.float64, device="meta")),
        TypeError,
        ["rms_norm: weight", "torch.float64", "bfloat16, float16, float32"],
    ),
    "a weight that is no tensor": (
        rms_norm(x, 8, [1.0] * 8),
        TypeError,
        ["rms_norm: weight", "torch.Tensor", "list"],
    ),
    "a weight on the CPU": (
        rms_norm(x, 8, torch.ones(8)),
        ValueError,
        ["rms_norm: weight", "CUDA", "cpu"],
    ),
    "a weight with a gradient": (
        rms_norm(x, 8, make(FP32, 8).requires_grad_()),
        NotImplementedError,
        ["rms_norm: weight", "requires a gradient", "no_grad", "weight.detach()"],
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused_by_name(name):
    call, error, parts = BAD[name]
    with membound.runtime.record_launches() as launches, pytest.raises(error) as raised:
        call()
    message = str(raised.value)
    assert [part for part in parts if part not in message] == [], message
    assert launches == []


def test_meta_tensors_are_for_recording_only():
    with pytest.raises(ValueError, match="softmax: x must be on a CUDA device, got meta"):
        membound.softmax(x)


def test_gradients_are_no_matter_where_none_are_kept():
    leaf = make(FP32, 3, 8).requires_grad_()
    with membound.runtime.record_launches() as launches, torch.no_grad():
        membound.softmax(leaf)
        membound.rms_norm(leaf, 8, make(FP32, 8).requires_grad_())
    assert len(launches) == 2


@pytest.mark.parametrize("workload", list(workloads.grid()), ids=lambda workload: workload.key)
def test_each_workload_is_one_launch_over_its_matrix(workload):
    op = workloads.ops(membound)[workload.op]
    with membound.runtime.record_launches() as launches:
        result = op.providers["membound"](op.make_inputs(workload, "meta", None))
    assert (tuple(result.shape), result.dtype) == (workload.shape, getattr(torch, workload.dtype))
    (launch,) = launches
    matrix = (f"torch.{workload.dtype}", workload.shape, (workload.shape[1], 1))
    assert launch.arguments.count(matrix) == 2
    assert workloads.kernels(membound, op, workload) == [launch.kernel]


def test_launches_tell_dtypes_shapes_strides_and_scalars():
    with membound.runtime.record_launches() as launches:
        membound.rms_norm(make(BF16, 3, 16)[:, :8], (8,), make(FP32, 8), eps=0.5)
    (launch,) = launches
    assert launch.arguments == (
        ("torch.bfloat16", (3, 8), (16, 1)),
        ("torch.float32", (8,), (1,)),
        ("torch.bfloat16", (3, 8), (8, 1)),
        0.5,
    )


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(0, 8), (3, 0, 8)])
def test_no_rows_are_no_launch(op, dtype, shape):
    empty = make(dtype, *shape)
    with membound.runtime.record_launches() as launches:
        result = membound.softmax(empty) if op == "softmax" else membound.rms_norm(empty, 8)
    assert (result.shape, result.dtype) == (empty.shape, empty.dtype)
    assert launches == []


def test_the_last_dimension_has_two_names():
    with membound.runtime.record_launches() as launches:
        membound.softmax(x, dim=-1)
        membound.softmax(x, dim=1)
        membound.softmax(x, 1)
    assert len(launches) == 3
    assert len(set(launches)) == 1


def test_recordings_nest_and_end():
    with membound.runtime.record_launches() as outer:
        membound.softmax(x)
        with membound.runtime.record_launches() as inner:
            membound.softmax(x)
        membound.softmax(x)
    assert (len(outer), len(inner)) == (2, 1)
    assert not membound.runtime.recording()
