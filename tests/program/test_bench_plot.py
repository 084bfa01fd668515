"""bench/plot.py: the page comes from a receipt, and a malformed receipt is refused with its line."""

import json
import pathlib
import subprocess
import sys
from importlib.util import find_spec

import pytest

from program import succeeded, tigon

PLOT = pathlib.Path(__file__).resolve().parents[2] / "bench/plot.py"


@pytest.fixture(scope="module")
def lines(tmp_path_factory):
    path = tmp_path_factory.mktemp("bench") / "receipt.jsonl"
    succeeded(tigon("bench", "rms_norm", "gemm", "--quick", "--no-peer", "--threads", 1, "--receipt", path))
    return path.read_text().splitlines()


def plot(folder, text):
    (folder / "receipt.jsonl").write_text(text)
    command = [sys.executable, PLOT, folder / "receipt.jsonl", "--page", folder / "page.md", "--charts", folder / "charts"]
    return subprocess.run(list(map(str, command)), capture_output=True, timeout=120)


def changed(line, **members):
    return json.dumps({k: v for k, v in {**json.loads(line), **members}.items() if v != "gone"})


BREAKS = {
    "garbage": (3, lambda line: "{", "Expecting"),
    "array": (3, lambda line: "[]", "no JSON object"),
    "empty line": (3, lambda line: "", "Expecting value"),
    "not a number": (2, lambda line: changed(line, device_ms=float("nan")), "NaN is no JSON number"),
    "missing member": (4, lambda line: changed(line, floor_ms="gone"), '"floor_ms" is missing'),
    "wrong type": (2, lambda line: changed(line, device_ms="fast"), '"device_ms" has the wrong type'),
    "flag for number": (2, lambda line: changed(line, repetitions=True), '"repetitions" has the wrong type'),
    "no time": (5, lambda line: changed(line, device_ms=0), '"device_ms" is not positive'),
    "both works": (2, lambda line: changed(line, flop=1, bytes=1), 'one of "flop" and "bytes"'),
    "negative memory": (2, lambda line: changed(line, peak_bytes=-1), '"peak_bytes" is negative'),
    "no environment": (1, lambda line: "{}", '"receipt" is missing'),
    "another format": (1, lambda line: changed(line, receipt="tigon bench 0"), "tigon bench 1"),
    "half a GPU": (1, lambda line: changed(line, device={**json.loads(line)["device"], "gpu": "Some"}), '"multiprocessors" is missing'),
    "no processor": (1, lambda line: changed(line, device={}), '"cpu" is missing'),
}


@pytest.mark.parametrize("name", BREAKS)
def test_malformed_receipts(lines, tmp_path, name):
    number, change, words = BREAKS[name]
    broken = list(lines)
    broken[number - 1] = change(broken[number - 1])
    result = plot(tmp_path, "\n".join(broken) + "\n")
    error = result.stderr.decode()
    assert result.returncode == 1 and len(error.splitlines()) == 1, error
    assert f"receipt.jsonl: line {number}: " in error and words in error
    assert not (tmp_path / "page.md").exists()


def test_a_measurement_stands_once(lines, tmp_path):
    error = plot(tmp_path, "\n".join([*lines, lines[2]]) + "\n").stderr.decode()
    assert f"line {len(lines) + 1}: the same measurement" in error


@pytest.mark.parametrize("kept", [0, 1])
def test_receipts_without_measurements(lines, tmp_path, kept):
    assert f"line {kept + 1}: " in plot(tmp_path, "".join(line + "\n" for line in lines[:kept])).stderr.decode()


@pytest.mark.skipif(not find_spec("matplotlib"), reason="charts need matplotlib")
def test_the_page_comes_from_the_receipt(lines, tmp_path):
    peers = [changed(line, provider="Other", provider_version="2", device_ms=2 * json.loads(line)["device_ms"]) for line in lines[1:]]
    peers[1] = changed(peers[1], device_ms=json.loads(lines[2])["device_ms"] / 2, correct=False)
    text = "\n".join([*lines, *peers]) + "\n"
    result = plot(tmp_path, text)
    assert result.returncode == 0, result.stderr
    page = (tmp_path / "page.md").read_text()
    assert f"slower in 1 of {len(peers)} comparisons" in page and "Other (wrong result)" in page
    for line in lines[1:]:
        m = json.loads(line)
        assert f"| {m['row']} | {m['dtype']} | {m['pass']} | tigon | {m['device_ms']:.4g} |" in page
    charts = {path.name: path.read_bytes() for path in (tmp_path / "charts").iterdir()}
    assert charts.keys() == {"receipt_rms_norm.svg", "receipt_gemm.svg"} and all(f"charts/{name}" in page for name in charts)
    plot(tmp_path, text)
    assert charts == {path.name: path.read_bytes() for path in (tmp_path / "charts").iterdir()}  # the same bytes again


@pytest.mark.skipif(not find_spec("matplotlib"), reason="charts need matplotlib")
def test_receipts_of_a_gpu(lines, tmp_path):
    """Rows of host time compare that; floors and other forms of tigon are no peers; sustained times have a column."""
    device = {**json.loads(lines[0])["device"], "gpu": "Some GPU", "multiprocessors": 132}
    host = json.loads(lines[1]) | {"pass": "forward, host", "host_us": 10, "device_ms": 1}
    others = [host | {"provider": name, "host_us": us, "device_ms": 2}
              for name, us in (("floor: launches", 1), ("tigon llama", 2), ("Fast", 5), ("Slow", 40))]
    rows = [json.dumps(m) for m in (host, *others)]
    kept = [changed(lines[2], sustained_ms=1.25), *lines[3:]]
    result = plot(tmp_path, "\n".join([changed(lines[0], device=device), *rows, *kept]) + "\n")
    assert result.returncode == 0, result.stderr
    page = (tmp_path / "page.md").read_text()
    assert "## Some GPU\n" in page and "132 multiprocessors" in page
    assert "slower in 1 of 2 comparisons" in page and "forward, host: Fast takes 0.50 of the time" in page
    assert "| host us |" in page and "| 1.25 |" in page
