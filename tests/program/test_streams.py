"""Where output goes nowhere: closed, full or left streams, nohup, and two runs in one directory."""

import os
import signal
import subprocess

import pytest

import program
from program import metrics, one_line_error, succeeded, tigon, train


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return program.write_text(tmp_path_factory.mktemp("text") / "text.txt")


@pytest.mark.parametrize("closed", [(1,), (2,), (0, 1, 2)])
def test_closed_streams_print_into_no_file(text, tmp_path, closed):
    def close_streams():
        for descriptor in closed:
            os.close(descriptor)

    command = [program.PROGRAM, "train", "--data", text, "--out", tmp_path, "--preset", "tiny", "--batch", "2", "--seq", "16",
               "--steps", "6", "--skip-validation"]
    status = subprocess.run(command, capture_output=True, preexec_fn=close_streams, timeout=120).returncode
    assert status == (1 if 1 in closed else 0)  # what should be printed is lost
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert len(lines) == 6 and all(line.startswith('{"step":') and line.endswith("}") for line in lines)
    succeeded(tigon("sample", "--checkpoint", tmp_path, "--tokens", 1))


@pytest.mark.parametrize("arguments", [["info"], ["--version"], ["--help"], ["train", "--help"]])
def test_full_standard_output(arguments):
    with open("/dev/full", "wb") as full:
        result = subprocess.run([program.PROGRAM, *arguments], stdout=full, stderr=subprocess.PIPE, timeout=60)
    assert result.returncode == 1
    assert result.stderr.decode() == "tigon: cannot write to standard output: No space left on device\n"


def test_a_reader_that_leaves_does_not_end_the_run(text, tmp_path):
    read, write = os.pipe()
    os.close(read)
    command = [program.PROGRAM, "train", "--data", text, "--out", tmp_path, "--preset", "tiny", "--batch", "2", "--seq", "16",
               "--steps", "6", "--skip-validation"]
    status = subprocess.run(command, stdout=write, stderr=write, timeout=120).returncode
    os.close(write)
    assert status == 1 and len(metrics(tmp_path)) == 6
    succeeded(tigon("sample", "--checkpoint", tmp_path, "--tokens", 1))


def test_nohup_keeps_a_run_alive(text, tmp_path):
    command = [program.PROGRAM, "train", "--data", text, "--out", tmp_path, "--preset", "tiny", "--batch", "2", "--seq", "16",
               "--steps", "300", "--skip-validation"]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
    assert running.stdout.readline().startswith(b"text: ")  # its handlers are set
    running.send_signal(signal.SIGHUP)
    running.communicate(timeout=120)
    assert running.returncode == 0 and len(metrics(tmp_path)) == 300


def test_one_run_a_directory(text, tmp_path):
    command = [program.PROGRAM, "train", "--data", text, "--out", tmp_path, "--preset", "tiny", "--batch", "2", "--seq", "16",
               "--steps", "1000000", "--skip-validation"]
    first = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                             preexec_fn=lambda: signal.signal(signal.SIGTERM, signal.SIG_DFL))
    assert first.stdout.readline().startswith(b"text: ")
    second = train(text, tmp_path, "--steps", 6)
    first.send_signal(signal.SIGTERM)
    first.communicate(timeout=120)
    assert first.returncode == 128 + signal.SIGTERM
    one_line_error(second, "metrics.jsonl", "another run")


def test_metrics_that_are_no_file(text, tmp_path):
    os.mkfifo(tmp_path / "metrics.jsonl")
    one_line_error(train(text, tmp_path, "--steps", 6), "metrics.jsonl", "is no regular file")


def test_an_empty_name_is_no_directory(text):
    result = train(text, "", "--steps", 6)
    assert result.returncode == 2 and "--out" in result.stderr.decode()
