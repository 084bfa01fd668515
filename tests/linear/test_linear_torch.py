"""The float64 oracle of tigon_linear against PyTorch's float64 autograd."""

import ctypes
import glob
import os

import pytest
import torch

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def reference():
    path = os.environ.get("TIGON_REFERENCE_LIBRARY")
    candidates = [path] if path else sorted(glob.glob(os.path.join(ROOT, "build", "*", "libtigon_reference.so")))
    if not candidates:
        pytest.fail("libtigon_reference.so is not built")
    return ctypes.CDLL(candidates[0])


def pointer(tensor):
    return ctypes.cast(tensor.data_ptr(), ctypes.c_void_p)


@pytest.mark.parametrize("tokens, n, d", [(1, 1, 1), (3, 7, 5), (20, 33, 65), (64, 10, 129)])
def test_oracle(tokens, n, d):
    torch.manual_seed(tokens)
    library = reference()
    x, weight, bias = (torch.randn(*s, dtype=torch.float64).requires_grad_() for s in ((tokens, d), (n, d), (n,)))
    dy = torch.randn(tokens, n, dtype=torch.float64)
    y = torch.nn.functional.linear(x, weight, bias)
    y.backward(dy)

    sizes = [ctypes.c_int64(v) for v in (tokens, n, d)]
    got = torch.empty_like(dy)
    library.reference_linear(*sizes, pointer(x), pointer(weight), pointer(bias), pointer(got))
    torch.testing.assert_close(got, y.detach(), rtol=1e-12, atol=1e-12)
    dx, dweight, dbias = (torch.empty_like(t) for t in (x, weight, bias))
    library.reference_linear_backward(*sizes, pointer(dy), pointer(x), pointer(weight), pointer(dx), pointer(dweight),
                                      pointer(dbias))
    for gradient, tensor in ((dx, x), (dweight, weight), (dbias, bias)):
        torch.testing.assert_close(gradient, tensor.grad, rtol=1e-11, atol=1e-11)
