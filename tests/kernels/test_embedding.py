"""embedding, gather_rows and permute_rows: what they refuse, and what no generated test knows."""

import membound
import pytest
import torch

from .bad import refused
from .cases import BF16, FP32, new

make = new("meta")
x = make(BF16, 5, 8)


def index(*values, dtype=torch.int64):
    return torch.tensor(values, dtype=dtype).to("meta")


#: Call, error, and what the message must hold.
BAD = {
    "a list as index": (
        lambda: membound.gather_rows(x, [1]),
        TypeError,
        ["gather_rows: index", "torch.Tensor", "list"],
    ),
    "a list as input": (
        lambda: membound.gather_rows([1.0], index(1)),
        TypeError,
        ["gather_rows: input", "torch.Tensor", "list"],
    ),
    "an index of fractions": (
        lambda: membound.gather_rows(x, make(FP32, 3)),
        TypeError,
        ["gather_rows: index", "torch.float32", "int64, int32"],
    ),
    "an index elsewhere": (
        lambda: membound.gather_rows(x, torch.tensor([1])),
        ValueError,
        ["gather_rows: index", "cpu", "meta"],
    ),
    "an index matrix": (
        lambda: membound.gather_rows(x, index([1], [2])),
        ValueError,
        ["gather_rows: index", "(2, 1)", "one dimension"],
    ),
    "more dimensions": (
        lambda: membound.gather_rows(make(BF16, 2, 3, 4), index(1)),
        ValueError,
        ["gather_rows: input", "(2, 3, 4)", "(rows, columns)"],
    ),
    "no columns": (
        lambda: membound.gather_rows(make(BF16, 3, 0), index(1)),
        ValueError,
        ["gather_rows: input", "0 columns", "at least 1"],
    ),
    "a short permutation": (
        lambda: membound.permute_rows(x, index(1, 0)),
        ValueError,
        ["permute_rows: index", "2 values", "5 rows"],
    ),
    "an integer table": (
        lambda: membound.embedding(index(1), index([1], [2])),
        TypeError,
        ["embedding: weight", "torch.int64", "bfloat16, float16, float32"],
    ),
    "a table of three dimensions": (
        lambda: membound.embedding(index(1), make(BF16, 2, 3, 4)),
        ValueError,
        ["embedding: weight", "(2, 3, 4)", "(V, D)"],
    ),
    "numbers with fractions": (
        lambda: membound.embedding(make(FP32, 3), x),
        TypeError,
        ["embedding: input", "torch.float32", "int64, int32"],
    ),
    "a row for padding that is not there": (
        lambda: membound.embedding(index(1), x, 5),
        ValueError,
        ["embedding: padding_idx", "is 5", "-5 to 4"],
    ),
    "a table on the CPU": (
        lambda: membound.embedding(torch.tensor([1]), torch.ones(3, 8)),
        ValueError,
        ["embedding: weight", "CUDA", "cpu"],
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused_by_name(name):
    refused(*BAD[name])


def test_numbers_may_lie_in_any_shape():
    with membound.runtime.record_launches() as launches:
        assert membound.embedding(index([1, 2], [3, 4]), x).shape == (2, 2, 8)
        assert membound.embedding(index(1)[0], x).shape == (8,)
        assert membound.embedding(index(), x).shape == (0, 8)
    assert len(launches) == 2


def test_few_picks_need_no_sums_of_stretches():
    leaf = x.detach().requires_grad_()
    counts = {}
    for picks in (64, 10_000):
        with membound.runtime.record_launches() as launches:
            result = membound.gather_rows(leaf, torch.empty(picks, dtype=torch.int64).to("meta"))
            torch.autograd.grad(result, leaf, torch.empty_like(result))
        counts[picks] = len(launches)
    assert counts == {64: 2, 10_000: 3}


def test_a_permutation_only_moves_rows():
    leaf = x.detach().requires_grad_()
    with membound.runtime.record_launches() as launches:
        result = membound.permute_rows(leaf, index(4, 3, 2, 1, 0))
        torch.autograd.grad(result, leaf, torch.empty_like(result))
    assert [launch.kernel.send for launch in launches] == [False, True]


@pytest.mark.gpu
@pytest.mark.parametrize("wrong", [-1, 5])
def test_what_is_no_row_is_refused(wrong):
    table = new("cuda")(BF16, 5, 8)
    picks = torch.tensor([0, wrong, 2], device="cuda")
    calls = {
        "embedding: input": lambda: membound.embedding(picks, table),
        "gather_rows: index": lambda: membound.gather_rows(table, picks),
        "permute_rows: index": lambda: membound.permute_rows(table[:3], picks),
    }
    for what, call in calls.items():
        with pytest.raises(ValueError, match=f"{what} holds {wrong}; accepted are rows 0 to"):
            call()


@pytest.mark.gpu
def test_what_is_no_permutation_is_refused():
    table = new("cuda")(BF16, 3, 8)
    with pytest.raises(ValueError, match="permute_rows: index holds 1 more than once"):
        membound.permute_rows(table, torch.tensor([1, 0, 1], device="cuda"))


@pytest.mark.gpu
def test_a_row_that_is_picked_by_all_is_the_sum_in_float32():
    grads = torch.full((100_000, 64), 1.0, dtype=torch.bfloat16, device="cuda")
    table = torch.zeros(3, 64, dtype=torch.bfloat16, device="cuda", requires_grad=True)
    membound.embedding(torch.ones(100_000, dtype=torch.int32, device="cuda"), table).backward(grads)
    expected = torch.zeros_like(table)
    expected[1] = 100_000
    assert table.grad.equal(expected)


@pytest.mark.gpu
def test_rows_beyond_2_to_the_31_elements():
    table = torch.empty(33_000, 65_536, dtype=torch.bfloat16, device="cuda")
    table[0], table[-1] = 1.0, 2.0
    table.requires_grad_()
    picked = membound.gather_rows(table, torch.tensor([32_999, 0, 32_999], device="cuda"))
    assert picked.float().equal(
        torch.tensor([[2.0], [1.0], [2.0]], device="cuda").expand(3, 65_536)
    )
    picked.backward(torch.ones_like(picked))
    assert (
        table.grad[::32_999]
        .float()
        .equal(torch.tensor([[1.0], [2.0]], device="cuda").expand(2, 65_536))
    )
    assert not table.grad[1:-1].any()
