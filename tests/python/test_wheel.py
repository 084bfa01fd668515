"""The wheel: built, installed into a fresh environment, imported and run there."""

import os
import pathlib
import shutil
import subprocess
import sys
import zipfile

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(not os.environ.get("TIGON_TEST_FULL"), reason="minutes: runs with TIGON_TEST_FULL=1")

PROGRAM = """
import pathlib, sys, torch, tigon
assert pathlib.Path(tigon.__file__).is_relative_to(sys.prefix), tigon.__file__
x = torch.randn(5, 3, 64, requires_grad=True)
module = tigon.RMSNorm(64)
torch.testing.assert_close(module(x), torch.nn.functional.rms_norm(x, (64,), module.weight))
target = torch.randint(0, 100, (5, 3))
tigon.linear_cross_entropy(module(x), torch.randn(100, 64), target).backward()
print(tigon.__version__, x.grad.shape)
"""


def run(*command, **options):
    result = subprocess.run([str(c) for c in command], capture_output=True, text=True, **options)
    assert result.returncode == 0, (command, result.stdout[-2000:], result.stderr[-2000:])
    return result.stdout


def test_wheel(tmp_path):
    source = tmp_path / "source"
    for name in run("git", "-C", ROOT, "ls-files", "-z").split("\0")[:-1]:
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, source / name)
    run(sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-w", tmp_path, source)
    (wheel,) = tmp_path.glob("tigon-*-py3-none-*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    libraries = [n for n in names if ".so" in n]
    assert sorted(libraries) == ["tigon/libtigon.so.0", "tigon/libtigon_ffi.so"]
    print(
        f"{wheel.name}: {wheel.stat().st_size / 1e6:.2f} MB,",
        *(f"{i.filename} {i.file_size / 1e6:.2f} MB" for i in zipfile.ZipFile(wheel).infolist()
          if i.filename in libraries))

    run(sys.executable, "-m", "venv", tmp_path / "venv")
    python = tmp_path / "venv/bin/python"
    run(python, "-m", "pip", "install", "--no-deps", wheel)
    # What the package depends on, from the environment of the tests.
    site = pathlib.Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    import torch
    (site / "dependencies.pth").write_text(str(pathlib.Path(torch.__file__).parents[1]) + "\n")
    clean = {n: v for n, v in os.environ.items() if n not in ("PYTHONPATH", "TIGON_FFI_LIBRARY")}
    assert run(python, "-c", PROGRAM, env=clean, cwd=tmp_path).startswith("0.")
    needed = run("readelf", "-d", site / "tigon/libtigon.so.0")
    assert "libcuda" not in needed and "Library soname: [libtigon.so.0]" in needed
