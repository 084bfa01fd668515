"""Shards of tokens: what is in them trains as the same tokens do elsewhere, and a bad one ends in one line."""

import json
import os
import random
import resource
import struct
import subprocess

import pytest

import program
from program import one_line_error, read_checkpoint, resume, same_state, succeeded, tigon, train

GPT2, LLAMA3 = (20240520, 1, "H"), (20240801, 7, "I")


def header(magic, version, count):
    return struct.pack("<256i", magic, version, count, *[0] * 253)


def write_shard(path, tokens, kind=GPT2):
    """A file of llm.c; kind None: one of nanoGPT."""
    start = header(kind[0], kind[1], len(tokens)) if kind else b""
    path.write_bytes(start + struct.pack(f"<{len(tokens)}{kind[2] if kind else 'H'}", *tokens))
    return path


def words(count, seed=1, vocabulary=256):
    source = random.Random(seed)
    return [int(vocabulary * source.random() ** 3) for _ in range(count)]


def tensors(directory):
    return read_checkpoint(directory)[1]


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """Shards of 9000 tokens below 256, the same as text, and what came of the text."""
    folder = tmp_path_factory.mktemp("tokens")
    tokens = words(9000)
    (folder / "text.txt").write_bytes(bytes(tokens))
    succeeded(train(folder / "text.txt", folder / "run", "--steps", 12))
    return folder, tokens


@pytest.mark.parametrize("kind", [GPT2, LLAMA3, None])
def test_shards_train_like_the_same_bytes(straight, tmp_path, kind):
    folder, tokens = straight
    data = write_shard(tmp_path / "data.bin", tokens, kind)
    result = succeeded(train(data, tmp_path / "run", "--steps", 12, "--vocab", 256))
    assert f"tokens: 9000 {kind and 'uint32' if kind is LLAMA3 else 'uint16'} (1800 for validation) of 1 shard".encode() in result.stdout
    assert tensors(tmp_path / "run") == tensors(folder / "run")
    metadata = read_checkpoint(tmp_path / "run")[0]
    assert metadata["data"] == "tokens" and metadata["vocabulary"] == "256"


@pytest.mark.parametrize("cuts", [[1], [17, 18, 20], [100, 4500, 8999]])
def test_shards_follow_each_other(straight, tmp_path, cuts):
    folder, tokens = straight
    names = []
    for number, (begin, end) in enumerate(zip([0, *cuts], [*cuts, len(tokens)])):
        names.append(write_shard(tmp_path / f"shard{number}.bin", tokens[begin:end], GPT2 if number % 2 else None))
    for number, data in enumerate([names, [tmp_path], [tmp_path / "shard*.bin"]]):
        out = tmp_path / f"run{number}"
        succeeded(tigon("train", "--data", *data, "--out", out, "--preset", "tiny", "--batch", 2, "--seq", 16, "--vocab", 256,
                        "--steps", 12, "--skip-validation"))
        assert tensors(out) == tensors(folder / "run")


def test_resume_is_bit_for_bit_over_shards_and_epochs(tmp_path):
    folder = tmp_path / "shards"
    folder.mkdir()
    for number in range(5):
        write_shard(folder / f"shard{number}.bin", words(300 + number, seed=number, vocabulary=1000))
    succeeded(train(folder, tmp_path / "straight", "--steps", 80, "--vocab", 1000))
    succeeded(train(folder, tmp_path / "run", "--steps", 80, "--vocab", 1000, "--stop-after", 31, "--threads", 1))
    succeeded(resume(folder, tmp_path / "run", "--stop-after", 50, "--threads", 3))
    succeeded(resume(folder / "shard*.bin", tmp_path / "run"))
    assert int(read_checkpoint(tmp_path / "run")[0]["epoch"]) > 0
    assert same_state(tmp_path / "straight", tmp_path / "run")


