import dataclasses
import math
import re
import statistics

import numpy as np
import pytest
import torch

from bandwatch import estimate, sidecar
from bandwatch.measure import session as session_module
from bandwatch.measure.sampling import QUICK, Plan, more
from bandwatch.measure.session import DeviceLost, Session, distinct_bytes, random_blocks, set_count
from bandwatch.measure.workload import Traffic, Workload

from .stand_ins import CloneControl, Readings, SimulatedDevice, eager, right, softmax_op

WORKLOAD = Workload("softmax", "float32", (48, 33))
FAST, SLOW, COPY = 2e-6, 6e-6, 1.5e-6


def make(op=None, control=None, speeds=(), **options):
    control = control or CloneControl()
    copies = zip(control.runs.values(), (3e-6, COPY, 2e-6), strict=True)
    table = {right: FAST, eager: SLOW, **dict(copies), **dict(speeds)}
    device_options = {
        k: options.pop(k) for k in ("l2_bytes", "name", "placement_noise", "source") if k in options
    }
    device = SimulatedDevice(lambda run: table.get(run, FAST), **device_options)
    return Session(seed=1, device=device, control=control, **options), device


def test_one_sample_is_one_placement_and_the_ratio_cancels_it():
    session, device = make(plan=Plan(pilot=6, most=0, least=0, baseline=6))
    result = session.measure(softmax_op(), WORKLOAD)
    assert list(result.providers) == ["membound", "eager", "control"]
    for name, seconds in (("membound", FAST), ("eager", SLOW), ("control", COPY)):
        provider = result.providers[name]
        assert (provider.verdict, provider.reason) == ("valid", "")
        assert [s[:2] for s in provider.samples] == [[0, p] for p in range(6)]
        expected = [seconds * factor for factor in device.factors]
        assert [s[2] for s in provider.samples] == pytest.approx(expected)
    ratio = estimate.log_ratio(
        result.providers["eager"].samples, result.providers["membound"].samples
    )
    assert (ratio.value, ratio.low, ratio.high) == pytest.approx((3.0, 3.0, 3.0))
    single = estimate.seconds(result.providers["membound"].samples)
    assert single.low < FAST < single.high and single.high / single.low > 1.002


def test_every_placement_is_a_fresh_one_with_its_own_padding_and_data():
    session, device = make(plan=Plan(pilot=6, most=0, least=0, baseline=6))
    session.measure(softmax_op(), WORKLOAD)
    assert len(device.paddings) == 6
    assert len(set(device.paddings)) > 1
    assert all(p % session_module.PADDING_STEP == 0 and p > 0 for p in device.paddings)


def test_replays_are_long_enough_and_every_set_is_launched_equally():
    session, _ = make()
    result = session.measure(softmax_op(), WORKLOAD)
    for provider, seconds in (("membound", FAST), ("eager", SLOW), ("control", COPY)):
        got = result.providers[provider]
        assert got.launches_per_replay * seconds > 0.9 * session_module.REPLAY_SECONDS
        assert got.launches_per_replay % got.sets == 0


