"""Every kernel variant compiles for sm_90a, keeps to registers and moves whole vectors."""

import pytest

from bandwatch.measure import static

from .variants import VARIANTS

SIZES = {"bfloat16": 2, "float16": 2, "float32": 4}

pytestmark = pytest.mark.parametrize("kernel", VARIANTS, ids=lambda kernel: kernel.name)


def test_nothing_spills(kernel, built):
    facts = built[kernel].facts
    assert facts.spills == 0
    assert facts.stack_bytes == 0
    assert facts.registers * kernel.threads <= static.REGISTERS
    assert facts.occupancy > 0


def test_accesses_are_as_wide_as_the_rows_allow(kernel, built):
    """x and the output by 128 bits where rows are full and aligned, a weight likewise.

    A weight is read in pieces of as many elements as x is: where it has 16-bit elements and x
    32-bit ones, that is 64 bits, and no access is wasted. Shifted rows move single elements at
    their ends only (of which the compiler may join two), and a weight's elements one by one.
    """
    widths = set(built[kernel].facts.global_accesses)
    tiling = kernel.tiling
    types = {kernel.dtype}
    if getattr(kernel, "weight", "none") != "none":
        types.add(kernel.weight)
    bits = {str(min(128, 8 * SIZES[dtype] * tiling.vector)) for dtype in types}
    if tiling.shifted:
        needed = {"128", *(str(8 * SIZES[dtype]) for dtype in types)}
        assert needed <= widths <= needed | {"64"}
    else:
        assert widths == bits
    if not tiling.shifted and all(SIZES[dtype] * tiling.vector >= 16 for dtype in types):
        assert built[kernel].facts.narrow_access_share == 0


def test_the_artifact_tells_of_the_launch(kernel, built):
    artifact, facts = built[kernel]
    assert artifact.name == kernel.name
    assert artifact.threads == kernel.threads <= static.MAX_THREADS_PER_BLOCK
    assert artifact.dynamic_smem == kernel.shared_bytes == facts.shared_bytes
    assert artifact.cluster == kernel.cluster
    assert kernel.name.encode() in artifact.cubin