@pytest.mark.parametrize("kind, vocabulary", [(GPT2, 50257), (None, 50257), (LLAMA3, 128256)])
def test_default_vocabulary(tmp_path, kind, vocabulary):
    data = write_shard(tmp_path / "data.bin", [*words(400), vocabulary - 1, *words(100)], kind)
    succeeded(train(data, tmp_path / "run", "--steps", 1))
    metadata, held = read_checkpoint(tmp_path / "run")
    assert metadata["vocabulary"] == str(vocabulary) and held["embedding"][0] == held["output"][0] == [vocabulary, 32]
    write_shard(data, [*words(400), vocabulary, *words(100)], kind)
    one_line_error(train(data, tmp_path / "other", "--steps", 1), data, "token 400 is", vocabulary, "expected less than")
    assert not (tmp_path / "other").exists()


def test_a_token_beyond_the_vocabulary_is_named(tmp_path):
    good = write_shard(tmp_path / "a.bin", words(70000, vocabulary=300))
    bad = write_shard(tmp_path / "b.bin", [*words(70000, vocabulary=300), 300])
    one_line_error(tigon("train", "--data", good, bad, "--vocab", 300, "--out", tmp_path / "run"), bad, "token 70000 is 300",
                   "less than the vocabulary of 300", "--vocab")
    write_shard(bad, [*words(10), 0xFFFFFFFF], LLAMA3)
    one_line_error(train(bad, tmp_path / "run"), bad, "token 10 is 4294967295", "less than the vocabulary of 128256")
    assert not (tmp_path / "run").exists()


def test_a_vocabulary_beyond_memory(tmp_path):
    data = write_shard(tmp_path / "data.bin", words(1000), LLAMA3)
    result = tigon("train", "--data", data, "--out", tmp_path / "run", "--vocab", 1 << 24, "--seq", 16, "--threads", 1,
                   preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30)))
    one_line_error(result, "GiB of memory", "most of it for the parameters (--vocab, --preset)")
    assert not (tmp_path / "run").exists()


BODY = struct.pack("<1000H", *words(1000))


@pytest.mark.parametrize("raw, parts", [
    (b"", ["is empty"]),
    (BODY[:-1], ["odd number of bytes, 1999"]),
    (BODY[:20], ["too short: 8 tokens"]),
    (header(20240520, 1, 1000) + BODY[:-2], ["truncated", "3024", "3022"]),
    (header(20240520, 1, 1000) + BODY + b"x", ["too long", "3024", "3025"]),
    (header(20240520, 1, 2**31 - 1) + BODY, ["truncated", "2147483647"]),
    (header(20240520, 1, -5) + BODY, ["holds no tokens", "-5"]),
    (header(20240520, 1, 0), ["holds no tokens", "0"]),
    (header(20240520, 2, 1000) + BODY, ["version 2", "expected 1"]),
    (header(20240520, 7, 1000) + BODY, ["version 7", "expected 1"]),
    (header(20240801, 1, 500) + BODY, ["version 1", "expected 7"]),
    (header(20240801, 7, 1000) + BODY, ["truncated", "5024", "3024"]),
    (header(20240522, 1, 1000) + BODY, ["magic number is 20240522", "20240520", "20240801"]),
    (header(20240520, 1, 1000)[:1000], ["truncated", "1000 of the 1024 bytes of its header"]),
    (header(20240520, 1, 1000)[:4], ["truncated", "4 of the 1024 bytes"]),
    (struct.pack(">256i", 20240520, 1, 1000, *[0] * 253) + BODY, ["token 5 is 59395", "vocabulary of 50257"]),  # big-endian
    (header(20240520, 1, 40) + BODY[:80], ["too short", "sequences of 16 tokens need at least 48"]),
])
def test_bad_shards_are_named(tmp_path, raw, parts):
    data = tmp_path / "data.bin"
    data.write_bytes(raw)
    one_line_error(train(data, tmp_path / "run", "--steps", 1), data, *parts)
    assert not (tmp_path / "run").exists()


