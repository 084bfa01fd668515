"""Bad input and failing disks: one line that names the thing, a non-zero exit, and the old checkpoint whole."""

import os
import re
import resource
import shutil
import signal

import pytest

import program
from program import one_line_error, resume, same_state, succeeded, tigon, train


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return program.write_text(tmp_path_factory.mktemp("text") / "text.txt", 20000)


@pytest.fixture(scope="module")
def begun(text, tmp_path_factory):
    """A run of 8 steps, stopped after 4."""
    out = tmp_path_factory.mktemp("begun") / "run"
    succeeded(train(text, out, "--steps", 8, "--stop-after", 4, "--threads", 1))
    return out


@pytest.mark.parametrize("arguments, parts", [
    (["--seq", "0"], ["--seq", '"0"']),
    (["--batch", "-3"], ["--batch", '"-3"']),
    (["--steps", "abc"], ["--steps", '"abc"']),
    (["--steps", "12x"], ["--steps", '"12x"']),
    (["--steps", ""], ["--steps", '""']),
    (["--steps", "99999999999999999999"], ["--steps", "99999999999999999999"]),
    (["--steps=1.5"], ["--steps", '"1.5"']),
    (["--threads", "0"], ["--threads"]),
    (["--threads", "4096"], ["--threads"]),
    (["--lr", "nan"], ["--lr", "nan"]),
    (["--lr", "-1"], ["--lr"]),
    (["--lr", "1e999"], ["--lr"]),
    (["--preset", "huge"], ["--preset", "huge"]),
    (["--steps"], ["--steps needs a value"]),
    (["--wrong"], ["unknown option", "--wrong"]),
    (["stray\nword"], ["unexpected argument", "stray?word"]),
    (["--seed", "1", "--seed", "2"], ["--seed is given twice"]),
    (["--resume=yes"], ["--resume takes no value"]),
])
def test_wrong_command_lines(text, tmp_path, arguments, parts):
    one_line_error(tigon("train", "--out", tmp_path / "run", "--data", text, "--preset=tiny", *arguments)
                   if "--preset" not in arguments else tigon("train", "--out", tmp_path / "run", "--data", text, *arguments),
                   *parts, status=2)
    assert not (tmp_path / "run").exists()


def test_data_is_required():
    one_line_error(tigon("train"), "--data", status=2)
    one_line_error(tigon("sample"), "--checkpoint", status=2)
    one_line_error(tigon("train", "--data", "--steps", 3), "--data", status=2)
    one_line_error(tigon("dance"), "dance", status=2)
    assert tigon().returncode == 2


@pytest.mark.parametrize("command", ["train", "sample", "bench", "info"])
def test_help(command):
    result = succeeded(tigon(command, "--help"))
    page = result.stdout.decode()
    for heading in ["NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS", "EXIT STATUS"]:
        assert re.search(f"^{heading}$", page, re.MULTILINE)
    assert not result.stderr and max(map(len, page.splitlines())) <= 130


def test_overview_and_version():
    assert b"train" in succeeded(tigon("--help")).stdout
    assert re.fullmatch(rb"tigon \d+\.\d+\.\d+\n", succeeded(tigon("--version")).stdout)


@pytest.mark.parametrize("word", ["--version", "--help", "help"])
def test_nothing_may_follow(word):
    one_line_error(tigon(word, "ex\ntra"), "unexpected argument", "ex?tra", status=2)
    one_line_error(tigon("ex\ntra"), "unknown command", "ex?tra", status=2)


def test_preset_of_a_resumed_run_is_checked(text, begun):
    one_line_error(resume(text, begun, "--preset", "bogus"), "--preset", "bogus", status=2)


def limit_memory():
    resource.setrlimit(resource.RLIMIT_AS, (1 << 26, 1 << 26))


def test_advice_names_what_takes_the_memory(text, begun, tmp_path):
    result = tigon("sample", "--checkpoint", begun, "--threads", 1024, preexec_fn=limit_memory)
    one_line_error(result, "GiB of memory: lower --threads")
    assert b"--batch" not in result.stderr
    one_line_error(train(text, tmp_path / "run", "--threads", 1024, preexec_fn=limit_memory), "lower --batch, --seq or --threads")
    one_line_error(tigon("train", "--data", text, "--out", tmp_path / "run", "--batch", 512, "--threads", 1, preexec_fn=limit_memory),
                   "GiB of memory: lower --batch or --seq")


