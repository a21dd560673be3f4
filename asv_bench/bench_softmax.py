"""GPU time of softmax, forward."""

from __future__ import annotations

from typing import Any

from . import rows


class Softmax(rows.TimeRows):
    """One row per dtype, shape and provider."""

    op = "softmax"

    def track_time(self, dtype: str, shape: str, provider: str) -> dict[str, Any]:
        return self.seconds()