def test_kinds_do_not_mix(straight, tmp_path):
    folder, tokens = straight
    narrow, wide = write_shard(tmp_path / "a.bin", tokens), write_shard(tmp_path / "b.bin", tokens, LLAMA3)
    for paths, holds in [([narrow, wide], "uint32 tokens"), ([folder / "text.txt", narrow], "uint16 tokens"), ([narrow, folder / "text.txt"], "text")]:
        one_line_error(tigon("train", "--data", *paths, "--out", tmp_path / "run"), paths[1], f"holds {holds}", paths[0])
    one_line_error(tigon("train", "--data", narrow, "--validation", folder / "text.txt", "--out", tmp_path / "run"), "holds text")
    one_line_error(train(folder / "text.txt", tmp_path / "run", "--vocab", 300), "text.txt", "vocabulary is 256", "--vocab")
    one_line_error(train(tmp_path / "none*.bin", tmp_path / "run"), "none*.bin", "no file has such a name")
    assert not (tmp_path / "run").exists()
    succeeded(train(folder / "text.txt", tmp_path / "run", "--vocab", 256, "--steps", 1))


def test_resume_refuses_other_data(straight, tmp_path):
    folder, tokens = straight
    data = write_shard(tmp_path / "data.bin", tokens)
    for source, out, more in [(data, tmp_path / "tokens", ["--vocab", 300]), (folder / "text.txt", tmp_path / "text", [])]:
        succeeded(train(source, out, "--steps", 6, "--stop-after", 2, *more))
    before = (tmp_path / "tokens" / program.NAME).read_bytes()
    one_line_error(resume(folder / "text.txt", tmp_path / "tokens"), "was made with tokens", "holds text")
    one_line_error(resume(data, tmp_path / "text"), "was made with text", "holds tokens")
    one_line_error(resume(data, tmp_path / "tokens", "--vocab", 400), "--vocab 300, not 400")
    one_line_error(resume(data, tmp_path / "tokens", "--validation", data), "other data")
    one_line_error(resume(write_shard(tmp_path / "other.bin", tokens[:-1] + [255 - tokens[-1]]), tmp_path / "tokens"), "other data")
    parts = [write_shard(tmp_path / "first.bin", tokens[:7000]), "--validation", write_shard(tmp_path / "last.bin", tokens[7000:])]
    one_line_error(tigon("train", "--data", *parts, "--out", tmp_path / "tokens", "--resume"), "other data")  # the same, split elsewhere
    assert (tmp_path / "tokens" / program.NAME).read_bytes() == before
    succeeded(resume(write_shard(tmp_path / "same.bin", tokens, None), tmp_path / "tokens", "--vocab", 300))


def summary(directory):
    return json.loads((directory / "summary.json").read_text())


def validated(*arguments):
    return succeeded(tigon("train", "--preset", "tiny", "--batch", 2, "--seq", 16, "--steps", 3, *arguments)).stdout.decode()


def test_validation_is_a_file_of_its_own(straight, tmp_path):
    """By option, by the name beside train, and by the word in the name: the same, and the same as for bytes."""
    _, tokens = straight
    folder = tmp_path / "data"
    folder.mkdir()
    (tmp_path / "train.txt").write_bytes(bytes(tokens[:8000]))
    (tmp_path / "val.txt").write_bytes(bytes(tokens[8000:]))
    validated("--data", tmp_path / "train.txt", "--validation", tmp_path / "val.txt", "--out", tmp_path / "text")
    expected = summary(tmp_path / "text")
    assert expected["validation_bytes"] == 1000 and expected["unigram_nats"] > 0
    one, two = write_shard(folder / "train.bin", tokens[:8000]), write_shard(folder / "val.bin", tokens[8000:], None)
    write_shard(tmp_path / "plain.bin", tokens[:8000])
    ways = [[one], [folder], [one, two], [folder / "*.bin"], [tmp_path / "plain.bin", "--validation", two], [folder, "--validation", two]]
    for number, way in enumerate(ways):
        out = tmp_path / f"run{number}"
        page = validated("--vocab", 256, "--out", out, "--data", *way)
        assert "9000 uint16 (1000 for validation) of 2 shards" in page
        if number < 5:
            found = summary(out)
            assert found["validation_tokens"] == 1000 and found["validation_nats"] == expected["validation_nats"]
            assert found["data"] == "tokens" and found["vocabulary"] == 256 and "unigram_nats" not in found
    one_line_error(tigon("train", "--data", two, "--out", tmp_path / "none"), "val.bin", "no shards to train with")


