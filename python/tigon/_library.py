"""libtigon_ffi.so, loaded, and the TVM FFI functions in it by their names in the C ABI.

A function takes a context's handle (0: none) and then the members of the operation's args struct in their order.
Tensors pass as DLTensor, without a copy; the stream is the framework's current one."""

import os
import pathlib

import tvm_ffi

NAME = "libtigon_ffi.so"


def _find():
    path = os.environ.get("TIGON_FFI_LIBRARY")
    if path:
        return path
    beside = pathlib.Path(__file__).with_name(NAME)
    if not beside.exists():
        raise ImportError(f"{beside} is missing: install the package with pip, or name the library of a build in "
                          "TIGON_FFI_LIBRARY")
    return str(beside)


tvm_ffi.register_error("NotImplementedError", NotImplementedError)
_module = tvm_ffi.load_module(_find())


def function(name):
    """The TVM FFI function `name`, such as "tigon_rms_norm"."""
    return _module.get_function(name)


version = function("tigon_version")()
