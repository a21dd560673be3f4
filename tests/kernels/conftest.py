"""The kernels of the static tests, compiled once a session."""

import traceback
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
    """What every kernel of VARIANTS became, by kernel, from a cache that began empty.

    A kernel that cannot be built is not there, and fails its own tests only.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MEMBOUND_CACHE_DIR", str(tmp_path_factory.mktemp("kernels")))
        try:
            membound.runtime.build(VARIANTS, jobs=JOBS)
        except Exception:
            traceback.print_exc()
        found = {kernel: membound.runtime.find(kernel) for kernel in VARIANTS}
        artifacts = {kernel: artifact for kernel, artifact in found.items() if artifact}
        facts = static.analyse_all(list(artifacts.values()), jobs=JOBS)
        built = map(Built, artifacts.values(), facts)
        return dict(zip(artifacts, built, strict=True))
