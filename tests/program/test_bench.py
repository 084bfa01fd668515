"""`tigon bench`: its command line, receipts, and peers that are missing, die, hang or talk nonsense."""

import importlib.util
import json
import os
import pathlib
import subprocess
import sys

import pytest

import program
from program import one_line_error, succeeded, tigon

ROOT = pathlib.Path(__file__).resolve().parents[2]
FAKE = pathlib.Path(__file__).with_name("fake_peer.py")
PEER = ROOT / "bench/peers/torch_cpu.py"
ISAS = ("amx", "avx512_bf16", "avx512", "avx2", "generic")

spec = importlib.util.spec_from_file_location("receipt", ROOT / "bench/receipt.py")
receipt = importlib.util.module_from_spec(spec)
spec.loader.exec_module(receipt)


def bench(*arguments, fake=None, **options):
    """Tiny rows, one thread."""
    environment = {**os.environ, **options.pop("env", {})}
    if fake is not None:
        environment["FAKE_PEER"] = fake
        arguments = (*arguments, "--peer", FAKE, "--python", sys.executable)
    return tigon("bench", *arguments, "--quick", "--threads", 1, env=environment, **options)


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def rows(result, provider=""):
    """The lines of the table that begin with a family, or those of a provider."""
    lines = result.stdout.decode().splitlines()
    if provider:
        return [line for line in lines if line.strip().startswith(provider)]
    return [line for line in lines if "GFLOP/s" in line and line[0] != " " or "GB/s" in line and line[0] != " "]


FAMILIES = {"gemm": 2, "rms_norm": 9, "lightning_attention": 9, "linear_cross_entropy": 15, "moe": 9}
ALONE = 6  # rows of linear_cross_entropy called recompute, which no peer has


def test_measures_all_families_without_a_peer(tmp_path):
    path = tmp_path / "receipt.jsonl"
    result = succeeded(bench("--no-peer", "--receipt", path))
    assert "WRONG" not in result.stdout.decode() and result.stderr == b""
    environment, measurements = receipt.read(path)
    ours = [m for m in measurements if m["provider"] == "tigon"]
    assert {family: sum(m["family"] == family for m in ours) for family in FAMILIES} == FAMILIES
    assert all(m["correct"] for m in ours)
    assert environment["threads"] == 1 and environment["quick"] and environment["ceilings"].keys() == {"fma_gflops", "copy_gbs"}
    assert environment["versions"]["tigon"] == tigon("--version").stdout.decode().split()[1]
    assert list(tmp_path.iterdir()) == [path]  # no temporary file stays


def test_members_of_a_receipt(tmp_path):
    """What the design asks of a receipt, member by member, apart from the reader's own check."""
    path = tmp_path / "receipt.jsonl"
    succeeded(bench("rms_norm", "--no-peer", "--receipt", path))
    environment, *measurements = lines_of(path)
    assert environment["receipt"] == "tigon bench 1" and environment["seed"] == 1
    assert environment["device"]["cores"] >= 1 and environment["device"]["memory_bytes"] > 1 << 20
    assert "median" in environment["protocol"] and environment["compiler"] and environment["isa"] in ISAS
    for m in measurements:
        assert m.keys() == {"family", "pass", "row", "dtype", "provider", "provider_version", "device_ms", "op_ms", "host_us",
                            "floor_ms", "fastest_ms", "repetitions", "bytes", "ceiling_gbs", "peak_bytes", "correct"}
        assert m["host_us"] is None and m["device_ms"] == m["op_ms"] >= m["fastest_ms"] > 0
        assert m["floor_ms"] == pytest.approx(m["bytes"] / m["ceiling_gbs"] * 1e-6, rel=1e-12)
        assert m["peak_bytes"] is None or m["peak_bytes"] > 0
    forward, backward, both = measurements[:3]
    assert both["pass"] == "forward+backward" and both["device_ms"] == pytest.approx(forward["device_ms"] + backward["device_ms"])
    assert both["bytes"] == forward["bytes"] + backward["bytes"] == 5 * 16 * 64 * 4
    assert both["floor_ms"] == pytest.approx(forward["floor_ms"] + backward["floor_ms"])


