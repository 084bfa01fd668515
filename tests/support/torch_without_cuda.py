"""Lets PyTorch's wheel for CUDA be imported on a machine that has no CUDA libraries, for tests on the CPU.

The wheel names some fifteen such libraries, gigabytes of packages, before it can be loaded. This puts one small library under
all their names beside PyTorch's own, whose functions report that there is no device. A PyTorch that can be imported as it is
is left alone.
"""

import importlib.util
import os
import pathlib
import re
import subprocess
import sys

NO_DEVICE = 100  # cudaErrorNoDevice and CUDA_ERROR_NO_DEVICE
LIBRARY = re.compile(r"NEEDED.*\[(lib(?:cu|nv|nccl)[^\]]*)\]")
FUNCTION = re.compile(r" U ((?:__cuda|_?cu|nccl|nv)\w*)(?:@(\S+))?")
TEXT = re.compile(r"String|Name")


def output(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def main():
    if subprocess.run([sys.executable, "-c", "import torch"], capture_output=True).returncode == 0:
        return
    folder = pathlib.Path(importlib.util.find_spec("torch").submodule_search_locations[0]) / "lib"
    libraries, functions = set(), {}
    for path in sorted(folder.glob("*.so")):
        libraries.update(LIBRARY.findall(output("readelf", "-d", path)))
        functions.update(FUNCTION.findall(output("nm", "-D", "--undefined-only", path)))
    source = folder / "no_cuda.c"
    source.write_text("".join(
        f'const char *{name}(void) {{ return ""; }}\n' if TEXT.search(name) else f"int {name}(void) {{ return {NO_DEVICE}; }}\n"
        for name in sorted(functions)))
    # The loader insists on the versions of symbols that have one.
    script = folder / "no_cuda.map"
    script.write_text("".join(
        f"{version} {{ {' '.join(name + ';' for name, v in functions.items() if v == version)} }};\n"
        for version in sorted(set(functions.values()) - {""})))
    library = folder / "libno_cuda.so"
    compiler = [os.environ.get("CC") or "cc", "-w", "-fno-builtin", "-shared", "-fPIC"]
    subprocess.run([*compiler, f"-Wl,--version-script={script}", "-o", library, source], check=True)
    for name in libraries:
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(library.name)
    print(f"{len(functions)} functions under the names of {len(libraries)} libraries")
    subprocess.run([sys.executable, "-c", "import torch; assert not torch.cuda.is_available()"], check=True)


main()