def test_words_in_names(tmp_path):
    """fineweb_val is for validation, interval is not."""
    write_shard(tmp_path / "interval.bin", words(500))
    write_shard(tmp_path / "fineweb_train_000001.bin", words(600))
    write_shard(tmp_path / "fineweb_val_000000.bin", words(70))
    (tmp_path / "notes.txt").write_text("left out")
    result = succeeded(train(tmp_path, tmp_path / "run", "--steps", 1, "--vocab", 256))
    assert b"1170 uint16 (70 for validation) of 3 shards, vocabulary 256, 1 left out" in result.stdout


def test_the_first_tokens_are_scored(straight, tmp_path):
    _, tokens = straight
    data = write_shard(tmp_path / "train.bin", tokens[:8000])
    write_shard(tmp_path / "val.bin", tokens[8000:])
    validated("--data", data, "--vocab", 256, "--validation-tokens", 200, "--out", tmp_path / "some")
    write_shard(tmp_path / "val.bin", tokens[8000:8200])
    validated("--data", data, "--vocab", 256, "--out", tmp_path / "all")
    assert summary(tmp_path / "some")["validation_tokens"] == 200
    assert summary(tmp_path / "some")["validation_nats"] == summary(tmp_path / "all")["validation_nats"]


def test_ngram_models_of_long_text_are_fitted_on_its_end(tmp_path):
    most = 1 << 24
    text = program.write_text(tmp_path / "piece", 1 << 20).read_bytes() * 16
    (tmp_path / "long.txt").write_bytes(b"other bytes " * 1000 + text)
    (tmp_path / "end.txt").write_bytes(text[-most:])
    program.write_text(tmp_path / "val.txt", 1000, seed=2)
    for name in ["long", "end"]:
        validated("--data", tmp_path / f"{name}.txt", "--validation", tmp_path / "val.txt", "--out", tmp_path / name)
    assert [summary(tmp_path / name)["fourgram_nats"] for name in ["long"]] == [summary(tmp_path / "end")["fourgram_nats"]]


def peak_memory(data, out, *arguments):
    command = [program.PROGRAM, "train", "--data", data, "--out", out, "--preset", "tiny", "--batch", "1", "--seq", "4096",
               "--steps", "2", "--threads", "1", "--skip-validation", *arguments]
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    assert child.returncode == 0
    return usage.ru_maxrss


@pytest.mark.parametrize("name, more", [("data.txt", []), ("data.bin", ["--vocab", "256"])])
def test_memory_does_not_grow_with_the_data(tmp_path, name, more):
    peaks = []
    for size in [1 << 20, 1 << 26]:
        with open(tmp_path / name, "wb") as file:
            file.truncate(size)
        peaks.append(peak_memory(tmp_path / name, tmp_path / str(size), *more))
    assert peaks[1] < peaks[0] + 4096  # KiB


def test_a_pipe_is_text(straight, tmp_path):
    folder, tokens = straight
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    writer = subprocess.Popen(["cp", folder / "text.txt", fifo])
    succeeded(train(fifo, tmp_path / "run", "--steps", 12))
    assert writer.wait(timeout=60) == 0
    assert same_state(folder / "run", tmp_path / "run")


def test_a_pipe_needs_room(tmp_path):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    writer = subprocess.Popen(["cp", program.write_text(tmp_path / "text.txt"), fifo], stderr=subprocess.DEVNULL)
    limit = resource.RLIMIT_FSIZE, (100000, 100000)
    one_line_error(train(fifo, tmp_path / "run", preexec_fn=lambda: resource.setrlimit(*limit)), fifo,
                   "cannot copy to a temporary file: File too large")
    writer.wait(timeout=60)


