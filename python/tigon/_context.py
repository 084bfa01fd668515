"""Contexts, and facts about the library."""

import typing

import torch

from . import _library

_create = _library.function("tigon_context_create")
_destroy = _library.function("tigon_context_destroy")
_check = _library.function("tigon_check")
_clear = _library.function("tigon_clear")
_set_threads = _library.function("tigon_set_threads")
_cpu_threads = _library.function("tigon_cpu_threads")
_cpu_isa = _library.function("tigon_cpu_isa")

_DLPACK_DEVICES = {"cpu": 1, "cuda": 2}


class Record(typing.NamedTuple):
    """The first bad value that an operation met in its data."""

    code: str
    """name of the status, such as "INVALID_ARGUMENT" """
    pe: int
    """processing element that saw it"""
    index: int
    """position of the value in its tensor, in elements of a compact tensor"""
    value: int
    op: str
    argument: str


class Context:
    """Keeps the record of bad values that only the data show: an expert id or a target out of range, a bad bound.

    Operations take one as `context=`; without one such values are handled in the same way, but not recorded. Check it
    after the operations are done (on a GPU: after synchronising). It has to outlive the backward passes of its
    operations."""
    def __init__(self, device="cpu"):
        self.handle = 0
        device = torch.device(device)
        if device.type not in _DLPACK_DEVICES:
            raise ValueError(f"device: expected cpu or cuda, got {device}")
        index = device.index
        if index is None:
            index = torch.cuda.current_device() if device.type == "cuda" else 0
        self.handle = _create(_DLPACK_DEVICES[device.type], index)

    def check(self):
        """The Record, or None where nothing was recorded."""
        text = _check(self.handle)
        if text is None:
            return None
        code, pe, index, value, op, argument = text.split()
        return Record(code, int(pe), int(index), int(value), op, argument)

    def clear(self):
        """Forgets the record, so that the next event is kept."""
        _clear(self.handle)

    def __del__(self, destroy=_destroy):
        if self.handle:
            destroy(self.handle)


def set_num_threads(count):
    """Threads of operations on CPU tensors; 0, the default: as many as the process may run on. Results do not depend
    on it."""
    _set_threads(count)


def cpu_threads():
    """The number of threads that 0 stands for."""
    return _cpu_threads()


def cpu_isa():
    """The instruction set that the CPU backend runs: "amx", "avx512_bf16", "avx512", "avx2" or "generic"."""
    return _cpu_isa()
