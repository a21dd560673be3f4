"""GPU time of rms_norm, forward."""

from __future__ import annotations

from typing import Any

from . import rows


class RmsNorm(rows.TimeRows):
    """One row per dtype, shape and provider."""

    op = "rms_norm"

    def track_time(self, dtype: str, shape: str, provider: str) -> dict[str, Any]:
        return self.seconds()
