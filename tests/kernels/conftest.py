"""The kernels of the static tests, compiled once a session."""

from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import membound
import pytest

from bandwatch.measure import static

from .variants import VARIANTS

JOBS = 2


class Built(NamedTuple):
    artifact: membound.runtime.Artifact
    facts: static.StaticFacts


@pytest.fixture(scope="session")
def built(tmp_path_factory):
    """What every kernel of VARIANTS became, by kernel, from a cache that began empty."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MEMBOUND_CACHE_DIR", str(tmp_path_factory.mktemp("kernels")))
        membound.runtime.build(VARIANTS, jobs=JOBS)
        with ThreadPoolExecutor(JOBS) as pool:
            return dict(zip(VARIANTS, pool.map(_analysed, VARIANTS), strict=True))


def _analysed(kernel):
    artifact = membound.runtime.artifact(kernel)
    facts = static.analyse(
        artifact.cubin,
        threads=artifact.threads,
        dynamic_smem=artifact.dynamic_smem,
        cluster=artifact.cluster,
    )
    return Built(artifact, facts)
