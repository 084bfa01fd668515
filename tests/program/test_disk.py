"""Full and read-only disks, directories that vanish, and readers that leave: one line, and the old or the new checkpoint whole."""

import os
import re
import shutil
import signal
import subprocess

import pytest

import program
from program import metrics, one_line_error, resume, same_state, succeeded, tigon, train


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return program.write_text(tmp_path_factory.mktemp("text") / "text.txt", 2000)


@pytest.fixture(scope="module")
def begun(text, tmp_path_factory):
    """A run of 4 steps, stopped after 2."""
    out = tmp_path_factory.mktemp("begun") / "run"
    succeeded(train(text, out, "--steps", 4, "--stop-after", 2, "--threads", 1))
    return out


def end_run(text, out, **options):
    """The other two steps, and the summary."""
    return tigon("train", "--data", text, "--out", out, "--resume", "--threads", 1, **options)


ERRORS = {"write": "ENOSPC", "fsync": "ENOSPC", "rename": "ENOSPC", "openat": "ENOSPC", "ftruncate": "ENOSPC"}


def calls_on(log, out):
    """[(name, which call of that name, line)] of those that change what is in the directory."""
    seen, calls, descriptors = {}, [], set()
    for line in log.read_text().splitlines():
        match = re.match(r"(\w+)\((\d*)", line)
        if not match:
            continue
        name, descriptor = match.groups()
        seen[name] = seen.get(name, 0) + 1
        opened = re.search(r"= (\d+)$", line) if name == "openat" else None
        if opened:
            (descriptors.add if str(out) in line else descriptors.discard)(opened.group(1))
        elif name == "close":
            descriptors.discard(descriptor)
        if name in ERRORS and (str(out) in line or descriptor in descriptors):
            calls.append((name, seen[name], line))
    return calls


def test_full_disk_at_every_call(text, begun, tmp_path):
    log, final = tmp_path / "calls", tmp_path / "final"
    shutil.copytree(begun, final)
    succeeded(end_run(text, final, before=["strace", "-o", log]))
    calls = [call for call in calls_on(log, final) if call[0] != "openat" or "O_CREAT" in call[2]]
    writes = [call for call in calls if call[0] == "write"]
    several = [call for call in calls if call[0] != "write"] + writes[:6] + writes[6:-6:5] + writes[-6:]
    assert {"write", "fsync", "rename", "openat", "ftruncate"} == {name for name, _, _ in several} and len(several) > 12
    for number, (name, which, line) in enumerate(several):
        out = tmp_path / f"full{number}"
        shutil.copytree(begun, out)
        strace = ["strace", "-o", os.devnull, "-e", f"inject={name}:error={ERRORS[name]}:when={which}"]
        one_line_error(end_run(text, out, before=strace), "No space left on device", out)
        assert same_state(begun, out) or same_state(final, out), line
        assert not (out / (program.NAME + ".new")).exists(), line
        succeeded(end_run(text, out))
        assert same_state(final, out) and len(metrics(out)) == 4, line
    print(f"cases: {len(several)}")


@pytest.fixture(scope="module")
def without_override():
    """What takes from root the right to write where the mode forbids it."""
    if os.getuid():
        return []
    before = ["setpriv", "--bounding-set=-dac_override,-dac_read_search", "--inh-caps=-dac_override,-dac_read_search"]
    if not shutil.which("setpriv") or subprocess.run([*before, "true"], capture_output=True).returncode:
        pytest.skip("root here cannot give up its rights")
    return before


def test_read_only_directory(text, begun, tmp_path, without_override):
    out = tmp_path / "run"
    shutil.copytree(begun, out)
    before = sorted((path.name, path.read_bytes()) for path in out.iterdir())
    out.chmod(0o555)
    one_line_error(resume(text, out, before=without_override), out / program.NAME, "cannot create: Permission denied")
    assert [name for name, _ in before] == sorted(path.name for path in out.iterdir())
    assert (out / program.NAME).read_bytes() == dict(before)[program.NAME]
    tmp_path.chmod(0o555)
    one_line_error(train(text, tmp_path / "new", "--steps", 1, before=without_override), tmp_path / "new", "Permission denied")
    tmp_path.chmod(0o755)
    out.chmod(0o755)


def test_metrics_that_cannot_be_written(text, begun, tmp_path, without_override):
    out = tmp_path / "run"
    shutil.copytree(begun, out)
    (out / "metrics.jsonl").chmod(0o444)
    one_line_error(resume(text, out, before=without_override), "metrics.jsonl", "cannot write: Permission denied")
    assert same_state(begun, out)
    (tmp_path / "other" / "metrics.jsonl").mkdir(parents=True)
    one_line_error(train(text, tmp_path / "other", "--steps", 1), "metrics.jsonl", "cannot write: Is a directory")
    assert not (tmp_path / "other" / program.NAME).exists()


def test_summary_that_cannot_be_written(text, begun, tmp_path):
    out = tmp_path / "run"
    shutil.copytree(begun, out)
    (out / "summary.json").mkdir()
    one_line_error(end_run(text, out), "summary.json", "cannot create: Is a directory")
    assert program.read_checkpoint(out)[0]["step"] == "4"


def test_directory_that_vanishes(text, tmp_path):
    out = tmp_path / "run"
    command = [program.PROGRAM, "train", "--data", text, "--out", out, "--preset", "tiny", "--batch", "2", "--seq", "16",
               "--steps", "1000000", "--skip-validation", "--save-every", "200"]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    for _ in range(3):
        assert running.stdout.readline()  # the last of them is printed when the directory is there
    out.rename(tmp_path / "elsewhere")
    output, error = running.communicate(timeout=60)
    one_line_error(subprocess.CompletedProcess([], running.returncode, output, error), out / program.NAME, "cannot create: No such file")
    assert not out.exists()


def test_long_names_do_not_hide_the_reason(text, tmp_path):
    deep = tmp_path
    while len(str(deep)) < 3600:
        deep = deep / ("d" * 200)
    for name in [deep, "x" * 9000]:
        result = train(name, tmp_path / "run")
        one_line_error(result, "xxx" if name == "x" * 9000 else "ddd", "File name too long" if name == "x" * 9000 else "No such file")
        assert len(result.stderr) < 1200
    one_line_error(train(text, "y" * 9000), "yyy", "the name is too long")
    one_line_error(tigon("sample", "--checkpoint", "z" * 9000), "zzz", "the name is too long")
    one_line_error(tigon("train", "--data", text, "--preset", "p" * 9000), "--preset: expected tiny or small", "tigon train --help", status=2)


def test_reader_that_leaves(text, begun):
    """As `tigon sample | head` does."""
    for preexec, status in [(None, -signal.SIGPIPE), (lambda: signal.signal(signal.SIGPIPE, signal.SIG_IGN), 1)]:
        running = subprocess.Popen([program.PROGRAM, "sample", "--checkpoint", begun, "--tokens", "1000000000"], stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, restore_signals=preexec is None, preexec_fn=preexec)
        assert len(running.stdout.read(100)) == 100
        running.stdout.close()
        error = running.stderr.read()
        assert running.wait(timeout=60) == status
        assert status < 0 or error == b"tigon sample: standard output: Broken pipe\n"
        running.stderr.close()
