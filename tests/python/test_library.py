"""libtigon_ffi.so itself: every operation's table fits its args struct, and errors arrive as Python's."""

import pathlib
import re

import pytest
import tigon
import torch
from tigon import _library

ROOT = pathlib.Path(__file__).resolve().parents[2]
STRUCT = re.compile(r"typedef struct tigon_(\w+)_args \{(.*?)\} tigon_\1_args;", re.S)


def operations():
    """The args structs of the public headers: {operation: names of the members that take an argument}."""
    found = {}
    for header in sorted((ROOT / "include/tigon").glob("*.h")):
        for name, body in STRUCT.findall(header.read_text()):
            body = re.sub(r"/\*.*?\*/|//[^\n]*", "", body, flags=re.S)
            parts = [part.strip() for line in re.findall(r"([^;]+);", body) for part in line.split(",")]
            members = [re.split(r"[ *]", part)[-1] for part in parts]
            found[name] = [m for m in members if m not in ("size", "team", "reserved", "saved_bytes")]
    return found


@pytest.mark.parametrize("name", sorted(operations()))
def test_tables_are_the_headers(name):
    """Each member in turn gets an object that fits none: the error names it, so names and order are those of the
    header. With nothing given at all the library sees a struct of the right size, and asks for its first tensor."""
    function, members = _library.function("tigon_" + name), operations()[name]
    with pytest.raises(TypeError, match=f"tigon_{name}: arguments: expected {len(members) + 1}, got 1"):
        function(0)
    for i, member in enumerate(members):
        arguments = [None] * len(members)
        arguments[i] = "text"
        with pytest.raises(TypeError, match=f"tigon_{name}: {member}: expected "):
            function(0, *arguments)
    with pytest.raises(ValueError, match=f"tigon_{name}: "):
        function(0, *[None] * len(members))


def test_facts():
    header = (ROOT / "include/tigon/version.h").read_text()
    assert tigon.__version__ == ".".join(re.findall(r"#define TIGON_VERSION_[A-Z]+ (\d+)", header))
    assert tigon.cpu_isa() in ("amx", "avx512_bf16", "avx512", "avx2", "generic") and tigon.cpu_threads() >= 1


def test_threads_change_no_bit():
    x, weight, target = torch.randn(300, 64), torch.randn(500, 64), torch.randint(0, 500, (300,))
    try:
        results = []
        for threads in (1, 2, 5, 0):
            tigon.set_num_threads(threads)
            results.append(tigon.linear_cross_entropy(x, weight, target, reduction="none"))
        assert all(torch.equal(results[0], r) for r in results)
    finally:
        tigon.set_num_threads(0)
    with pytest.raises(ValueError, match="tigon_set_threads: threads: "):
        tigon.set_num_threads(-1)


def test_wrong_arguments_of_functions():
    with pytest.raises(TypeError, match="tigon_rms_norm: context: expected a handle"):
        _library.function("tigon_rms_norm")("context", *[None] * 9)
    with pytest.raises(TypeError, match="tigon_context_create: arguments: expected an integer"):
        _library.function("tigon_context_create")("cpu", 0)
    with pytest.raises(ValueError, match="tigon_check: context: "):
        _library.function("tigon_check")(0)
    with pytest.raises(ValueError, match="32 bits"):
        _library.function("tigon_rms_norm")(0, 2**40, *[None] * 8)
    with pytest.raises(ValueError, match="saved: expected a contiguous vector of bytes"):
        _library.function("tigon_moe")(0, *[None] * 8, torch.zeros(3, 4), *[None] * 4)
    with pytest.raises(ValueError, match="device: expected cpu or cuda"):
        tigon.Context("meta")


def test_leading_dimensions_that_do_not_fold():
    """Three strides for the rows: the library's function says so, the Python functions copy."""
    x = torch.randn(4, 4, 4, 8).permute(2, 1, 0, 3)
    out = torch.empty(4, 4, 4, 8)
    with pytest.raises(ValueError, match="more than two strides"):
        _library.function("tigon_rms_norm")(0, 1, x, None, None, out, None, None, 1e-6, 0.0)
    assert torch.equal(tigon.rms_norm(x), tigon.rms_norm(x.contiguous()))