def test_pytorch_computes_the_same(tmp_path):
    path = tmp_path / "receipt.jsonl"
    result = succeeded(bench("--receipt", path, "--python", sys.executable, "--peer", PEER))
    assert "WRONG" not in result.stdout.decode()
    environment, measurements = receipt.read(path)
    theirs = [m for m in measurements if m["provider"].startswith("PyTorch")]
    assert {m["family"] for m in theirs} == FAMILIES.keys()
    assert {m["pass"] for m in theirs} == {"forward", "backward", "forward+backward"}
    assert {m["dtype"] for m in theirs} == {"float32", "bfloat16"}
    assert all(m["correct"] and m["provider_version"] == environment["versions"]["PyTorch"] for m in theirs)
    for m in theirs:
        (ours,) = [o for o in measurements if o["provider"] == "tigon" and
                   all(o[k] == m[k] for k in ("family", "row", "pass", "dtype"))]
        assert m["floor_ms"] == pytest.approx(ours["floor_ms"])


def test_a_slow_provider_is_left_out_of_larger_rows_at_once(tmp_path):
    pytest.importorskip("torch")
    impatient = tmp_path / "peer.py"
    impatient.write_text(PEER.read_text().replace("PATIENCE = 60 ", "PATIENCE = 0 "))
    told = succeeded(bench("moe", "--python", sys.executable, "--peer", impatient)).stderr.decode().splitlines()
    of_bfloat16 = [line for line in told if "moe bfloat16: eager" in line]
    assert len(of_bfloat16) == 2, told
    assert "takes 0 s, more than 0 s" in of_bfloat16[0] and "took 0 s for a row no larger" in of_bfloat16[1]


def test_what_a_peer_is_told(tmp_path):
    log = tmp_path / "log"
    result = bench("rms_norm", fake="", env={"FAKE_PEER_LOG": str(log), "OPENBLAS_CORETYPE": "Haswell"})
    assert result.returncode == 1  # zeros are no result
    asked = lines_of(log)
    assert asked[0] == {"do": "prepare", "family": "rms_norm", "dtype": "float32", "scale": 1}
    assert [r["name"] for r in asked[1:4]] == ["x", "weight", "dy"]
    assert asked[1] == {"do": "input", "name": "x", "dtype": "float32", "shape": [16, 64], "bytes": 4096}
    assert asked[4] == {"do": "ready"}
    turn = [r["do"] for r in asked if r.get("which") == "backward"][:8]
    assert turn == ["peak", "run", "output", "output", "run", "run", "run", "peak"]
    assert {r["provider"] for r in asked if "provider" in r} == {"fake"}


def test_wrong_results_are_told(tmp_path):
    path = tmp_path / "receipt.jsonl"
    result = bench("--receipt", path, fake="")
    assert result.returncode == 1 and len(rows(result)) == sum(FAMILIES.values())
    theirs = rows(result, "Fake fake")
    assert all(line.endswith("WRONG RESULT") for line in theirs) and len(theirs) == sum(FAMILIES.values()) - ALONE
    _, measurements = receipt.read(path)
    assert all(m["correct"] == (m["provider"] != "Fake fake") for m in measurements)
    assert "leaves out of moe float32: other: not here" in result.stderr.decode()


SILENT = ["--peer-limit", "0.5"]


@pytest.mark.parametrize("fake, words", [
    ("exit@hello", "ended with status 7"), ("kill@hello", "ended by signal 9"), ("garbage@hello", "is no JSON object"),
    ("other@hello", "did not say its name"), ("hang@hello", "did not answer within 0.5 s"), ("flood@hello", "more than a line"),
    ("exit@prepare", "ended with status 7"), ("exit@ready", "ended with status 7"), ("other@ready", "list of providers"),
    ("exit@run", "ended with status 7"), ("kill@run", "ended by signal 9"), ("garbage@run", "PyTorch says hello?[31m"),
    ("array@run", "is no JSON object"), ("empty@run", "is no JSON object"), ("half@run", "is no JSON object"),
    ("negative@run", 'number "seconds"'), ("other@peak", 'number "peak_bytes"'), ("hang@run", "did not answer within 0.5 s"),
    ("exit@output", "ended with status 7"),
])
def test_a_bad_peer_is_left_behind(tmp_path, fake, words):
    """A line says what happened, our rows are measured all the same, and the status tells."""
    path = tmp_path / "receipt.jsonl"
    result = bench("rms_norm", "--receipt", path, *(SILENT if "hang" in fake else []), fake=fake, timeout=60)
    assert result.returncode == 1
    error = result.stderr.decode()
    told = [line for line in error.splitlines() if "leaves out" not in line]
    assert len(told) == 1 and told[0].startswith("tigon bench: ") and words in told[0] and "rows go on without it" in told[0], error
    assert str(FAKE) in told[0] and "\x1b" not in error
    assert len(rows(result)) == 9
    _, measurements = receipt.read(path)
    assert len(measurements) == 9 and all(m["provider"] == "tigon" and m["correct"] for m in measurements)


