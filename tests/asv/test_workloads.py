"""The registry: bytes, references and tolerances that can tell."""

import dataclasses
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from asv_bench import rows, workloads
from bandwatch.measure.workload import BACKWARD, FORWARD, Op, Traffic, Workload
from bandwatch.results.rows import row_workload

torch = pytest.importorskip("torch")

from bandwatch.measure import backward, correctness  # noqa: E402

DESCRIBED = [workloads.describe(name) for name in workloads.OPS]
every_op = pytest.mark.parametrize("op", DESCRIBED, ids=lambda op: op.name)
every_grid_row = pytest.mark.parametrize(
    "workload", list(workloads.grid()), ids=lambda workload: workload.key
)


def suite_of_torch():
    """A suite that computes by torch and records one launch per call."""
    launched = []

    @contextmanager
    def record_launches():
        launched.clear()
        yield launched

    def softmax(x, dim=-1):
        launched.append(SimpleNamespace(kernel=("softmax", x.dtype)))
        return torch.softmax(x, dim)

    def rms_norm(x, normalized_shape, weight=None, eps=None):
        launched.extend([SimpleNamespace(kernel=("rms_norm", x.dtype))] * 2)
        return torch.nn.functional.rms_norm(x, normalized_shape, weight, eps)

    def artifact(kernel):
        return SimpleNamespace(name=kernel[0], digest="ab" * 32)

    return SimpleNamespace(
        softmax=softmax,
        rms_norm=rms_norm,
        runtime=SimpleNamespace(record_launches=record_launches, artifact=artifact),
    )


@pytest.mark.parametrize("op", ["softmax", "rms_norm"])
def test_what_is_recorded_since_the_first_commit_goes_on(op):
    forward = workloads.benchmarked(op, FORWARD)

    assert len(forward) >= 3 * 8
    assert [one.key for one in forward[:24]] == [
        f"{op}/forward/{dtype}/{shape}" for dtype in workloads.DTYPES for shape in workloads.SHAPES
    ]
    (cls,) = (cls for cls in _time_classes() if (cls.op, cls.direction) == (op, FORWARD))
    assert (cls.__module__, cls.__name__) == (
        f"asv_bench.bench_{op}",
        "".join(part.capitalize() for part in op.split("_")),
    )
    assert cls.params[0] == workloads.DTYPES
    assert cls.params[1][:8] == workloads.SHAPES


def _time_classes():
    import importlib
    import pkgutil

    import asv_bench

    for module in pkgutil.iter_modules(asv_bench.__path__):
        if module.name.startswith("bench_") and module.name != "bench_static":
            for one in vars(importlib.import_module(f"asv_bench.{module.name}")).values():
                if isinstance(one, type) and issubclass(one, rows.TimeRows):
                    yield one


@every_op
def test_each_direction_has_rows_of_time_and_of_static_facts(op):
    from asv_bench import bench_static

    for direction in op.directions:
        assert workloads.benchmarked(op.name, direction), direction
        (cls,) = (c for c in _time_classes() if (c.op, c.direction) == (op.name, direction))
        assert cls.__name__ == rows.class_name(op.name, direction)
        static = getattr(bench_static, rows.class_name(op.name, direction))
        assert static.params == cls.params[:2]


def test_keys_are_unique_and_rows_can_be_read_back():
    grid = list(workloads.grid())

    assert len({workload.key for workload in grid}) == len(grid)
    for one in grid:
        assert workloads.workload(one.op, one.dtype, one.case_text, one.direction) == one
        name = rows.class_name(one.op, one.direction)
        assert row_workload(name, one.dtype, one.case_text) == one


def test_options_are_read_back_and_what_is_no_workload_is_none():
    causal = Workload("log_softmax", "float32", (3, 8), BACKWARD, (("causal", "yes"),))
    assert row_workload("LogSoftmaxBackward", "float32", "3x8/causal=yes") == causal
    for case in ("3x8/causal", "3x8/=yes", "3x8/a=b=c", "3x8/a=b,c", "x8", ""):
        assert row_workload("Softmax", "float32", case) is None


@every_op
def test_a_description_is_whole(op):
    assert list(op.providers)[:2] == ["membound", "eager"]
    assert set(op.directions) in ({FORWARD}, {FORWARD, BACKWARD})
    assert bool(op.differentiable) >= (BACKWARD in op.directions)
    assert all(op.accepts(one) for one in op.benchmarks)
    for text in (op.summary, op.limits, op.formula, op.source):
        assert text and "|" not in text and "\n" not in text
    with pytest.raises(ValueError, match="accepted are"):
        op.workload("float32", (3, 8), unknown="yes")


def test_the_page_of_the_docs_is_what_the_registry_says():
    from asv_bench.workloads import document

    assert document.PAGE.read_text() == document.page(), (
        "docs/kernels.md is stale: run python -m asv_bench.workloads.document"
    )


def test_options_that_are_defaults_are_left_out_and_the_others_keep_the_ops_order():
    op = workloads.describe("softmax")
    one = op.workload("float32", (3, 8), causal="yes", mask="none", scale="0.125")
    assert one == Workload(
        "softmax", "float32", (3, 8), options=(("scale", "0.125"), ("causal", "yes"))
    )
    assert one.key == "softmax/forward/float32/3x8/scale=0.125/causal=yes"


