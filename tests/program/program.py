"""Runs the program in the tests: a text, a way to start it, and a reader of its checkpoints that shares no code with it."""

import atexit
import functools
import json
import os
import pathlib
import random
import struct
import subprocess
import tempfile

PROGRAM = os.environ.get("TIGON_PROGRAM") or str(pathlib.Path(__file__).resolve().parents[2] / "build/release/tigon")
NAME = "checkpoint.safetensors"


def write_text(path, size=300000, seed=1):
    """Words with a skewed distribution, so that there is something to learn."""
    source = random.Random(seed)
    words = ["".join(source.choice("etaoinshrdlu") for _ in range(source.randint(1, 8))) for _ in range(500)]
    text = []
    length = 0
    while length < size:
        text.append(words[int(500 * source.random() ** 3)] + source.choice([" ", " ", " ", " ", ", ", ".\n"]))
        length += len(text[-1])
    path.write_bytes("".join(text).encode()[:size])
    return path


def tigon(*arguments, before=(), timeout=120, **options):
    command = [*before, PROGRAM, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, timeout=timeout, **options)


def train(data, out, *arguments, **options):
    """A small, quick run that is not validated."""
    return tigon("train", "--data", data, "--out", out, "--preset", "tiny", "--batch", 2, "--seq", 16,
                 "--skip-validation", *arguments, **options)


def resume(data, out, *arguments, **options):
    return tigon("train", "--data", data, "--out", out, "--resume", "--skip-validation", *arguments, **options)


def succeeded(result):
    assert result.returncode == 0, (result.returncode, result.stdout[-500:], result.stderr[-500:])
    return result


def one_line_error(result, *parts, status=1):
    """The run failed with one line that names the things in parts."""
    error = result.stderr.decode()
    assert result.returncode == status, (result.returncode, error)
    lines = [line for line in error.splitlines() if not line.startswith("step ")]
    assert len(lines) == 1, error
    for part in parts:
        assert str(part) in lines[0], (part, lines[0])


def read_checkpoint(directory):
    """(metadata, {name: (shape, bytes)}) of a safetensors file."""
    raw = (pathlib.Path(directory) / NAME).read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8 : 8 + length])
    metadata = header.pop("__metadata__")
    data = raw[8 + length :]
    tensors = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        assert entry["dtype"] == "F32"
        tensors[name] = (entry["shape"], data[begin:end])
    return metadata, tensors


def same_state(one, other):
    """All bits but the time that the run took."""
    (metadata, tensors), (others, other_tensors) = read_checkpoint(one), read_checkpoint(other)
    metadata.pop("seconds")
    others.pop("seconds")
    return metadata == others and tensors == other_tensors


def metrics(directory):
    return [json.loads(line) for line in (pathlib.Path(directory) / "metrics.jsonl").read_text().splitlines()]


@functools.lru_cache(maxsize=None)
def faults_library():
    """faults.c as a library, which goes with the process."""
    folder = tempfile.TemporaryDirectory()
    atexit.register(folder.cleanup)
    library = pathlib.Path(folder.name) / "faults.so"
    source = pathlib.Path(__file__).with_name("faults.c")
    subprocess.run([os.environ.get("CC") or "cc", "-O1", "-shared", "-fPIC", "-o", library, source], check=True)
    return library


def with_faults(**variables):
    return {**os.environ, "LD_PRELOAD": str(faults_library()), **{name: str(value) for name, value in variables.items()}}
