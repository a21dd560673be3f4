"""The kernels of the static tests, compiled once a session."""

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
        artifacts = [membound.runtime.artifact(kernel) for kernel in VARIANTS]
        facts = static.analyse_all(artifacts, jobs=JOBS)
        return dict(zip(VARIANTS, map(Built, artifacts, facts), strict=True))
