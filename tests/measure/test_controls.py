import pytest
import torch

from bandwatch.measure.controls import CopyControl
from bandwatch.measure.correctness import WrongResult
from bandwatch.measure.workload import Traffic, Workload

WORKLOAD = Workload("rms_norm", "bfloat16", (32, 1001))


@pytest.mark.parametrize("total", [32, 1000, 1 << 20, 2 * 32 * 1001 * 2 + 2002])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_the_control_moves_the_workloads_bytes_up_to_one_vector(total, dtype):
    workload = Workload("x", dtype, (1, 1))
    traffic = Traffic(total - total // 2, total // 2)
    source = CopyControl().make_inputs(workload, traffic, "cpu", None)["source"]
    assert source.dtype == torch.int32 and source.shape[1] == 4 and source.is_contiguous()
    nbytes = source.numel() * 4
    assert total // 2 <= nbytes < total // 2 + 16


def test_the_data_are_random_in_the_workloads_dtype():
    source = CopyControl().make_inputs(WORKLOAD, Traffic(4096, 4096), "cpu", None)["source"]
    values = source.view(torch.bfloat16).float()
    assert 0.9 < values.std() < 1.1


def test_one_lost_byte_is_a_wrong_copy():
    control = CopyControl()
    inputs = control.make_inputs(WORKLOAD, Traffic(4096, 4096), "cpu", None)
    copy = inputs["source"].clone()
    control.check(inputs, copy)
    copy.view(torch.uint8)[-1, -1] ^= 1
    with pytest.raises(WrongResult, match="differs from its source"):
        control.check(inputs, copy)


def test_unbalanced_traffic_has_no_1_to_1_control():
    with pytest.raises(NotImplementedError, match="reads 2000 and writes 100 bytes"):
        CopyControl().make_inputs(WORKLOAD, Traffic(2000, 100), "cpu", None)
