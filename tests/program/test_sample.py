"""Generation: the same text for the same seed, the prompt first, and memory that does not grow."""

import os
import subprocess

import pytest

import program
from program import one_line_error, succeeded, tigon


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sample")
    data = program.write_text(folder / "text.txt", 100000)
    succeeded(program.train(data, folder / "run", "--steps", 60))
    return folder / "run"


def sample(run, *arguments, **options):
    return succeeded(tigon("sample", "--checkpoint", run, *arguments, **options)).stdout


def test_begins_with_the_prompt_and_has_the_length(run):
    text = sample(run, "--prompt", "the \u00e9", "--tokens", 50)
    assert text.startswith("the \u00e9".encode()) and len(text) == len("the \u00e9".encode()) + 50
    assert len(sample(run, "--tokens", 50)) == 50
    assert sample(run, "--prompt", "only", "--tokens", 0) == b"only"


def test_seed_decides(run):
    assert sample(run, "--seed", 4) == sample(run, "--seed", 4, "--threads", 2) != sample(run, "--seed", 5)
    assert sample(run, "--temperature", 0, "--seed", 4) == sample(run, "--temperature", 0, "--seed", 5)


def test_goes_on_from_its_own_text(run):
    whole = sample(run, "--prompt", "a", "--tokens", 60, "--temperature", 0)
    assert sample(run, "--prompt", whole[:31].decode(), "--tokens", 30, "--temperature", 0) == whole


def test_takes_a_file(run):
    assert sample(run / program.NAME, "--seed", 4) == sample(run, "--seed", 4)


def test_closed_output(run):
    with open("/dev/full", "wb") as full:
        result = subprocess.run([program.PROGRAM, "sample", "--checkpoint", run], stdout=full, stderr=subprocess.PIPE)
    one_line_error(result, "standard output")


def peak_memory(run, tokens):
    child = subprocess.Popen([program.PROGRAM, "sample", "--checkpoint", run, "--tokens", str(tokens)], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    assert child.returncode == 0
    return usage.ru_maxrss


def test_memory_does_not_grow(run):
    assert peak_memory(run, 20000) <= peak_memory(run, 100) + 512
