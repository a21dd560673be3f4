from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta

import pytest

from dashboard import format, reproduce

from .conftest import HOSTILE


def test_numbers_carry_their_unit():
    assert format.TIMED["utilisation"].text(0.7812) == "78.1\u202f%"
    assert format.TIMED["bytes_per_second"].text(4.2831e12) == "4,283\u202fGB/s"
    assert format.TIMED["seconds"].text(61.3e-6) == "61.3\u202fµs"
    assert format.TIMED["speedup"].text(1.4159) == "1.42×"
    assert format.metric("registers").text(64) == "64"
    assert format.metric("narrow_access_share").text(0.5) == "50.0\u202f%"
    assert format.metric("shared_bytes").text(49152) == "49,152\u202fB"


@pytest.mark.parametrize("value", [None, math.nan])
def test_missing_values_say_so(value):
    assert format.TIMED["utilisation"].text(value) == "n/a"
    assert format.TIMED["utilisation"].interval(value, 1.0) == ""
    assert format.change(value) == "n/a"
    assert format.when(value) == "n/a"
    assert format.clean(value) == ""


def test_changes_are_signed_percentages():
    assert format.change(math.log(0.9)) == "−10.0\u202f%"
    assert format.change(math.log(1.25)) == "+25.0\u202f%"


@pytest.mark.parametrize(
    ("passed", "words"),
    [
        (timedelta(seconds=20), "just now"),
        (timedelta(minutes=1), "1 minute ago"),
        (timedelta(hours=5), "5 hours ago"),
        (timedelta(days=3), "3 days ago"),
    ],
)
def test_ages(passed, words):
    now = datetime(2026, 12, 1, tzinfo=UTC)
    assert format.age(now - passed, now) == words


def test_untrusted_text_becomes_one_escaped_line():
    assert format.html(HOSTILE[0]) == "&lt;img src=x onerror=alert(1)&gt;"
    assert format.clean("a\n\tb\x00c") == "a bc"
    assert "\u202e" not in format.clean(HOSTILE[2])
    assert len(format.clean("x" * 500)) == 120
    assert format.short("<b>" + "0" * 40) == "b00000"


def test_the_command_quotes_every_word():
    command = reproduce.command("a" * 40, "b" * 40, ["bench.X; rm -rf ~"])
    assert "'--bench=^bench\\.X;\\ rm\\ \\-rf\\ \\~'" in command
    assert command.count("&&") == 3
    assert "--bench" not in reproduce.command("a" * 40, "b" * 40, [])
