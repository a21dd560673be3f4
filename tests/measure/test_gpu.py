"""On a real device: the control copies, eager takes a plausible time, wrong is found."""

import pytest
import torch

from bandwatch import estimate
from bandwatch.measure.session import Session
from bandwatch.measure.workload import Workload

from .stand_ins import eager, right, softmax_op

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("vectors", [1, 3, 127, 1023, 1024, 1025, 100_003])
def test_the_control_copies_any_size_and_no_byte_more(vectors):
    from bandwatch.measure import copy_kernel

    for config in copy_kernel.CONFIGS:
        source = torch.randint(-(2**31), 2**31 - 1, (vectors, 4), dtype=torch.int32, device="cuda")
        room = torch.full((vectors + 64, 4), 7, dtype=torch.int32, device="cuda")
        copy_kernel.compiled(config)(source, room[:vectors])
        assert torch.equal(room[:vectors], source)
        assert (room[vectors:] == 7).all()


def test_the_control_copies_beyond_32_bit_offsets():
    from bandwatch.measure import copy_kernel

    vectors = (1 << 28) + 5  # 4 GiB and a tail
    source = torch.arange(vectors * 4, device="cuda", dtype=torch.int32).view(-1, 4)
    target = torch.zeros_like(source)
    copy_kernel.compiled(copy_kernel.CONFIGS[0])(source, target)
    assert torch.equal(source, target)


def test_eager_softmax_takes_a_plausible_time():
    workload = Workload("softmax", "float32", (8192, 4096))
    result = Session(placements=3, seed=0).measure(softmax_op(), workload)
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
    result = Session(placements=3, seed=0).measure(softmax_op(), workload, ["membound", "eager"])
    for name, provider in result.providers.items():
        assert provider.verdict == "valid", (name, provider.reason)
        # three matrices of 134 MB move
        assert 403e6 / 4.8e12 < estimate.seconds(provider.samples).value < 403e6 / 0.48e12


def test_a_wrong_provider_is_failed():
    def wrong(inputs, workload):
        return right(inputs) * 1.01

    workload = Workload("softmax", "float32", (512, 1024))
    op = softmax_op(membound=wrong, eager=eager)
    result = Session(quick=True).measure(op, workload)
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