def test_info_tells_the_path():
    page = succeeded(tigon("info")).stdout.decode()
    assert "cpu path:" in page and "gpu backend:  none" in page and "TIGON_CPU_ISA" in page
    slower = succeeded(tigon("info", env={**os.environ, "TIGON_CPU_ISA": "generic"})).stdout.decode()
    assert re.search("cpu path: +generic", slower)


def test_data_that_is_not_there(tmp_path):
    one_line_error(train(tmp_path / "none.txt", tmp_path / "run"), "none.txt", "No such file")


def test_empty_data(tmp_path):
    (tmp_path / "empty.txt").touch()
    one_line_error(train(tmp_path / "empty.txt", tmp_path / "run"), "empty.txt", "empty")


def test_unreadable_data(tmp_path):
    one_line_error(train("/proc/self/mem", tmp_path / "run"), "/proc/self/mem", "cannot read")


def test_a_read_error_leaves_no_file_of_a_directory_out(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "good").write_text("good text " * 50000)
    (folder / "worn").write_text("worn text " * 50000)
    strace = ["strace", "-f", "-o", os.devnull, "-P", folder / "worn", "-e", "inject=read:error=EIO:when=2"]
    one_line_error(train(folder, tmp_path / "run", before=strace), "worn", "Input/output error")


def test_device_as_data(tmp_path):
    one_line_error(train("/dev/zero", tmp_path / "run"), "/dev/zero", "neither a file nor a directory")


def test_short_data(tmp_path):
    (tmp_path / "short.txt").write_text("short")
    one_line_error(train(tmp_path / "short.txt", tmp_path / "run"), "too short", "--seq")


def test_directory_without_text(tmp_path):
    folder = tmp_path / "folder"
    (folder / "deep").mkdir(parents=True)
    (folder / "binary").write_bytes(b"text\0text" * 1000)
    (folder / ".hidden").write_text("hidden " * 1000)
    (folder / "empty").touch()
    one_line_error(train(folder, tmp_path / "run"), "folder", "no text")


def test_directory_with_text(tmp_path):
    folder = tmp_path / "folder"
    (folder / "b").mkdir(parents=True)
    (folder / "binary").write_bytes(b"text\0text" * 1000)
    os.symlink(folder, folder / "b" / "loop")
    program.write_text(folder / "b" / "two.txt", 3000, seed=2)
    program.write_text(folder / "one.txt", 4000)
    result = succeeded(train(folder, tmp_path / "run", "--steps", 2))
    assert b"text: 7000 bytes" in result.stdout and b"of 2 files, 2 hidden, binary" in result.stdout
    joined = tmp_path / "joined.txt"
    joined.write_bytes((folder / "b" / "two.txt").read_bytes() + (folder / "one.txt").read_bytes())
    succeeded(train(joined, tmp_path / "other", "--steps", 2))
    assert same_state(tmp_path / "run", tmp_path / "other")


def test_impossible_size(text, tmp_path):
    for length, said in [(5000, "GiB of memory"), (512 * 1024, "tokens a step")]:
        long = program.write_text(tmp_path / "long.txt", 2000000)
        result = tigon("train", "--data", long, "--out", tmp_path / "run", "--batch", 65536, "--seq", length)
        one_line_error(result, said, "--batch", "--seq")


def test_out_that_cannot_be_written(text, tmp_path):
    (tmp_path / "file").touch()
    one_line_error(train(text, tmp_path / "file"), "file")
    one_line_error(train(text, tmp_path / "file" / "below"), "below")
    one_line_error(train(text, "/proc/run"), "/proc/run")


def test_new_run_keeps_an_old_checkpoint(text, begun):
    before = (begun / program.NAME).read_bytes()
    one_line_error(train(text, begun), program.NAME, "--resume")
    assert (begun / program.NAME).read_bytes() == before


def test_resume_refuses_what_differs(text, begun, tmp_path):
    other = program.write_text(tmp_path / "other.txt", 20000, seed=9)
    before = (begun / program.NAME).read_bytes()
    one_line_error(resume(other, begun), program.NAME, "other data")
    one_line_error(resume(text, begun, "--preset", "small"), program.NAME, "another shape", "small")
    one_line_error(resume(text, begun, "--seq", 32), "--seq 16")
    one_line_error(resume(text, begun, "--batch", 4), "--batch 2")
    one_line_error(resume(text, begun, "--seed", 4), "--seed 1")
    one_line_error(resume(text, tmp_path / "nowhere"), "nowhere", "No such file")
    assert (begun / program.NAME).read_bytes() == before


