"""Training, resuming and stopping: the same bits however a run was cut into pieces, and files as documented."""

import collections
import json
import math
import signal
import subprocess
import time

import pytest

import program
from program import metrics, resume, same_state, succeeded, tigon, train


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return program.write_text(tmp_path_factory.mktemp("text") / "text.txt")


@pytest.fixture(scope="module")
def straight(text, tmp_path_factory):
    out = tmp_path_factory.mktemp("straight") / "run"
    succeeded(train(text, out, "--steps", 20))
    return out


def test_resume_is_bit_for_bit(text, straight, tmp_path):
    succeeded(train(text, tmp_path / "run", "--steps", 20, "--stop-after", 10))
    assert program.read_checkpoint(tmp_path / "run")[0]["step"] == "10"
    succeeded(resume(text, tmp_path / "run"))
    assert same_state(straight, tmp_path / "run")


@pytest.mark.parametrize("threads", [1, 2, 7])
def test_threads_change_no_bit(text, straight, tmp_path, threads):
    succeeded(train(text, tmp_path / "run", "--steps", 20, "--stop-after", 10, "--threads", threads))
    succeeded(resume(text, tmp_path / "run", "--threads", 8 - threads))
    assert same_state(straight, tmp_path / "run")


def test_resume_crosses_an_epoch(tmp_path):
    short = program.write_text(tmp_path / "short.txt", 1000)
    succeeded(train(short, tmp_path / "straight", "--steps", 80))
    succeeded(train(short, tmp_path / "run", "--steps", 80, "--stop-after", 31))
    succeeded(resume(short, tmp_path / "run"))
    assert int(program.read_checkpoint(tmp_path / "run")[0]["epoch"]) > 0
    assert same_state(tmp_path / "straight", tmp_path / "run")


def test_seed_changes_the_run(text, straight, tmp_path):
    succeeded(train(text, tmp_path / "run", "--steps", 20, "--seed", 2))
    assert not same_state(straight, tmp_path / "run")


def test_metrics_of_a_resumed_run_have_no_duplicates(text, straight, tmp_path):
    out = tmp_path / "run"
    succeeded(train(text, out, "--steps", 20, "--stop-after", 10))
    checkpoint = (out / program.NAME).read_bytes()
    succeeded(resume(text, out, "--stop-after", 15))
    (out / program.NAME).write_bytes(checkpoint)  # as if the later one had never been saved
    with open(out / "metrics.jsonl", "a") as file:
        file.write('{"step":16,"lo')  # and the machine had stopped while a line was written
    succeeded(resume(text, out))
    lines = metrics(out)
    assert [line["step"] for line in lines] == list(range(1, 21))
    assert [line["loss"] for line in lines] == [line["loss"] for line in metrics(straight)]


def test_metrics_hold_what_is_documented(straight):
    for line in metrics(straight):
        assert set(line) == {"step", "loss", "lr", "grad_norm", "tokens_per_second", "balance", "busiest_expert", "tokens", "seconds"}
        assert line["loss"] > 0 and line["lr"] > 0 and line["grad_norm"] > 0 and line["tokens_per_second"] > 0
        assert line["balance"] >= 0.5 and 1 <= line["busiest_expert"] <= 2  # at most E / k
        assert line["tokens"] == line["step"] * 2 * 16
    first = metrics(straight)[0]["loss"]
    assert abs(first - math.log(256)) < 0.5


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signal_saves_and_exits(text, tmp_path, number):
    out = tmp_path / "run"
    command = [program.PROGRAM, "train", "--data", text, "--out", out, "--preset", "tiny", "--batch", "2", "--seq", "16",
               "--steps", "1000000", "--skip-validation"]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               preexec_fn=lambda: signal.signal(number, signal.SIG_DFL))  # the tests may run under nohup
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not ((out / "metrics.jsonl").exists() and (out / "metrics.jsonl").stat().st_size > 500):
        time.sleep(0.01)
    running.send_signal(number)
    error = running.communicate(timeout=60)[1].decode()
    assert running.returncode == 128 + number
    assert "interrupted after step" in error and "--resume" in error
    step = int(program.read_checkpoint(out)[0]["step"])
    assert step == len(metrics(out)) > 0
    succeeded(resume(text, out, "--stop-after", step + 5))
    succeeded(train(text, tmp_path / "straight", "--steps", 1000000, "--stop-after", step + 5))
    assert same_state(tmp_path / "straight", out)


def test_signal_ends_validation_at_once(tmp_path):
    data = program.write_text(tmp_path / "text.txt", 3000000)
    command = [program.PROGRAM, "train", "--data", data, "--out", tmp_path / "run", "--preset", "small", "--steps", "1"]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    while not running.stdout.readline().startswith(b"saved "):
        pass
    running.send_signal(signal.SIGTERM)
    running.communicate(timeout=60)
    assert running.returncode == -signal.SIGTERM and not (tmp_path / "run" / "summary.json").exists()
    assert program.read_checkpoint(tmp_path / "run")[0]["step"] == "1"


def test_saves_every_so_often(text, tmp_path):
    log = tmp_path / "calls"
    succeeded(train(text, tmp_path / "run", "--steps", 20, "--save-every", 5, before=["strace", "-f", "-o", log, "-e", "trace=rename"]))
    assert sum("checkpoint.safetensors.new" in line for line in log.read_text().splitlines()) == 4


def test_time_limit_ends_the_run(text, tmp_path):
    out = tmp_path / "run"
    begin = time.monotonic()
    succeeded(train(text, out, "--steps", 100000000, "--time-limit", 1))
    assert time.monotonic() - begin < 60
    lines = metrics(out)
    assert lines[-1]["seconds"] >= 1 and lines[-1]["lr"] < 0.1 * max(line["lr"] for line in lines)


def test_learning_beats_the_unigram_model(text, tmp_path):
    out = tmp_path / "run"
    succeeded(tigon("train", "--data", text, "--out", out, "--preset", "tiny", "--steps", 150))
    summary = json.loads((out / "summary.json").read_text())
    assert summary["validation_nats"] < summary["unigram_nats"] - 0.3
    assert summary["validation_bytes"] == 60000 and summary["data_bytes"] == 300000
    assert summary["tokens_per_second"] > 0 and summary["seconds"] > 0


def witten_bell(text, split, order):
    """Mean nats of text[split:] under the model of the header's formula, from dictionaries."""
    counts = [collections.defaultdict(collections.Counter) for _ in range(order)]
    for n in range(order):
        for i in range(n, split):
            counts[n][text[i - n : i]][text[i]] += 1
    total = 0.0
    for i in range(split, len(text)):
        p = 1 / 256
        for n in range(order):
            seen = counts[n].get(text[i - n : i])
            if seen:
                p = (seen[text[i]] + len(seen) * p) / (sum(seen.values()) + len(seen))
        total -= math.log(p)
    return total / (len(text) - split)


def test_ngram_models_agree_with_dictionaries(tmp_path):
    data = program.write_text(tmp_path / "text.txt", 40000, seed=3)
    raw = data.read_bytes()
    data.write_bytes(raw[:30000] + bytes(range(1, 256)) + raw[30000:])  # bytes that training has not seen
    succeeded(tigon("train", "--data", data, "--out", tmp_path / "run", "--preset", "tiny", "--steps", 1))
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    text = data.read_bytes()
    split = len(text) - summary["validation_bytes"]
    assert summary["validation_bytes"] == len(text) // 5
    for order, name in enumerate(["unigram", "bigram", "trigram", "fourgram"], 1):
        assert summary[name + "_nats"] == pytest.approx(witten_bell(text, split, order), rel=1e-9)