def test_an_older_suite_offers_fewer_operations():
    assert list(workloads.ops(SimpleNamespace(rms_norm=None))) == ["rms_norm"]
    assert workloads.ops(SimpleNamespace()) == {}


def test_what_an_older_suite_does_not_know_is_not_available():
    op = workloads.ops(suite_of_torch())["softmax"]
    workload = op.workload("float32", (3, 8), causal="yes")
    inputs = op.make_inputs(workload, "cpu", None)
    with pytest.raises(NotImplementedError, match="unexpected keyword argument 'causal'"):
        op.providers["membound"](inputs, workload)


def test_bytes_are_each_input_once_and_each_output_once():
    matrix = 4096 * 32768
    half = workloads.workload("softmax", "bfloat16", "4096x32768")
    assert workloads.describe("softmax").traffic(half) == Traffic(2 * matrix, 2 * matrix)
    back = dataclasses.replace(half, direction=BACKWARD)
    assert workloads.describe("softmax").traffic(back) == Traffic(4 * matrix, 2 * matrix)
    single = workloads.workload("rms_norm", "float32", "4096x32768")
    assert workloads.describe("rms_norm").traffic(single) == Traffic(
        4 * matrix + 4 * 32768, 4 * matrix
    )


@every_grid_row
def test_bytes_are_plausible(workload):
    """Traffic beyond what a GPU's memory holds, or within its L2, is no use."""
    traffic = workloads.describe(workload.op).traffic(workload)
    assert min(traffic.read, traffic.written) >= 0
    assert 16 << 20 <= traffic.total <= 4 << 30


def small(op: Op, dtype: str, direction: str):
    """An accepted workload of few elements."""
    shapes = op.shapes or ((5, 1000), (8, 1024), (8, 128))
    return next(
        one
        for shape in shapes
        if op.accepts(one := op.workload(dtype, shape, direction)) and _count(shape) < 1 << 20
    )


def _count(shape):
    return torch.Size(shape).numel()


@pytest.mark.parametrize("dtype", workloads.DTYPES)
@every_op
def test_the_tolerance_passes_torch(op, dtype):
    if dtype not in op.dtypes:
        pytest.skip(f"not in {dtype}")
    workload = small(op, dtype, FORWARD)
    inputs = op.make_inputs(workload, "cpu", torch.Generator().manual_seed(0))
    for name in list(op.providers)[1:]:
        result = op.providers[name](inputs, workload)
        correctness.check(op, workload, inputs, result, own=False)
    if BACKWARD in op.directions:
        workload = small(op, dtype, BACKWARD)
        generator = torch.Generator().manual_seed(0)
        inputs = op.make_inputs(workload, "cpu", generator)
        for name in list(op.providers)[1:]:
            prepared = backward.prepare(op.providers[name], op, workload, inputs, generator)
            found = backward.gradients(prepared)
            correctness.check_gradients(op, workload, prepared, found, own=False)


@pytest.mark.parametrize("dtype", workloads.DTYPES)
@every_op
def test_the_tolerance_catches_an_error_of_four_roundings(op, dtype):
    if dtype not in op.dtypes or op.check is not None:
        pytest.skip(f"{op.name} is judged in a way of its own, or not in {dtype}")
    workload = small(op, dtype, FORWARD)
    inputs = op.make_inputs(workload, "cpu", torch.Generator().manual_seed(0))
    expected = backward.flat(op.reference(inputs, workload))
    names = op.result_dtypes(workload) or (dtype,) * len(expected)
    for i, right in enumerate(expected):
        if not right.is_floating_point():
            continue
        one = getattr(torch, names[i])
        arithmetic = (op.tolerance.terms + op.tolerance.saved) * 2.0**-24
        off = 4 * max(torch.finfo(one).eps / 2, arithmetic)
        largest = right.abs() == right.abs().amax()
        wrong = torch.where(largest, right * (1 + off), right).to(one)
        result = tuple(wrong if j == i else other.to(one) for j, other in enumerate(expected))
        with pytest.raises(correctness.WrongResult, match="values are wrong"):
            correctness.check(op, workload, inputs, result)


def test_kernels_are_found_without_a_gpu_and_named_once():
    suite = suite_of_torch()
    op = workloads.ops(suite)["rms_norm"]
    workload = workloads.workload("rms_norm", "float16", "4096x32768")

    assert workloads.kernels(suite, op, workload) == [("rms_norm", torch.float16)]
    assert op.kernels(workload) == {"rms_norm": "ab" * 32}


def test_a_suite_that_records_no_plans_has_no_digests():
    op = workloads.ops(suite_of_torch())["rms_norm"]
    assert op.digest(workloads.workload("rms_norm", "float16", "4096x32768")) is None


def test_digests_are_of_the_direction_alone(monkeypatch):
    membound = pytest.importorskip("membound")
    op = workloads.ops(membound)["softmax"]
    recorded = []
    monkeypatch.setattr(membound.runtime.Plan, "digest", lambda plan: recorded.append(plan) or "0")
    for direction in (FORWARD, BACKWARD):
        op.digest(workloads.workload("softmax", "bfloat16", "32768x4096", direction))
    modules = [[kernel.module for kernel in plan.kernels] for plan in recorded]
    assert modules == [["softmax"], ["softmax_backward"]]
