import functools
import hashlib

import pytest
import torch

from bandwatch.measure import controls, objects
from bandwatch.measure.controls import MIXES, SENTINEL, StreamControl, mix
from bandwatch.measure.correctness import WrongResult
from bandwatch.measure.workload import DTYPE_BYTES, Traffic, Workload

WORKLOAD = Workload("rms_norm", "bfloat16", (32, 1001))


@pytest.mark.parametrize(
    ("read", "written", "expected"),
    [
        (1000, 1000, (1, 1)),
        (2000, 1000, (2, 1)),
        (3000, 2000, (3, 2)),
        (1000, 4000, (1, 4)),
        (1000, 8, (1, 0)),
        (8, 1000, (0, 1)),
        (1020, 1000, (1, 1)),  # a weight beside a matrix
        (865, 135, (4, 1)),
    ],
)
def test_the_mix_is_the_nearest_share_of_reads(read, written, expected):
    assert mix(Traffic(read, written)) == expected


def test_streams_of_the_workload_decide_between_mixes_of_one_share():
    assert mix(Traffic(1000, 1000)) == (1, 1)
    assert mix(Traffic(1000, 1000, streams=(2, 2))) == (2, 2)
    with pytest.raises(NotImplementedError, match="no mix of 7 streams read and 1 written"):
        mix(Traffic(7000, 1000, streams=(7, 1)))


def test_a_share_without_a_mix_has_no_control():
    with pytest.raises(NotImplementedError, match="no mix near 90% reads .9000 bytes read, 1000"):
        mix(Traffic(9000, 1000))


@pytest.mark.parametrize("total", [32, 1000, 1 << 20, 2 * 32 * 1001 * 2 + 2002])
@pytest.mark.parametrize("dtype", list(DTYPE_BYTES))
@pytest.mark.parametrize("streams", [(1, 1), (3, 2), (1, 0), (0, 1)])
def test_the_control_moves_the_workloads_bytes_up_to_a_vector_a_stream(total, dtype, streams):
    workload = Workload("x", dtype, (1, 1))
    share = streams[0] / sum(streams)
    traffic = Traffic(round(share * total), total - round(share * total), streams=streams)
    (run, *_) = StreamControl().variants(traffic).values()
    source = StreamControl().make_inputs(workload, traffic, "cpu", None)["source"]
    assert source.dtype == torch.int32 and source.is_contiguous()
    target = run.args[1]
    read = source.numel() * 4 if streams[0] else 0
    written = target[0] * target[1] * target[2] * 4 if streams[1] else 0
    assert total <= read + written < total + 16 * sum(streams)
    assert read * streams[1] == written * streams[0]


def test_the_data_are_random_in_the_workloads_dtype():
    source = StreamControl().make_inputs(WORKLOAD, Traffic(4096, 4096), "cpu", None)["source"]
    values = source.view(torch.bfloat16).float()
    assert 0.9 < values.std() < 1.1


def stand_in(streams, inputs, lose=False):
    """What the kernel does, in torch; ``lose`` leaves out the last vector of the last stream."""
    reads, writes = streams
    source = inputs["source"].clone()
    if lose:
        source[-1, -1] = 0
    if not writes:
        found = (source == SENTINEL).all(-1).any()
        return torch.full((1, 1, 4), SENTINEL if found else 0, dtype=torch.int32)
    total = source.sum(0, dtype=torch.int32) if reads else source[0].expand(64, 4)
    return total.expand(writes, *total.shape).clone()


@pytest.mark.parametrize("streams", MIXES)
def test_what_is_lost_on_the_way_is_found(streams):
    control, generator = StreamControl(), torch.Generator().manual_seed(1)
    traffic = Traffic(streams[0] * 1024, streams[1] * 1024, streams=streams)
    inputs = control.make_inputs(WORKLOAD, traffic, "cpu", generator)

    def check(lose):
        run = functools.partial(stand_in, streams, lose=lose)
        control.check(traffic, run, inputs, run(inputs), generator)

    check(lose=False)
    if streams[0] and streams[1]:
        with pytest.raises(WrongResult, match="not the sum of what it read"):
            check(lose=True)
    if not streams[1]:
        with pytest.raises(WrongResult, match="did not read vector"):
            for _ in range(200):  # the place is random
                check(lose=True)


def test_one_written_stream_that_differs_is_wrong():
    control, traffic = StreamControl(), Traffic(1024, 4096)
    inputs = control.make_inputs(WORKLOAD, traffic, "cpu", None)
    output = stand_in((1, 4), inputs)
    output[2, 5, 1] ^= 1
    with pytest.raises(WrongResult, match="not the sum"):
        control.check(traffic, None, inputs, output, None)


def test_the_frozen_library_is_the_one_that_was_frozen():
    frozen = controls.frozen()
    library = (controls.FROZEN / "kernels.so").read_bytes()
    assert hashlib.sha256(library).hexdigest() == frozen["library"]
    assert frozen["control"] == controls.CONTROL
    for reads, writes in MIXES:
        found = StreamControl().variants(Traffic(reads * 16, writes * 16, streams=(reads, writes)))
        assert len(found) >= 3, (reads, writes)


def test_the_frozen_kernels_load_without_the_compiler():
    pytest.importorskip("tvm_ffi")
    try:
        module = objects.load(controls.FROZEN / "kernels.so")
    except NotImplementedError as error:
        pytest.skip(str(error))
    for label in controls.frozen()["kernels"]:
        assert callable(module[label])
