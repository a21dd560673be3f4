"""What the GPU tests will run is known, and prepared, on a machine without a GPU."""

import itertools

import pytest
import torch

from bandwatch.measure.workload import FORWARD

from . import views
from .cases import DTYPES, OPS, Case, cases, extra, gpu_kernels, launched, optional, plain, run
from .pairwise import pairwise

every_op = pytest.mark.parametrize("op", OPS.values(), ids=list(OPS))


def test_they_are_not_too_many_and_their_kernels_are_named_once():
    kernels = gpu_kernels()
    assert len(cases()) <= 100 * len(OPS)  # some minutes on the GPU
    assert len({kernel.name for kernel in kernels}) == len(kernels)


@every_op
def test_each_call_can_be_recorded(op):
    """No rows are at most the launch that makes a gradient of what they would share."""
    mine = [case for case in [*cases().values(), *extra(op)] if case.op is op]
    assert mine
    for case in mine:
        assert launched(case) or 0 in case.workload.shape, case.id


@every_op
def test_each_value_of_each_option_meets_each_other_and_each_dtype(op):
    met = set()
    for case in optional(op):
        chosen = {name: values[0] for name, values in op.options.items()}
        chosen |= dict(case.workload.options) | {"dtype": case.workload.dtype}
        met |= set(itertools.combinations(sorted(chosen.items()), 2))
    choices = {"dtype": op.dtypes, **op.options}
    for (a, firsts), (b, seconds) in itertools.combinations(sorted(choices.items()), 2):
        for x, y in itertools.product(firsts, seconds):
            default = all(
                value == op.options[name][0] for name, value in ((a, x), (b, y)) if name != "dtype"
            )
            # what an op does not accept together is met in none
            assert ((a, x), (b, y)) in met or default or not _possible(op, {a: x, b: y})


def _possible(op, chosen):
    dtype = chosen.pop("dtype", None)
    return any(
        op.accepts(op.workload(one, case.workload.shape, FORWARD, **chosen))
        for one in ([dtype] if dtype else op.dtypes)
        for case in plain(op)
    )


@every_op
def test_every_dtype_is_run(op):
    assert {case.workload.dtype for case in plain(op)} == set(op.dtypes) <= set(DTYPES)


def test_pairs_that_exclude_each_other_are_left_out():
    choices = {"a": (1, 2, 3), "b": (1, 2), "c": (1, 2)}
    found = pairwise(choices, lambda one: (one["a"], one["b"]) != (3, 2))
    for x, y in itertools.combinations(choices, 2):
        pairs = {(one[x], one[y]) for one in found}
        allowed = set(itertools.product(choices[x], choices[y])) - (
            {(3, 2)} if (x, y) == ("a", "b") else set()
        )
        assert pairs == allowed
    assert len(found) <= 8


@pytest.mark.parametrize("kind", ["MATRIX", "VECTOR", "GRADIENT"])
def test_a_layout_holds_the_tensors_values(kind):
    tensor = torch.randn(1000) if kind == "VECTOR" else torch.randn(67, 1000)
    for name, lay in getattr(views, kind).items():
        view = lay(tensor)
        assert view.shape == tensor.shape
        assert not view.isnan().any()
        if "expanded" not in name:
            assert view.equal(tensor)
        assert view.stride() != tensor.stride() or view.storage_offset() > 0


def test_a_case_can_be_viewed_as_rows_of_several_dimensions():
    op = OPS["softmax"]
    for swapped in (False, True):
        case = Case(op.workload("float32", (15, 8)), leading=(3, 5), swapped=swapped)
        given, copies = case.inputs("cpu")
        assert given["input"].shape == (3, 5, 8)
        assert given["input"].is_contiguous() != swapped
        assert given["input"].reshape(15, 8).equal(copies["input"])
    from .cases import recorded

    with recorded():
        ran = run(case, "meta")
    assert [tuple(output.shape) for output in ran.outputs] == [(15, 8)]
    assert tuple(ran.gradients["input"].shape) == (15, 8)
