import pytest

from asv_bench import workloads
from bandwatch.measure.shards import Shard, parse


@pytest.mark.parametrize("text", ["0/4", "5/4", "a/b", "2", "1/0", "-1/4", "1/2/3", ""])
def test_what_is_no_part_is_refused(text):
    with pytest.raises(ValueError, match="expected i/n with 1 <= i <= n"):
        parse(text)


def test_a_part_is_counted_from_one():
    assert parse("2/4") == Shard(index=2, count=4)
    assert parse("1/1").takes("anything")


@pytest.mark.parametrize("count", [2, 4, 8])
def test_each_workload_of_the_grid_is_in_one_part_and_parts_are_alike(count):
    keys = [workload.key for workload in workloads.grid()]
    parts = [[k for k in keys if parse(f"{i}/{count}").takes(k)] for i in range(1, count + 1)]
    assert sorted(key for part in parts for key in part) == sorted(keys)
    assert max(map(len, parts)) < 1.5 * len(keys) / count


def test_the_part_of_a_workload_is_for_ever():
    """Written down, as another rule would move workloads between runners."""
    key = "softmax/forward/bfloat16/32768x4096"
    assert [n for n in range(1, 5) if parse(f"{n}/4").takes(key)] == [1]
