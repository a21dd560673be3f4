"""On a real device: the control copies, eager takes a plausible time, wrong is found."""

import pytest
import torch

from bandwatch import estimate
from bandwatch.measure import controls
from bandwatch.measure.controls import MIXES, StreamControl
from bandwatch.measure.sampling import QUICK, Plan
from bandwatch.measure.session import Session
from bandwatch.measure.workload import Traffic, Workload

from .stand_ins import eager, right, softmax_op

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("vectors", [1, 3, 127, 1023, 1024, 1025, 100_003])
@pytest.mark.parametrize("streams", MIXES)
def test_the_control_reads_and_writes_any_size_and_no_byte_more(streams, vectors):
    reads, writes = streams
    control, generator = StreamControl(), torch.Generator("cuda").manual_seed(1)
    traffic = Traffic(reads * vectors * 16, writes * vectors * 16, streams=streams)
    inputs = control.make_inputs(Workload("x", "float32", (1, 1)), traffic, "cuda", generator)
    for label, run in control.variants(traffic).items():
        control.check(traffic, run, inputs, run(inputs), generator)
        if writes:
            room = torch.full((writes, vectors + 64, 4), 7, dtype=torch.int32, device="cuda")
            controls._kernel(label)(inputs["source"], room[:, :vectors])
            assert (room[:, vectors:] == 7).all(), label


@pytest.mark.parametrize("streams", [(1, 1), (1, 0), (0, 1)])
def test_the_control_reaches_beyond_32_bit_offsets(streams):
    vectors = (1 << 28) + 5  # 4 GiB and a tail
    control, generator = StreamControl(), torch.Generator("cuda").manual_seed(1)
    traffic = Traffic(streams[0] * vectors * 16, streams[1] * vectors * 16, streams=streams)
    inputs = control.make_inputs(Workload("x", "float32", (1, 1)), traffic, "cuda", generator)
    for run in control.variants(traffic).values():
        control.check(traffic, run, inputs, run(inputs), generator)


def test_what_cannot_be_captured_is_timed_by_events():
    def waits(inputs, workload):
        out = right(inputs)
        out[0, 0].item()  # no capture can wait for the GPU
        return out

    workload = Workload("softmax", "float32", (8192, 4096))
    session = Session(Plan(pilot=2, least=0, most=0))
    result = session.measure(softmax_op(membound=right, eager=waits), workload)
    captured, waiting = (result.providers[name] for name in ("membound", "eager"))
    assert (captured.verdict, captured.timing) == ("valid", "graph"), captured.reason
    assert (waiting.verdict, waiting.timing) == ("valid", "events"), waiting.reason
    assert "timed by events" in waiting.reason
    graph, events = (estimate.seconds(one.samples).value for one in (captured, waiting))
    assert graph < events < 3 * graph
    # the failed capture broke nothing
    again = session.measure(softmax_op(), workload).providers["membound"]
    assert (again.verdict, again.timing) == ("valid", "graph")


def test_a_call_takes_longer_than_its_kernel():
    workload = Workload("softmax", "float32", (64, 1024))
    result = Session(Plan(pilot=2, least=0, most=0)).measure(softmax_op(), workload)
    eager_result = result.providers["eager"]
    assert estimate.seconds(eager_result.samples).value < eager_result.call_seconds < 1e-3


def test_eager_softmax_takes_a_plausible_time():
    workload = Workload("softmax", "float32", (8192, 4096))
    result = Session(Plan(pilot=3, least=0, most=0, baseline=3), seed=0).measure(
        softmax_op(), workload
    )
    for name, provider in result.providers.items():
        assert provider.verdict == "valid", (name, provider.reason)
        assert len(provider.samples) == 3
    times = {n: estimate.seconds(p.samples).value for n, p in result.providers.items()}
    # 268 MB cannot move in less than at 4.8 TB/s, and no row softmax needs a tenth of that rate.
    assert 268e6 / 4.8e12 < times["control"] < times["eager"] < 268e6 / 0.48e12
    assert result.telemetry == {} or result.telemetry["sm_clock_mhz"][1] > 500
    assert result.host_seconds < 10


def test_eager_gradients_take_a_plausible_time():
    workload = Workload("softmax", "float32", (8192, 4096), "backward")
    result = Session(Plan(pilot=3, least=0, most=0, baseline=3), seed=0).measure(
        softmax_op(), workload, ["membound", "eager"]
    )
    for name, provider in result.providers.items():
        assert provider.verdict == "valid", (name, provider.reason)
        # three matrices of 134 MB move
        assert 403e6 / 4.8e12 < estimate.seconds(provider.samples).value < 403e6 / 0.48e12


def test_a_wrong_provider_is_failed():
    def wrong(inputs, workload):
        return right(inputs) * 1.01

    workload = Workload("softmax", "float32", (512, 1024))
    op = softmax_op(membound=wrong, eager=eager)
    result = Session(QUICK).measure(op, workload)
    assert result.providers["membound"].verdict == "failed"
    assert result.providers["membound"].samples == []
    assert result.providers["eager"].samples


def test_outputs_rotate_through_buffers_of_their_own():
    from bandwatch.measure.device import CudaDevice

    device = CudaDevice()
    with device.active():
        device.place(1 << 20, seed=0)
        sets = [{"x": torch.randn(64, 4096, device="cuda")} for _ in range(5)]
        graph = device.capture(right, sets, rounds=4)
        assert graph.launches == 20
        assert len({output.data_ptr() for output in graph.outputs}) == 5
        graph.replay()
        device.synchronize()
        for inputs, output in zip(sets, graph.outputs, strict=True):
            assert torch.equal(output, right(inputs))