def started(data, out, *arguments):
    command = [program.PROGRAM, "train", "--data", *data, "--out", out, "--preset", "tiny", "--batch", "2", "--seq", "16",
               "--steps", "1000000", "--skip-validation", "--save-every", "1000000", *arguments]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert b"(" in running.stdout.readline()  # the data are read
    return running


def ended(running):
    out, error = running.communicate(timeout=60)
    return subprocess.CompletedProcess([], running.returncode, out, error)


def test_data_cut_while_in_use(tmp_path):
    data = program.write_text(tmp_path / "text.txt")
    running = started([data], tmp_path / "run")
    os.truncate(data, 1000)
    one_line_error(ended(running), data, "became shorter since the run began")


def test_data_changed_while_in_use(tmp_path):
    data = write_shard(tmp_path / "a.bin", words(20000))
    running = started([data], tmp_path / "run", "--vocab", "256")
    with open(data, "r+b") as file:
        file.seek(1024)
        file.write(b"\xff\xff" * 20000)
    one_line_error(ended(running), data, "is 65535", "less than the vocabulary of 256")


def test_data_that_vanishes(tmp_path):
    shards = [write_shard(tmp_path / f"{number}.bin", words(20000, seed=number)) for number in range(4)]
    running = started(shards, tmp_path / "run", "--vocab", "256")
    for shard in shards:
        shard.unlink()
    one_line_error(ended(running), ".bin: cannot open again: No such file")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    data = write_shard(folder / "data.bin", words(3000, vocabulary=700))
    succeeded(train(data, folder / "run", "--steps", 30, "--vocab", 700))
    return folder / "run"


def sample(model, *arguments):
    return [int(word) for word in succeeded(tigon("sample", "--checkpoint", model, *arguments)).stdout.split()]


def test_sampling_prints_ids(model):
    ids = sample(model, "--prompt-tokens", "5 699,0", "--tokens", 20)
    assert ids[:3] == [5, 699, 0] and len(ids) == 23 and all(0 <= token < 700 for token in ids)
    assert sample(model, "--prompt-tokens", "5 699 0", "--tokens", 20, "--threads", 2) == ids
    assert sample(model, "--prompt-tokens", "5, 699, 0", "--tokens", 20, "--seed", 2) != ids
    whole = sample(model, "--prompt-tokens", "7", "--tokens", 20, "--temperature", 0)
    again = sample(model, "--prompt-tokens", " ".join(map(str, whole[:11])), "--tokens", 10, "--temperature", 0)
    assert again == whole


@pytest.mark.parametrize("prompt, parts", [("700", ["0 to 699", '"700"']), ("-1", ['"-1"']), ("1 2x 3", ['"2x"']), ("", ["holds no id"]),
                                           (" , ", ["holds no id"]), ("99999999999999999999", ['"99999999999999999999"']), ("1 2 701", ['"701"'])])
def test_bad_ids_in_the_prompt(model, prompt, parts):
    result = tigon("sample", "--checkpoint", model, "--prompt-tokens", prompt)
    one_line_error(result, "--prompt-tokens", *parts)
    assert not result.stdout


def test_prompts_of_the_other_kind(straight, model):
    folder, _ = straight
    one_line_error(tigon("sample", "--checkpoint", model, "--prompt", "word"), "no tokenizer", "--prompt-tokens")
    one_line_error(tigon("sample", "--checkpoint", model), "--prompt-tokens must say")
    one_line_error(tigon("sample", "--checkpoint", folder / "run", "--prompt-tokens", "1"), "model of text", "--prompt")


def test_a_checkpoint_without_kind_is_text(straight, tmp_path):
    """Those of version 0.1.0."""
    folder, _ = straight
    raw = (folder / "run" / program.NAME).read_bytes()
    (tmp_path / program.NAME).write_bytes(raw.replace(b',"data":"text"', b" " * len(b',"data":"text"'), 1))
    assert "data" not in read_checkpoint(tmp_path)[0]
    assert len(succeeded(tigon("sample", "--checkpoint", tmp_path, "--tokens", 9)).stdout) == 9
