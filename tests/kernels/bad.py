"""Input that an op must refuse, by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import membound
import pytest


def refused(call: Callable[[], object], error: type[Exception], parts: Sequence[str]) -> None:
    """Require ``call`` to raise ``error`` before any launch, with a message that holds ``parts``:
    the op and the argument, what it was, what is accepted.

    Tensors may be on the meta device.
    """
    with membound.runtime.record_launches() as launches, pytest.raises(error) as raised:
        call()
    message = str(raised.value)
    assert [part for part in parts if part not in message] == [], message
    assert launches == []
