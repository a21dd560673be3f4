"""How rows are spread over threads, for many lengths, types and alignments."""

import dataclasses
import random

import pytest
import torch
from membound.ops.softmax import SoftmaxKernel
from membound.ops.tiling import MAX_COLUMNS, row_tiling

from .cases import BF16, DTYPES, FP32, new, recorded, shifted

#: Most elements that a thread keeps of a row; shifted rows take one vector more at most.
HELD = 32

make = new("meta")


def lengths():
    yield from range(1, 1100)
    for exponent in range(10, 18):
        yield from (2**exponent - 1, 2**exponent, 2**exponent + 1)
    yield from random.Random(0).sample(range(1100, MAX_COLUMNS), 300)
    yield from (MAX_COLUMNS - 1, MAX_COLUMNS)


def inputs(dtype, columns):
    """Pairs of input and output, and a weight that may be of another type."""
    x = make(dtype, 3, columns)
    late = shifted(dtype, 3, columns, 1, make)
    yield x, x, None
    yield late, x, None
    yield late, late, None
    yield x, x, make(BF16 if dtype == FP32 else FP32, columns)


def per_thread(tiling):
    """Elements that a thread holds of a row: enough vectors for the longest aligned superset."""
    longest = tiling.columns + (tiling.vector - 1 if tiling.shifted else 0)
    return tiling.vector * -(-longest // (tiling.row_threads * tiling.cluster * tiling.vector))


def is_power_of_two(number):
    return number & (number - 1) == 0 < number


@pytest.mark.parametrize("dtype", DTYPES)
def test_tilings_fit_the_hardware_and_the_row(dtype):
    for columns in lengths():
        with recorded():
            for x, out, shared in inputs(dtype, columns):
                tiling = row_tiling(columns, x, out, shared=shared)
                assert tiling.columns == columns
                assert is_power_of_two(tiling.row_threads), tiling
                assert 128 <= tiling.threads <= 1024, tiling
                assert tiling.cluster in (1, 2, 4, 8), tiling
                assert tiling.cluster == 1 or columns > 32_768, tiling
                assert is_power_of_two(tiling.vector), tiling
                assert tiling.vector * x.element_size() <= 16, tiling
                assert per_thread(tiling) <= HELD + (tiling.vector if tiling.shifted else 0), tiling
                if tiling.shifted:
                    assert tiling.vector * x.element_size() == 16, tiling
                else:
                    for matrix in (x, out):
                        assert columns % tiling.vector == 0, tiling
                        assert matrix.stride(0) % tiling.vector == 0, tiling
                        assert matrix.storage_offset() % tiling.vector == 0, tiling


@pytest.mark.parametrize("columns", [1, 7, 63, 1000, 1001, 4096, 32_767, 32_769, 262_143])
@pytest.mark.parametrize("phase", [0, 1])
def test_each_column_belongs_to_one_thread(columns, phase):
    from membound.device.rows import Rows

    x = shifted(BF16, 3, columns, phase, make)
    with recorded():
        tiling = row_tiling(columns, x, x)
    rows = Rows(tiling)
    phases = range(tiling.vector) if tiling.shifted else [0]
    for at in phases:
        owned = torch.zeros(columns, dtype=torch.int32)
        for rank in range(tiling.cluster):
            lanes = torch.arange(rows.threads) + rank * rows.threads * rows.count
            index = lanes[:, None] + torch.arange(rows.count) * rows.threads
            column = index[..., None] * rows.vector + torch.arange(rows.vector) - at
            inside = column[(column >= 0) & (column < columns)]
            owned.index_add_(0, inside, torch.ones_like(inside, dtype=torch.int32))
        assert (owned == 1).all()


@pytest.mark.parametrize("field", ["columns", "vector", "row_threads", "rows", "cluster"])
def test_each_number_of_the_tiling_is_in_the_name(field):
    x = make(BF16, 3, 1000)
    kernel = SoftmaxKernel(BF16, row_tiling(1000, x, x))
    changed = dataclasses.replace(kernel.tiling, **{field: 2 * getattr(kernel.tiling, field)})
    assert SoftmaxKernel(BF16, changed).name != kernel.name


def test_shifting_and_the_dtype_are_in_the_name():
    x = make(BF16, 3, 1000)
    kernel = SoftmaxKernel(BF16, row_tiling(1000, x, x))
    changed = dataclasses.replace(kernel.tiling, shifted=True)
    names = {kernel.name, SoftmaxKernel(BF16, changed).name, SoftmaxKernel(FP32, changed).name}
    assert len(names) == 3
    assert kernel.name == "softmax_bfloat16_n1000_v8_t64_r2_c1"
