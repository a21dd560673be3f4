"""How rows are spread over threads, for many lengths, types and alignments."""

import dataclasses
import random

import pytest
import torch
from membound.ops.layouts import Layout
from membound.ops.softmax import SoftmaxKernel
from membound.ops.tiling import MAX_COLUMNS, row_tiling

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
DTYPES = (BF16, FP16, FP32)

#: Most elements that a thread keeps of a row; shifted rows take one vector more at most.
HELD = 32


def lengths():
    yield from range(1, 1100)
    for exponent in range(10, 18):
        yield from (2**exponent - 1, 2**exponent, 2**exponent + 1)
    yield from random.Random(0).sample(range(1100, MAX_COLUMNS), 300)
    yield from (MAX_COLUMNS - 1, MAX_COLUMNS)


def rows(dtype, columns, late=0):
    """Rows one behind the other, the first ``late`` elements behind a boundary."""
    return Layout(dtype, columns, (columns,), late * dtype.itemsize)


def inputs(dtype, columns):
    """Pairs of input and output, and a weight that may be of another type."""
    x, late = rows(dtype, columns), rows(dtype, columns, late=1)
    yield x, x, None
    yield late, x, None
    yield late, late, None
    yield x, x, Layout(BF16 if dtype == FP32 else FP32, columns, (), 0)


def per_thread(tiling):
    """Elements that a thread holds of a row: enough vectors for the longest aligned superset."""
    longest = tiling.columns + (tiling.vector - 1 if tiling.shifted else 0)
    threads = tiling.row_threads * tiling.cluster * tiling.chunks
    return tiling.vector * -(-longest // (threads * tiling.vector))


def is_power_of_two(number):
    return number & (number - 1) == 0 < number


@pytest.mark.parametrize("held", [1, 2, 3])
@pytest.mark.parametrize("dtype", DTYPES)
def test_tilings_fit_the_hardware_and_the_row(dtype, held):
    most = HELD // (1 << (held - 1).bit_length())
    for columns in lengths():
        for x, out, shared in inputs(dtype, columns):
            tiling = row_tiling(columns, x, out, shared=shared, held=held)
            assert tiling.columns == columns
            assert is_power_of_two(tiling.row_threads), tiling
            assert 128 <= tiling.threads <= 1024, tiling
            assert tiling.cluster in (1, 2, 4, 8), tiling
            assert tiling.cluster == 1 or columns > 1024 * most - 8, tiling
            assert tiling.chunks == 1 or columns > 8 * 1024 * most - 8, tiling
            assert is_power_of_two(tiling.vector), tiling
            assert tiling.vector * x.size <= 16, tiling
            spare = tiling.vector if tiling.shifted else 0
            assert per_thread(tiling) <= (most if tiling.threads == 1024 else HELD + spare), tiling
            if tiling.shifted:
                assert tiling.vector * x.size == 16, tiling
            else:
                for matrix in (x, out):
                    assert columns % tiling.vector == 0, tiling
                    assert matrix.offset % (tiling.vector * x.size) == 0, tiling


@pytest.mark.parametrize(
    "columns", [1, 7, 63, 1000, 1001, 4096, 32_767, 32_769, 262_143, 300_000, 1_048_575]
)
@pytest.mark.parametrize("phase", [0, 1])
def test_each_column_belongs_to_one_thread(columns, phase):
    from membound.device.rows import Rows

    x = rows(BF16, columns, phase)
    tiling = row_tiling(columns, x, x)
    parts = Rows(tiling)
    phases = range(tiling.vector) if tiling.shifted else [0]
    for at in phases:
        owned = torch.zeros(columns, dtype=torch.int32)
        for part in range(tiling.cluster * tiling.chunks):
            lanes = torch.arange(parts.threads) + part * parts.threads * parts.count
            index = lanes[:, None] + torch.arange(parts.count) * parts.threads
            column = index[..., None] * parts.vector + torch.arange(parts.vector) - at
            inside = column[(column >= 0) & (column < columns)]
            owned.index_add_(0, inside, torch.ones_like(inside, dtype=torch.int32))
        assert (owned == 1).all()


def softmax_kernel(dtype=BF16, **tiling):
    x = rows(dtype, 1000)
    return SoftmaxKernel(
        form="softmax",
        dtype=str(dtype).removeprefix("torch."),
        out="bfloat16",
        scaled=False,
        mask="none",
        mask_vector=1,
        causal=False,
        tiling=dataclasses.replace(row_tiling(1000, x, x), **tiling),
    )


@pytest.mark.parametrize("field", ["columns", "vector", "row_threads", "rows", "cluster", "chunks"])
def test_each_number_of_the_tiling_is_in_the_name(field):
    kernel = softmax_kernel()
    changed = softmax_kernel(**{field: 2 * getattr(kernel.tiling, field)})
    assert changed.name != kernel.name


def test_shifting_and_the_dtype_are_in_the_name():
    names = {softmax_kernel().name, softmax_kernel(shifted=True).name, softmax_kernel(FP32).name}
    assert len(names) == 3
    assert softmax_kernel().name == (
        "softmax_softmax_bfloat16_bfloat16_False_none_1_False_n1000_v8_t64_r2_c1_k1"
    )
