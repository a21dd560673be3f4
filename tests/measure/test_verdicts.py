import math

import pytest

from bandwatch.measure.telemetry import Reading, Telemetry, Watch
from bandwatch.measure.verdicts import judge

from .stand_ins import H200, Readings

STEADY = [1.00e-4, 1.01e-4, 1.02e-4]


def verdict(
    seconds=STEADY, gpu=H200, gigabytes=0.4, rotation=200 << 20, readings=(), finished=True
):
    return judge(
        seconds,
        logs=[math.log(one) for one in seconds],
        finished=finished,
        traffic_bytes=int(gigabytes * 1e9),
        rotation_bytes=rotation,
        l2_bytes=60 << 20,
        gpu=gpu,
        telemetry=Telemetry(readings, 1980.0),
    )


def reading(sm_clock=1980.0, reasons=0):
    return Reading(sm_clock, 3201.0, 40.0, 500.0, reasons)


def test_valid_has_no_reason():
    assert verdict() == ("valid", "")
    assert verdict(readings=[reading()]) == ("valid", "")


def test_the_peak_is_of_the_model_and_the_fastest_placement():
    assert verdict(gigabytes=0.479)[0] == "valid"
    assert verdict(gigabytes=0.481)[0] == "above physical peak"
    assert verdict(gigabytes=0.34, gpu="NVIDIA H100 80GB HBM3")[0] == "above physical peak"
    assert verdict(gigabytes=9.0, gpu="NVIDIA H300")[0] == "valid"


def test_the_limit_of_steadiness_is_ten_percent():
    assert verdict([1.0e-4, 1.099e-4])[0] == "valid"
    name, reason = verdict([1.0e-4, 1.2e-4])
    assert (name, reason) == ("not steady", "placements spread by 20.0%, at most 10% is steady")


@pytest.mark.parametrize("bit", [0x8, 0x20, 0x40, 0x80])
def test_hardware_and_thermal_reasons_throttle(bit):
    name, reason = verdict(readings=[reading(), reading(reasons=bit), reading()])
    assert name == "throttled"
    assert "slowdown" in reason


def test_the_power_cap_throttles_only_through_the_clock():
    assert verdict(readings=[reading(1500.0, 0x4)])[0] == "valid"
    assert verdict(readings=[reading(1400.0, 0x4)])[0] == "throttled"


def test_idle_pauses_do_not_count_as_low_clocks():
    idle = [reading(345.0, 0x1)] * 5
    assert verdict(readings=[*idle, reading()])[0] == "valid"
    assert verdict(readings=[*idle, reading(1000.0)])[0] == "throttled"


def test_a_rotation_within_two_l2_is_resident():
    assert verdict(rotation=119 << 20)[0] == "L2-resident"
    assert verdict(rotation=121 << 20)[0] == "valid"


def test_telemetry_records_minimum_median_and_maximum():
    telemetry = Telemetry([reading(1900.0, 0x4), reading(1980.0), reading(1950.0, 0x40)], 1980.0)
    record = telemetry.record()
    assert record["sm_clock_mhz"] == [1900.0, 1950.0, 1980.0]
    assert record["throttle_reasons"] == ["hw_thermal_slowdown", "sw_power_cap"]


def test_no_nvml_is_empty_telemetry():
    with Watch(None) as watch:
        pass
    assert watch.telemetry().record() == {}
    assert watch.telemetry().sm_clock_share is None


def test_the_watch_reads_before_and_during():
    with Watch(Readings(), period=0.001) as watch:
        while len(watch.telemetry().readings) < 3:
            pass
    assert watch.telemetry().max_sm_clock == 1980.0
