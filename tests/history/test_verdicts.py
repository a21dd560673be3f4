"""Detection over rows of the dataset: utilisations against two controls are no change."""

from rich.progress import Progress

from bandwatch.detect.verdicts import changes_and_incidents

HASHES = [f"{i:040x}" for i in range(20)]


def row(position, utilisation, control, provider="membound"):
    low, high = utilisation * 0.999, utilisation * 1.001
    return {
        "series": f"softmax/forward/bfloat16/8x8|{provider}|H200",
        "op": "softmax",
        "direction": "forward",
        "dtype": "bfloat16",
        "shape": "8x8",
        "options": "",
        "provider": provider,
        "gpu": "H200",
        "placement": "main",
        "position": position,
        "verdict": "valid",
        "utilisation": utilisation,
        "utilisation_low": low,
        "utilisation_high": high,
        "bytes_per_second": 4e12,
        "seconds": 1e-4,
        "seconds_low": 1e-4,
        "seconds_high": 1e-4,
        "toolchain": f"torch 2.11, control {control}",
        "driver": "1",
        "kernels": f'{{"k": "{position}"}}',
    }


def verdicts(rows):
    changes, _ = changes_and_incidents(rows, [], HASHES, Progress(disable=True))
    return [(one["verdict"], one["bad_position"]) for one in changes]


def series(control_of, value_of):
    return [row(i, value_of(i) * (1 + 1e-4 * (i % 3)), control_of(i)) for i in range(16)]


def test_another_control_is_no_change_of_the_kernel():
    def control(i):
        return "copy/1" if i < 8 else "streams/1"

    assert verdicts(series(control, lambda i: 0.98 if i < 8 else 0.95)) == []
    # but one against the same control is
    slower = verdicts(series(control, lambda i: 0.98 if i < 8 else 0.95 if i < 12 else 0.85))
    assert slower == [("regression", 12)]


def test_the_same_step_against_one_control_is_a_regression():
    found = verdicts(series(lambda i: "streams/1", lambda i: 0.98 if i < 8 else 0.95))
    assert found == [("regression", 8)]
