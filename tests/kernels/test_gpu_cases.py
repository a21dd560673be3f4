"""What the GPU tests will run is known, and prepared, on a machine without a GPU."""

import pytest

from .cases import HUGE, MISALIGNED, PLAIN, VIEWS, WEIGHTS, gpu_kernels, new, recorded

CALLS = {**PLAIN, **VIEWS, **WEIGHTS, **HUGE}


def test_their_kernels_are_few_enough_to_compile_ahead():
    kernels = gpu_kernels()
    assert len({kernel.name for kernel in kernels}) == len(kernels)
    assert 100 <= len(kernels) <= 150


@pytest.mark.parametrize("name", CALLS)
def test_a_call_is_one_launch(name):
    call = CALLS[name](new("meta"))
    with recorded() as launches:
        result = call()
    assert (result.shape, result.dtype) == (call.x.shape, call.x.dtype)
    assert len(launches) == (1 if call.x.numel() else 0)


def test_they_cover_every_way_of_access():
    tilings = [kernel.tiling for kernel in gpu_kernels()]
    assert {tiling.vector for tiling in tilings} == {1, 2, 4, 8}
    assert {tiling.cluster for tiling in tilings} == {1, 2, 8}
    assert {tiling.shifted for tiling in tilings} == {True, False}
    assert {tiling.row_threads > 32 for tiling in tilings} == {True, False}


@pytest.mark.parametrize("name", MISALIGNED)
def test_a_late_output_is_another_kernel_where_it_must_be(name):
    build, offset = MISALIGNED[name]
    call = build(new("meta"))
    with recorded() as launches:
        call.guarded(offset)
    (launch,) = launches
    tiling = launch.kernel.tiling
    late = offset * call.x.element_size() % 16
    assert tiling.shifted or late % min(16, tiling.vector * call.x.element_size()) == 0
