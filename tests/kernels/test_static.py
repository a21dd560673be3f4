"""Every kernel variant compiles for sm_90a, keeps to registers and moves whole vectors."""

import pytest

from bandwatch.measure import static

from .variants import MOST, NIGHTLY, VARIANTS

every_kernel = pytest.mark.parametrize("kernel", VARIANTS, ids=lambda kernel: kernel.name)


def test_there_are_not_too_many():
    assert NIGHTLY or 100 <= len(VARIANTS) <= MOST


@every_kernel
def test_nothing_spills(kernel, built):
    facts = built[kernel].facts
    assert facts.spills == 0
    assert facts.stack_bytes == 0
    assert facts.registers * kernel.threads <= static.REGISTERS
    assert facts.occupancy > 0


@every_kernel
def test_accesses_are_as_wide_as_the_rows_allow(kernel, built):
    """By 128 bits, where rows are full and aligned, but for what a row has one of."""
    accesses = built[kernel].facts.global_accesses
    narrow = sum(count for width, count in accesses.items() if width not in ("128", "bulk"))
    if kernel.full_width:
        assert narrow <= kernel.scalar_accesses, dict(accesses)
        assert sum(accesses.values()) > narrow


@every_kernel
def test_the_artifact_tells_of_the_launch(kernel, built):
    artifact, facts = built[kernel]
    assert artifact.name == kernel.name
    assert artifact.threads == kernel.threads <= static.MAX_THREADS_PER_BLOCK
    assert artifact.dynamic_smem == kernel.shared_bytes == facts.shared_bytes
    assert artifact.cluster == kernel.cluster
    assert kernel.name.encode() in artifact.cubin
