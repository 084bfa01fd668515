"""Clocks that go back, jump forward and stand still: limits hold, and no speed is negative or no number."""

import json
import time

import pytest

import program
from program import succeeded, tigon, with_faults


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return program.write_text(tmp_path_factory.mktemp("text") / "text.txt", 3000)


def strict(text):
    def refuse(constant):
        raise AssertionError(constant)

    return json.loads(text, parse_constant=refuse)


def run(text, out, jumps, *arguments):
    begin = time.monotonic()
    result = succeeded(tigon("train", "--data", text, "--out", out, "--preset", "tiny", "--batch", 2, "--seq", 16, "--threads", 1, *arguments,
                             env=with_faults(FAULT_CLOCK=",".join(map(str, jumps)))))
    seconds = time.monotonic() - begin
    for word in [b"nan", b"inf", b" -"]:
        assert word not in result.stdout.lower() + result.stderr.lower()
    lines = [strict(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    summary = strict((out / "summary.json").read_text())
    assert all(line["tokens_per_second"] >= 0 and line["lr"] > 0 for line in lines)
    assert [line["seconds"] for line in lines] == sorted(line["seconds"] for line in lines) and lines[0]["seconds"] >= 0
    assert summary["tokens_per_second"] >= 0 and summary["seconds"] >= 0 and summary["evaluation_seconds"] >= 0
    return seconds, lines, summary


@pytest.mark.parametrize("jumps", [
    [0] * 7 + [-3600],  # once
    [0, 0, *range(0, -200, -1)],  # again and again
    [0, 0, 0.1, -5, -4.9, -9, -8.9, -4000],
])
def test_clock_that_goes_back_delays_no_limit(text, tmp_path, jumps):
    seconds, lines, summary = run(text, tmp_path / "run", jumps, "--steps", 100000000, "--time-limit", 1)
    assert 1 <= lines[-1]["seconds"] < 10 and seconds < 30
    assert lines[-1]["lr"] < 0.1 * max(line["lr"] for line in lines)


def test_clock_that_jumps_forward_ends_a_limited_run(text, tmp_path):
    _, lines, summary = run(text, tmp_path / "run", [0] * 9 + [86400], "--steps", 100000000, "--time-limit", 1000)
    assert len(lines) < 10 and lines[-1]["seconds"] > 86000 and 0 < summary["tokens_per_second"] < 1


@pytest.mark.parametrize("jumps", [[0, 1e15], [0, 0, 1e15, -1e15], [0, 0, 0, -1e9, 1e9, -1e9, 1e9]])
def test_clock_out_of_its_mind(text, tmp_path, jumps):
    _, lines, _ = run(text, tmp_path / "run", jumps, "--steps", 6)
    assert [line["step"] for line in lines] == list(range(1, 7))


def test_clock_that_stands_still(text, tmp_path):
    """Each reading lies before the one before."""
    _, lines, summary = run(text, tmp_path / "run", [-10 * n for n in range(2000)], "--steps", 20, "--time-limit", 5)
    assert len(lines) == 20 and lines[-1]["seconds"] == 0 and summary["tokens_per_second"] == summary["seconds"] == 0


def test_result_does_not_depend_on_the_clock(text, tmp_path):
    for name, jumps in [("one", [0]), ("two", [0, 5, -5, 1000, -1000, 0, 3])]:
        run(text, tmp_path / name, jumps, "--steps", 8)
    assert program.same_state(tmp_path / "one", tmp_path / "two")