def test_a_request_that_fails_costs_that_row(tmp_path):
    result = bench("rms_norm", fake="error@ready")
    lines = result.stderr.decode().splitlines()
    assert result.returncode == 1 and len(lines) == 3 and all(line.endswith("no?memory") for line in lines)  # three cases
    assert len(rows(result)) == 9


def test_no_pytorch(tmp_path):
    """Not there by default: said in one line, no failure. Asked for: a failure."""
    python = tmp_path / "python3"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I -S "$@"\n')
    python.chmod(0o755)
    result = succeeded(bench("gemm", env={"TIGON_PYTHON": str(python)}))
    errors = result.stderr.decode().splitlines()
    assert len(errors) == 1 and errors[0].startswith("tigon bench: no peer: ") and len(rows(result)) == 2
    assert "has no PyTorch" in errors[0] or "is not beside" in errors[0]
    one_line_error(bench("gemm", "--peer", PEER, "--python", python), "no peer", "has no PyTorch")


def test_no_python():
    result = bench("gemm", "--peer", PEER, "--python", "/nowhere/python3")
    one_line_error(result, "no peer: cannot run /nowhere/python3", "No such file")
    assert len(rows(result)) == 2


@pytest.mark.parametrize("arguments, words", [
    (["norm"], 'unknown family "norm"'), (["--threads", "-1"], "--threads"), (["--seconds", "0"], "--seconds"),
    (["--peer-limit", "0"], "--peer-limit"), (["--receipt="], "--receipt: the name is empty"), (["--python="], "--python"),
    (["--peer="], "--peer"), (["--no-peer", "--python", "python3"], "--no-peer"), (["--fast"], '"--fast"'),
    (["gemm", "--quick", "moe"], 'unexpected argument "moe"'), (["--receipt", "a", "--receipt", "b"], "--receipt is given twice"),
])
def test_bad_command_lines(arguments, words):
    one_line_error(tigon("bench", *arguments), words, status=2)


def test_help_is_the_manual():
    text = succeeded(tigon("bench", "--help")).stdout.decode()
    for word in ("--receipt [FILE]", "--python", "--peer", "--peer-limit", "--no-peer", "--quick", "TIGON_PYTHON", "EXIT STATUS"):
        assert word in text


def test_receipts_that_cannot_be_written(tmp_path):
    """Found before anything is measured."""
    (tmp_path / "file").write_text("")
    for path, words in ((tmp_path / "no/receipt", "No such file"), (tmp_path, "is no regular file"),
                        (tmp_path / "file/receipt", "Not a directory"), ("/dev/full", "is no regular file"),
                        ("/proc/receipt", "cannot write")):
        result = bench("--no-peer", "--receipt", path)
        one_line_error(result, path, words)
        assert result.stdout == b""
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_a_receipt_without_a_name(tmp_path):
    one_line_error(bench("gemm", "--no-peer", "--receipt", cwd=tmp_path), "bench/results/cpu-", "No such file")
    (tmp_path / "bench/results").mkdir(parents=True)
    succeeded(bench("gemm", "--no-peer", "--receipt", cwd=tmp_path))
    (path,) = (tmp_path / "bench/results").iterdir()
    assert path.name.startswith("cpu-") and path.suffix == ".jsonl" and len(receipt.read(path)[1]) == 2


def test_a_receipt_replaces_an_old_one(tmp_path):
    path = tmp_path / "receipt.jsonl"
    path.write_text("old\n")
    succeeded(bench("gemm", "--no-peer", "--receipt", path))
    assert len(receipt.read(path)[1]) == 2


def test_lost_output_is_a_failure():
    with open("/dev/full", "wb") as full:
        result = subprocess.run([program.PROGRAM, "bench", "gemm", "--quick", "--no-peer"], stdout=full, stderr=subprocess.PIPE)
    assert result.returncode == 1 and b"standard output" in result.stderr