def test_the_median_over_blocks_ignores_a_disturbed_replay():
    session, device = make(plan=Plan(pilot=1, most=0, least=0, baseline=1), placement_noise=0.0)
    undisturbed = device.time

    def disturbed(order):
        seconds = undisturbed(order)
        if len(seconds) > session_module.TRIALS:
            seconds[len(seconds) // 2] *= 50
        return seconds

    device.time = disturbed
    result = session.measure(softmax_op(), WORKLOAD)
    assert result.providers["membound"].samples[0][2] == pytest.approx(FAST)
    assert result.providers["eager"].samples[0][2] == pytest.approx(SLOW)


def test_blocks_hold_each_provider_once_in_varying_order():
    blocks = random_blocks(["a", "b", "c"], 200, np.random.default_rng(3))
    assert all(sorted(block) == ["a", "b", "c"] for block in blocks)
    for position in range(3):
        counts = [sum(block[position] == name for block in blocks) for name in "abc"]
        assert min(counts) > 45, (position, counts)


def test_the_session_replays_in_blocks():
    session, device = make(plan=Plan(pilot=2, most=0, least=0, baseline=2))
    session.measure(softmax_op(), WORKLOAD)
    timed = [order for order in device.orders if len(set(order)) > 1]
    assert len(timed) == 2
    for order in timed:
        blocks = [order[i : i + 3] for i in range(0, len(order), 3)]
        assert len(blocks) == 1 + Plan().blocks
        assert all(len(set(block)) == 3 for block in blocks)
    assert timed[0] != timed[1]


def test_the_same_seed_gives_the_same_orders_and_another_does_not():
    def orders(seed):
        control = CloneControl()
        device = SimulatedDevice(lambda run: FAST)
        Session(seed=seed, device=device, control=control).measure(softmax_op(), WORKLOAD)
        names = {right: "m", eager: "e", **{run: k for k, run in control.runs.items()}}
        return [[names[run] for run in order] for order in device.orders]

    assert orders(4) == orders(4)
    assert orders(4) != orders(5)


def test_the_fastest_configuration_of_the_control_is_kept():
    session, _ = make()
    control = session.measure(softmax_op(), WORKLOAD).providers["control"]
    assert control.config == "b"
    assert statistics.median(s[2] for s in control.samples) == pytest.approx(COPY, rel=0.05)


def wrong_row(inputs, workload):
    out = right(inputs)
    out[7, 3] += 1e-3
    return out


def skips_last_row(inputs, workload):
    out = torch.full_like(inputs["x"], float("nan"))
    out[:-1] = right(inputs)[:-1]
    return out


def transposed(inputs, workload):
    return right(inputs).T


def low_precision(inputs, workload):
    return right(inputs).bfloat16()


@pytest.mark.parametrize(
    ("provider", "reason"),
    [
        (wrong_row, r"1 of 1584 checked values are wrong, first at \[7, 3\]"),
        (skips_last_row, r"NaN or was not written at \[47, 0\]"),
        (transposed, r"float32 \(33, 48\), torch.float32 \(48, 33\) was expected"),
        (low_precision, r"result is torch.bfloat16"),
    ],
)
def test_wrong_is_failed_and_never_timed(provider, reason):
    session, _ = make()
    result = session.measure(softmax_op(membound=provider, eager=eager), WORKLOAD)
    got = result.providers["membound"]
    assert got.verdict == "failed"
    assert got.samples == []
    assert re.search(reason, got.reason), got.reason
    assert result.providers["eager"].verdict == "valid"
    assert result.kernels == {}


def test_a_provider_that_writes_nothing_when_replayed_is_caught_by_the_poison():
    class Uncaptured:
        """Right at the call, but its launch is not in the graph: the replay changes nothing."""

        def __init__(self):
            self.first = {}

        def __call__(self, inputs, workload):
            key = inputs["x"].data_ptr()
            if key in self.first:
                return self.first[key]  # the graph's own, poisoned output
            self.first[key] = right(inputs)
            return self.first[key]

    session, _ = make()
    result = session.measure(softmax_op(membound=Uncaptured(), eager=eager), WORKLOAD)
    assert result.providers["membound"].verdict == "failed"
    assert "not written" in result.providers["membound"].reason


def test_a_result_in_an_inputs_memory_fails_alone():
    session, _ = make()
    result = session.measure(
        softmax_op(membound=lambda inputs, workload: inputs["x"], eager=eager), WORKLOAD
    )
    assert result.providers["membound"].verdict == "failed"
    assert result.providers["membound"].reason == "the result lies in the memory of an input"
    assert result.providers["eager"].verdict == "valid"


@pytest.mark.parametrize("seconds", [0.0, float("nan")])
def test_a_time_that_is_none_fails_its_provider_alone(seconds):
    session, device = make()
    speed = device.speed
    device.speed = lambda run: seconds if run is right else speed(run)
    result = session.measure(softmax_op(), WORKLOAD)
    membound = result.providers["membound"]
    assert (membound.verdict, membound.samples) == ("failed", [])
    assert membound.reason == f"the device timed a launch at {seconds:g} s"
    assert result.providers["eager"].verdict == "valid"


def test_backward_times_the_gradients_alone(tmp_path):
    workload = dataclasses.replace(WORKLOAD, direction="backward")
    calls = []

    def counted(inputs, workload):
        calls.append(workload)
        return right(inputs)

    session, _ = make(plan=Plan(pilot=2, most=0, least=0, baseline=2))
    result = session.measure(softmax_op(membound=counted, eager=eager), workload)
    assert {name: one.verdict for name, one in result.providers.items()} == dict.fromkeys(
        ("membound", "eager", "control"), "valid"
    )
    assert len(calls) == 2 * result.providers["membound"].sets
    (line,) = write(tmp_path, session, [result]).workloads
    assert line["key"] == "softmax/backward/float32/48x33"
    assert line["providers"]["membound"]["error"]["max_abs"] < 1e-6


def test_a_wrong_gradient_is_failed_and_never_timed():
    class Wrong(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return torch.softmax(x, -1)

        @staticmethod
        def backward(ctx, grad):
            return grad

    wrong = softmax_op(membound=lambda inputs, workload: Wrong.apply(inputs["x"]), eager=eager)
    session, _ = make()
    result = session.measure(wrong, dataclasses.replace(WORKLOAD, direction="backward"))
    membound = result.providers["membound"]
    assert (membound.verdict, membound.samples) == ("failed", [])
    assert "lies in the memory of an input" in membound.reason
    assert result.providers["eager"].verdict == "valid"


def test_exceptions_become_verdicts_and_do_not_stop_the_others():
    def missing(inputs, workload):
        raise NotImplementedError("N above 16384 needs a cluster\nand more")

    def broken(inputs, workload):
        raise ValueError("bad tile\ntraceback follows")

    session, _ = make()
    result = session.measure(softmax_op(membound=missing, eager=broken), WORKLOAD)
    membound, broken_eager = result.providers["membound"], result.providers["eager"]
    assert (membound.verdict, membound.reason) == (
        "not available",
        "N above 16384 needs a cluster",
    )
    assert (broken_eager.verdict, broken_eager.reason) == ("failed", "ValueError: bad tile")
    assert result.providers["control"].verdict == "valid"


def test_a_lost_device_is_recorded_then_raised(tmp_path):
    session, device = make()

    def kills(inputs, workload):
        device.lost = True
        raise RuntimeError("CUDA error: an illegal memory access was encountered\nmore")

    with pytest.raises(DeviceLost, match="illegal memory access") as caught:
        session.measure(softmax_op(membound=kills, eager=eager), WORKLOAD)
    result = caught.value.result
    verdicts = {name: provider.verdict for name, provider in result.providers.items()}
    assert verdicts["membound"] == "failed"
    assert set(verdicts.values()) == {"failed"}
    assert "membound" in result.providers["eager"].reason
    write(tmp_path, session, [result])


def test_where_no_mix_is_near_there_is_no_control():
    op = dataclasses.replace(softmax_op(), traffic=lambda workload: Traffic(1 << 20, 120_000))
    session, _ = make(placement_noise=0.0)
    result = session.measure(op, WORKLOAD)
    control = result.providers["control"]
    assert control.verdict == "not available"
    assert "1048576 bytes read, 120000 written" in control.reason
    assert result.providers["membound"].verdict == "valid"


def test_buffers_within_l2_and_throttling_and_unsteadiness_are_told():
    def verdict(**options):
        session, _ = make(**options)
        return session.measure(softmax_op(), WORKLOAD).providers["membound"].verdict

    assert verdict(l2_bytes=64 << 20) == "L2-resident"
    assert verdict(source=Readings(reasons=0x40)) == "throttled"
    assert verdict(source=Readings(sm_clock=1200.0)) == "throttled"
    assert verdict(source=Readings(reasons=0x4)) == "valid"


def test_faster_than_the_memory_is_told_by_gpu_model():
    impossible = {right: 1e-9}
    session, _ = make(speeds=impossible.items())
    got = session.measure(softmax_op(), WORKLOAD, ["membound"]).providers["membound"]
    assert got.verdict == "above physical peak"
    assert "4800 GB/s" in got.reason
    session, _ = make(speeds=impossible.items(), name="NVIDIA Unknown")
    assert session.measure(softmax_op(), WORKLOAD, ["membound"]).providers["membound"].verdict == (
        "valid"
    )


def write(folder, session, results):
    path = folder / "x.session.jsonl"
    head = {
        "session": session.identity,
        "commit": "ab" * 20,
        "started_at": results[0].started_at,
        "environment": session.environment(),
        "harness": session.harness(),
    }
    writer = sidecar.Writer(path, head)
    for result in results:
        writer.append(result.record())
    return sidecar.read(path)


def test_the_record_is_a_valid_sidecar_line(tmp_path):
    session, _ = make(source=Readings(), process=3, identity="given")
    result = session.measure(softmax_op(), WORKLOAD)
    got = write(tmp_path, session, [result])
    (line,) = got.workloads
    assert line["key"] == "softmax/forward/float32/48x33"
    assert line["session"] == "given"
    assert line["kernels"] == {"softmax_kernel": "0f" * 32}
    assert line["telemetry"]["sm_clock_mhz"] == [1980.0, 1980.0, 1980.0]
    assert {s[0] for s in line["providers"]["membound"]["samples"]} == {3}
    assert line["providers"]["membound"]["error"]["max_abs"] < 1e-6
    assert line["host_seconds"] > 0
    assert got.session["harness"]["control"] == "streams/1"


def test_a_plans_digest_is_in_the_line_where_there_is_one(tmp_path):
    session, _ = make()
    op = dataclasses.replace(softmax_op(), digest=lambda workload: "d1" * 32)
    told, silent = session.measure(op, WORKLOAD), session.measure(softmax_op(), WORKLOAD)
    lines = write(tmp_path, session, [told, silent]).workloads
    assert lines[0]["digest"] == "d1" * 32
    assert "digest" not in lines[1]


def test_failing_digests_do_not_cost_the_times():
    def broken(workload):
        raise AttributeError("no runtime")

    session, _ = make()
    result = session.measure(dataclasses.replace(softmax_op(), kernels=broken), WORKLOAD)
    got = result.providers["membound"]
    assert (got.verdict, got.reason) == ("valid", "kernel digests: AttributeError: no runtime")


def test_a_subset_of_providers_and_unknown_ones():
    session, _ = make(plan=QUICK)
    result = session.measure(softmax_op(), WORKLOAD, ["eager"])
    assert list(result.providers) == ["eager"]
    assert len(result.providers["eager"].samples) == QUICK.baseline
    with pytest.raises(ValueError, match=r"\['inductor'\].*expected.*'control'"):
        session.measure(softmax_op(), WORKLOAD, ["inductor"])
    with pytest.raises(ValueError, match="pilot is 0"):
        make(plan=Plan(pilot=0, most=0, least=0, baseline=0))


def test_without_a_gpu_a_session_says_why(monkeypatch):
    monkeypatch.setattr(session_module, "unavailable", lambda: "no CUDA device is visible")
    with pytest.raises(RuntimeError, match="nothing can be measured here: no CUDA device"):
        Session()


def test_set_count_exceeds_three_l2_and_stays_bounded():
    l2 = 60 << 20
    assert set_count(32768 * 256 * 4, l2) == 6
    assert set_count(1 << 30, l2) == 2
    assert set_count(16, l2) == session_module.MAX_SETS
    for traffic in (4 << 20, 33 << 20, 90 << 20, 1 << 30):
        assert set_count(traffic, l2) * traffic >= 3 * l2


STEADY = Plan(pilot=4, least=0, most=8, target=0.003, baseline=2)


class Unsteady:
    """Differs between placements by ``spread`` against everything else."""

    def __init__(self, device, spread):
        self.noise, self.device, self.spread = np.random.default_rng(5), device, spread
        self.seen, self.factor = None, 1.0

    def seconds(self):
        if self.seen != len(self.device.paddings):
            self.seen = len(self.device.paddings)
            self.factor = float(np.exp(self.noise.normal(0, self.spread)))
        return FAST * self.factor


def measure_unsteady(spread, plan=STEADY, **options):
    session, device = make(plan=plan)
    unsteady, speed = Unsteady(device, spread), device.speed
    device.speed = lambda run: unsteady.seconds() if run is right else speed(run)
    return session.measure(softmax_op(), WORKLOAD, **options)


def test_what_is_steady_needs_no_more_than_the_pilot():
    providers = measure_unsteady(1e-4).providers
    assert len(providers["membound"].samples) == len(providers["control"].samples) == 4
    assert len(providers["eager"].samples) == 2


def test_the_pilot_tells_how_many_more_and_a_cap_ends_it():
    few, many = measure_unsteady(0.0035).providers, measure_unsteady(0.1).providers
    assert 4 < len(few["membound"].samples) < 12
    assert few["membound"].verdict == "valid"
    assert len(many["membound"].samples) == len(many["control"].samples) == 12
    assert len(many["eager"].samples) == 2
    assert many["membound"].verdict == "not steady"
    assert many["control"].verdict == "valid"


def test_a_wide_interval_is_not_steady_once_all_is_measured():
    wide = measure_unsteady(0.02).providers["membound"]
    assert wide.verdict == "not steady" and "after 12 placements" in wide.reason
    # another process goes on from here
    pilot = measure_unsteady(0.02, finish=False).providers
    assert (pilot["membound"].verdict, len(pilot["membound"].samples)) == ("valid", 4)


def test_a_second_process_takes_what_the_pilot_of_the_first_asks_for():
    def second(spread):
        earlier = {
            "membound": [[0, i, 1e-6 * math.exp(spread * (-1) ** i)] for i in range(4)],
            "control": [[0, i, 1e-6] for i in range(4)],
        }
        plan = dataclasses.replace(STEADY, least=2)
        return measure_unsteady(1e-4, plan, earlier=earlier).providers

    assert len(second(1e-4)["membound"].samples) == 2
    assert len(second(0.01)["membound"].samples) == 8


def test_an_anchor_is_timed_at_least_eight_times():
    op = softmax_op(membound=right, anchor=lambda inputs, workload: right(inputs))
    session, _ = make(plan=STEADY)
    providers = session.measure(op, WORKLOAD).providers
    assert {len(one.samples) for one in providers.values()} == {8}


def test_several_of_the_suites_own_are_timed_alike():
    op = softmax_op(old=right, new=lambda inputs, workload: right(inputs), eager=eager)
    session, _ = make(plan=dataclasses.replace(STEADY, least=1))
    providers = session.measure(op, WORKLOAD, own=("old", "new")).providers
    samples = {name: len(one.samples) for name, one in providers.items()}
    assert samples == {"old": 5, "new": 5, "eager": 2, "control": 5}


def test_what_cannot_be_captured_is_timed_by_events_and_says_so(tmp_path):
    def waits(inputs, workload):
        return right(inputs)

    waits.captured = False
    session, _ = make(plan=STEADY)
    result = session.measure(softmax_op(membound=right, eager=waits), WORKLOAD)
    got = result.providers["eager"]
    assert got.verdict == "valid" and len(got.samples) == 2
    assert got.reason == "timed by events, host included: RuntimeError: a capture cannot wait"
    (line,) = write(tmp_path, session, [result]).workloads
    assert line["providers"]["eager"]["timing"] == "events"
    assert "timing" not in line["providers"]["membound"]


def test_call_times_are_told_beside_gpu_times(tmp_path):
    session, device = make(plan=STEADY)
    (line,) = write(tmp_path, session, [session.measure(softmax_op(), WORKLOAD)]).workloads
    calls = {name: one["call_seconds"] for name, one in line["providers"].items()}
    assert calls == pytest.approx(
        {
            "membound": FAST + device.host_seconds,
            "eager": SLOW + device.host_seconds,
            "control": COPY + device.host_seconds,
        }
    )
    session, _ = make(plan=QUICK)
    (line,) = write(tmp_path / "b", session, [session.measure(softmax_op(), WORKLOAD)]).workloads
    assert "call_seconds" not in line["providers"]["membound"]


def test_a_control_that_is_beaten_is_suspect():
    session, _ = make(plan=STEADY, speeds={right: COPY / 1.02, eager: COPY / 1.005}.items())
    providers = session.measure(softmax_op(), WORKLOAD).providers
    assert providers["control"].verdict == "valid"
    assert (
        providers["control"].reason == "suspect: membound reaches 102.0% of it, 100 % is the most"
    )
    session, _ = make(plan=STEADY, speeds={right: COPY / 1.005}.items())
    assert session.measure(softmax_op(), WORKLOAD).providers["control"].reason == ""


def test_the_reference_is_computed_once_for_all_providers():
    calls = []

    def reference(inputs, workload):
        calls.append(inputs["x"].shape)
        return torch.softmax(inputs["x"].double(), dim=-1)

    op = dataclasses.replace(softmax_op(membound=right, eager=eager), reference=reference)
    session, _ = make(plan=STEADY)
    session.measure(op, WORKLOAD)
    assert len(calls) == 1
    session.measure(op, WORKLOAD)
    assert len(calls) == 2


def test_two_stages_keep_the_coverage_of_the_interval():
    rng, plan, covered = np.random.default_rng(0), Plan(), []
    for spread in (0.001, 0.002, 0.003, 0.005, 0.01) * 800:
        pilot = rng.normal(0, spread, plan.pilot)
        logs = [*pilot, *rng.normal(0, spread, more(plan, pilot))]
        got = estimate.of_logs(logs)
        covered.append(got.low <= 1 <= got.high)
    assert 0.93 <= np.mean(covered) <= 0.97, np.mean(covered)


def test_shared_memory_counts_once():
    a, b = torch.zeros(8), torch.zeros(4, dtype=torch.bfloat16)
    assert distinct_bytes([a, b, a]) == 8 * 4 + 4 * 2
