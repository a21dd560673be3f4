import hashlib
import json

import pytest
import torch

from bandwatch.measure.frozen import Frozen
from bandwatch.measure.workload import Workload

WORKLOAD = Workload("add", "float32", (4, 6))


def tensor(memory, shape=(4, 6), strides=(6, 1), offset=0, dtype="float32"):
    shape, strides = list(shape), list(strides)
    told = {"dtype": dtype, "shape": shape, "strides": strides, "offset": offset}
    return told | {"memory": memory}


@pytest.fixture
def frozen(tmp_path, monkeypatch):
    """x + y into memory of its own, then its last column doubled into another."""
    library = b"not a real library"
    (tmp_path / "add.so").write_bytes(library)
    facts = {
        "version": "t1",
        "libraries": {"add.so": hashlib.sha256(library).hexdigest()},
        "plans": {
            WORKLOAD.key: {
                "memories": [{"input": "x"}, {"input": "y"}, {"bytes": 96}, {"bytes": 8}],
                "launches": [
                    {"library": "add.so", "arguments": [tensor(0), tensor(1), tensor(2), 1.0]},
                    {
                        "library": "add.so",
                        "arguments": [
                            tensor(2, (4,), (6,), 5),
                            tensor(2, (4,), (6,), 5),
                            tensor(3, (4,), (1,), dtype="bfloat16"),
                            None,
                        ],
                    },
                ],
                "results": [tensor(2), tensor(3, (4,), (1,), dtype="bfloat16")],
            }
        },
    }
    (tmp_path / "plans.json").write_text(json.dumps(facts))
    calls = []

    def add(x, y, out, scalar):
        calls.append(scalar)
        out.copy_(x + y)

    monkeypatch.setattr(Frozen, "_function", lambda self, library: add)
    return Frozen(tmp_path), calls


def test_a_plan_runs_on_fresh_memory_each_time(frozen):
    anchor, calls = frozen
    inputs = {"x": torch.randn(4, 6), "y": torch.randn(4, 6)}
    total, last = anchor.run(inputs, WORKLOAD)
    again, _ = anchor.run(inputs, WORKLOAD)
    assert torch.equal(total, inputs["x"] + inputs["y"])
    assert torch.equal(last, (2 * total[:, 5]).bfloat16())
    assert total.data_ptr() != again.data_ptr()
    assert calls == [1.0, None, 1.0, None]


def test_what_is_not_frozen_is_not_available(frozen):
    anchor, _ = frozen
    assert anchor.keys == {WORKLOAD.key}
    with pytest.raises(NotImplementedError, match="t1 holds nothing for add/forward/float32/8x8"):
        anchor.run({}, Workload("add", "float32", (8, 8)))


def test_a_changed_library_is_damage(frozen, tmp_path):
    anchor, _ = frozen
    assert anchor.damaged() == []
    (tmp_path / "add.so").write_bytes(b"another")
    assert anchor.damaged() == ["add.so"]
