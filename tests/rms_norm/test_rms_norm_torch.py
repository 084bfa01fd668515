"""The float64 oracle of rms_norm against PyTorch's float64 autograd of the published formula."""

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
    return None if tensor is None else ctypes.cast(tensor.data_ptr(), ctypes.c_void_p)


def random(*shape):
    return torch.randn(*shape, dtype=torch.float64)


@pytest.mark.parametrize("rows, width", [(1, 1), (3, 7), (5, 64), (4, 129), (2, 1000)])
@pytest.mark.parametrize("with_residual", [False, True])
@pytest.mark.parametrize("with_weight, offset", [(False, 0.0), (True, 0.0), (True, 1.0)])
def test_oracle(rows, width, with_residual, with_weight, offset):
    torch.manual_seed(rows * width)
    library, eps = reference(), 0.1
    x = random(rows, width).requires_grad_()
    residual = random(rows, width).requires_grad_() if with_residual else None
    weight = random(width).requires_grad_() if with_weight else None
    dy, d_sum = random(rows, width), random(rows, width) if with_residual else None

    s = x + residual if with_residual else x
    rstd = torch.rsqrt(s.pow(2).mean(-1, keepdim=True) + eps)
    out = s * rstd * (offset + weight) if with_weight else s * rstd
    loss = (out * dy).sum() + ((s * d_sum).sum() if with_residual else 0)
    loss.backward()

    got_out, got_sum, got_rstd = torch.empty_like(x), torch.empty_like(x), torch.empty(rows, dtype=torch.float64)
    sizes = (ctypes.c_int64(rows), ctypes.c_int64(width))
    scalars = (ctypes.c_double(eps), ctypes.c_double(offset))
    library.reference_rms_norm(*sizes, pointer(x), pointer(residual), pointer(weight), *scalars, pointer(got_out),
                               pointer(got_sum), pointer(got_rstd))
    torch.testing.assert_close(got_out, out.detach(), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(got_sum, s.detach(), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(got_rstd, rstd.detach().squeeze(-1), rtol=1e-12, atol=1e-12)

    ds, d_weight = torch.empty_like(x), torch.empty(width, dtype=torch.float64)
    library.reference_rms_norm_backward(*sizes, pointer(dy), pointer(d_sum), pointer(got_sum), pointer(weight),
                                        *scalars, pointer(ds), pointer(d_weight))
    torch.testing.assert_close(ds, x.grad, rtol=1e-11, atol=1e-11)
    if with_residual:
        torch.testing.assert_close(ds, residual.grad, rtol=1e-11, atol=1e-11)
    if with_weight:
        torch.testing.assert_close(d_weight, weight.grad, rtol=1e-11, atol=1e-11)