def test_damaged_checkpoint_is_named(text, begun, tmp_path):
    out = tmp_path / "run"
    shutil.copytree(begun, out)
    whole = (out / program.NAME).read_bytes()
    for damage in [whole[:-1], whole[:1000], whole[:5], b"", b"\xff" * 100, whole + b"x"]:
        (out / program.NAME).write_bytes(damage)
        one_line_error(resume(text, out), out / program.NAME)
        one_line_error(tigon("sample", "--checkpoint", out), out / program.NAME)
        assert (out / program.NAME).read_bytes() == damage


def limit_files():
    resource.setrlimit(resource.RLIMIT_FSIZE, (100000, 100000))


def keeps_old(begun, text, tmp_path, *parts, **options):
    out = tmp_path / "run"
    shutil.copytree(begun, out)
    before = (out / program.NAME).read_bytes()
    one_line_error(resume(text, out, **options), *parts)
    assert (out / program.NAME).read_bytes() == before
    assert not (out / (program.NAME + ".new")).exists()
    succeeded(resume(text, out))


def test_file_size_limit(text, begun, tmp_path):
    keeps_old(begun, text, tmp_path, program.NAME, "File too large", preexec_fn=limit_files)


@pytest.mark.parametrize("call, error, message", [("write", "ENOSPC", "No space left"), ("fsync", "EIO", "Input/output error"),
                                                   ("openat", "EROFS", "Read-only"), ("rename", "ENOSPC", "No space left"),
                                                   ("close", "EDQUOT", "quota")])
def test_failing_save(text, begun, tmp_path, call, error, message):
    path = tmp_path / "run" / (program.NAME + ".new")
    strace = ["strace", "-f", "-o", os.devnull, "-P", path, "-e", f"inject={call}:error={error}:when=1"]
    keeps_old(begun, text, tmp_path, program.NAME, message, before=strace)


def test_full_disk_under_the_metrics(text, begun, tmp_path):
    path = tmp_path / "run" / "metrics.jsonl"
    strace = ["strace", "-f", "-o", os.devnull, "-P", path, "-e", "inject=write:error=ENOSPC:when=2"]
    keeps_old(begun, text, tmp_path, "metrics.jsonl", "No space left", before=strace)


def calls_of_the_save(log):
    """[(name, which call of that name)] from the creation of the new file to one call after the last of the save."""
    seen = {}
    calls = []
    for line in log.read_text().splitlines():
        match = re.match(r"(\w+)\(", line)
        if match:
            name = match.group(1)
            seen[name] = seen.get(name, 0) + 1
            calls.append((name, seen[name], line))
    begin = next(i for i, call in enumerate(calls) if program.NAME + ".new" in call[2])
    renamed = next(i for i, call in enumerate(calls) if call[0].startswith("rename"))
    end = next(i for i, call in enumerate(calls) if i > renamed and call[0] == "close")
    return calls[begin : end + 2]


def test_killed_at_every_call_of_a_save(text, begun, tmp_path):
    """The old or the new checkpoint is whole, and goes on bit for bit."""
    log = tmp_path / "calls"
    new, final = tmp_path / "new", tmp_path / "final"
    shutil.copytree(begun, new)
    arguments = ["--stop-after", 6, "--threads", 1]
    succeeded(resume(text, new, *arguments, before=["strace", "-o", log]))
    shutil.copytree(new, final)
    succeeded(resume(text, final))
    calls = calls_of_the_save(log)
    assert len(calls) >= 8 and {"fsync", "rename", "openat", "write"} <= {name for name, _, _ in calls}
    old_left = new_left = 0
    for number, (name, which, line) in enumerate(calls):
        out = tmp_path / f"killed{number}"
        shutil.copytree(begun, out)
        strace = ["strace", "-o", os.devnull, "-e", f"inject={name}:signal=KILL:when={which}"]
        result = resume(text, out, *arguments, before=strace)
        assert result.returncode in (-signal.SIGKILL, 128 + signal.SIGKILL), (line, result.returncode)
        is_old, is_new = same_state(begun, out), same_state(new, out)
        assert is_old or is_new, line
        old_left += is_old
        new_left += is_new
        succeeded(resume(text, out))
        assert same_state(final, out), line
    assert old_left >= 4 and new_left >= 2
    print(f"cases: {len(calls)}")
