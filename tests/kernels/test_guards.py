"""Guarded memory shows what was left out and what was written beside it."""

import pytest
import torch
from membound.runtime import empty

from .guards import PAD, guarded

DTYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float8_e4m3fn, torch.int64)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_what_is_handed_out_is_poisoned_and_aligned(dtype):
    with guarded() as guards:
        tensor = empty((3, 5), dtype, torch.device("cpu"))
    assert (tuple(tensor.shape), tensor.dtype, tensor.is_contiguous()) == ((3, 5), dtype, True)
    assert not tensor._is_view()
    assert tensor.data_ptr() % 16 == 0
    if dtype.is_floating_point:
        assert tensor.float().isnan().all()
    else:
        assert (tensor == -1).all()
    tensor.fill_(1)
    guards.check()


@pytest.mark.parametrize("place", [-1, 15, -PAD // 4, 15 + PAD // 4 - 1])
def test_a_write_beside_is_found(place):
    with guarded() as guards:
        tensor = empty((3, 5), torch.float32, torch.device("cpu"))
    flat = torch.empty(0).set_(tensor.untyped_storage())
    flat[PAD // 4 + place] = 0
    where = "before" if place < 0 else "behind"
    with pytest.raises(AssertionError, match=f"4 bytes {where} a result"):
        guards.check()


def test_the_allocator_is_back_afterwards():
    with guarded():
        pass
    assert not empty((4096,), torch.uint8, torch.device("cpu")).eq(0xFF).all()
