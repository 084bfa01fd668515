"""Each allocation fails once, and all from one on: a message and no crash, and the checkpoint is the old or the new one, whole."""

import concurrent.futures
import os
import pathlib
import shutil
import tempfile

import pytest

import program
from program import same_state, succeeded, tigon, with_faults

SHORT = ["--preset", "tiny", "--batch", 1, "--seq", 8, "--threads", 1]
STRIDE = 1 if os.environ.get("TIGON_TEST_FULL") else 5  # of commands whose other half is covered by another one


@pytest.fixture(scope="module")
def place():
    """A text, a run that is done and the same one stopped halfway; in memory where it can be, since each save is synced."""
    shared = pathlib.Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shared if shared.is_dir() and os.access(shared, os.W_OK) else None) as folder:
        folder = pathlib.Path(folder)
        program.write_text(folder / "text.txt", 600)
        for name in ["half", "whole"]:
            succeeded(begin(folder, folder / name))
        succeeded(go_on(folder, folder / "whole"))
        yield folder


def begin(place, out, **options):
    return tigon("train", "--data", place / "text.txt", "--out", out, *SHORT, "--steps", 2, "--stop-after", 1, **options)


def go_on(place, out, **options):
    return tigon("train", "--data", place / "text.txt", "--out", out, "--resume", "--threads", 1, **options)


def count_allocations(place, command, out):
    succeeded(command(place, out, env=with_faults(FAULT_COUNT=place / "count")))
    return int((place / "count").read_text())


def ended_well(result, fault):
    """Done, or failed with one line."""
    error = [line for line in result.stderr.decode().splitlines() if not line.startswith("step ")]
    if result.returncode == 1:
        assert len(error) == 1 and error[0].startswith("tigon") and len(error[0]) > 20, (fault, error)
    else:
        assert result.returncode == 0, (fault, result.returncode, error)
    return result.returncode == 0


def for_all(check, count, stride=1):
    """check(fault) for each allocation that may fail, and for some from which on all do; returns how many runs failed."""
    faults = [*map(str, range(1, count + 1, stride)), *(f"{n}+" for n in range(1, count + 1, max(1, count // 40)))]
    with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        failed = sum(not done for done in pool.map(check, faults))
    print(f"cases: {len(faults)}")
    return failed, len(faults)


def test_training(place):
    def check(fault):
        out = place / f"begun{fault}"
        done = ended_well(begin(place, out, env=with_faults(FAULT_ALLOCATION=fault)), fault)
        assert not (out / (program.NAME + ".new")).exists(), fault
        if (out / program.NAME).exists():
            assert same_state(place / "half", out), fault
        else:
            assert not done, fault
        shutil.rmtree(out, ignore_errors=True)
        return done

    count = count_allocations(place, begin, place / "counted")
    failed, cases = for_all(check, count)
    assert count > 300 and failed > 0.9 * cases


def test_resuming(place):
    def check(fault):
        out = place / f"resumed{fault}"
        shutil.copytree(place / "half", out)
        done = ended_well(go_on(place, out, env=with_faults(FAULT_ALLOCATION=fault)), fault)
        assert not (out / (program.NAME + ".new")).exists(), fault
        assert same_state(place / "whole", out) or (not done and same_state(place / "half", out)), fault
        assert not done or len(program.metrics(out)) == 2, fault
        assert not done or (out / "summary.json").stat().st_size > 300, fault
        shutil.rmtree(out)
        return done

    shutil.copytree(place / "half", place / "counted again")
    count = count_allocations(place, go_on, place / "counted again")
    failed, cases = for_all(check, count, STRIDE)
    assert failed > 0.9 * cases


def test_sampling(place):
    def sample(place, _, **options):
        return tigon("sample", "--checkpoint", place / "whole", "--prompt", "a", "--tokens", 3, "--threads", 1, **options)

    def check(fault):
        result = sample(place, None, env=with_faults(FAULT_ALLOCATION=fault))
        done = ended_well(result, fault)
        assert result.stdout == (expected if done else b""), fault
        return done

    expected = succeeded(sample(place, None)).stdout
    failed, cases = for_all(check, count_allocations(place, sample, None))
    assert failed > 0.9 * cases


@pytest.mark.parametrize("arguments", [["info"], ["--version"], ["train", "--help"], ["train"]])
def test_printing(place, arguments):
    expected = tigon(*arguments)
    for fault in ["1", "1+", "2+", "3+"]:
        result = tigon(*arguments, env=with_faults(FAULT_ALLOCATION=fault))
        assert (result.returncode, result.stdout, result.stderr) == (expected.returncode, expected.stdout, expected.stderr)


def test_threads_that_cannot_start(place):
    """Threads of the pools beside the caller, in the program and in the library."""
    def run(_, out, **options):
        return tigon("train", "--data", place / "text.txt", "--out", out, *SHORT[:-1], 3, "--steps", 1, "--skip-validation", **options)

    def check(fault):
        out = place / f"threads{fault}"
        done = ended_well(run(place, out, env=with_faults(FAULT_ALLOCATION=fault)), fault)
        shutil.rmtree(out, ignore_errors=True)
        return done

    count = count_allocations(place, run, place / "threads")
    failed, _ = for_all(check, min(count, 80))
    assert failed > 10
