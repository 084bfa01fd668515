"""The float64 oracle against PyTorch's float64 autograd of the published recurrence."""

import ctypes
import glob
import os

import pytest
import torch


def load_reference():
    path = os.environ.get("TIGON_REFERENCE_LIBRARY") or os.environ.get("TIGON_REFERENCE_LIB")
    if not path:
        root = os.path.join(os.path.dirname(__file__), "..", "..")
        found = sorted(glob.glob(os.path.join(root, "build", "*", "libtigon_reference.so")), key=os.path.getmtime)
        if not found:
            pytest.skip("libtigon_reference.so is not built")
        path = found[-1]
    return ctypes.CDLL(path)


DOUBLES = ctypes.POINTER(ctypes.c_double)
INTEGERS = ctypes.POINTER(ctypes.c_int64)


class Inputs(ctypes.Structure):
    _fields_ = [
        ("sizes", INTEGERS),
        ("scale", ctypes.c_double),
        ("q", DOUBLES),
        ("k", DOUBLES),
        ("v", DOUBLES),
        ("decay", DOUBLES),
        ("cu_seqlens", INTEGERS),
        ("initial_state", DOUBLES),
    ]


class Gradients(ctypes.Structure):
    _fields_ = [(name, DOUBLES) for name in ("dout", "d_final_state", "dq", "dk", "dv", "d_initial_state")]


def doubles(tensor):
    return ctypes.cast(tensor.data_ptr(), DOUBLES)


def published(q, k, v, decay, scale, state):
    """S_t = lambda S_{t-1} + v_t k_t^T, o_t = scale S_t q_t; heads repeated over their groups."""
    group = v.shape[2] // q.shape[2]
    q, k = (x.repeat_interleave(group, dim=2) for x in (q, k))
    lam = torch.exp(-decay)[None, :, None, None]
    outs = []
    for t in range(q.shape[1]):
        state = lam * state + v[:, t, :, :, None] * k[:, t, :, None, :]
        outs.append(scale * (state @ q[:, t, :, :, None])[..., 0])
    return torch.stack(outs, dim=1), state


@pytest.mark.parametrize("heads,value_heads,key_size,value_size,tokens", [(1, 1, 1, 1, 1), (2, 4, 5, 3, 70), (3, 3, 8, 9, 33)])
def test_oracle(heads, value_heads, key_size, value_size, tokens):
    reference = load_reference()
    torch.manual_seed(tokens)
    batch, scale = 2, 0.37
    shapes = {
        "q": (batch, tokens, heads, key_size),
        "k": (batch, tokens, heads, key_size),
        "v": (batch, tokens, value_heads, value_size),
        "state": (batch, value_heads, value_size, key_size),
    }
    leaf = {name: torch.randn(shape, dtype=torch.float64, requires_grad=True) for name, shape in shapes.items()}
    decay = torch.rand(value_heads, dtype=torch.float64)
    out, final = published(leaf["q"], leaf["k"], leaf["v"], decay, scale, leaf["state"])
    dout, d_final = torch.randn_like(out), torch.randn_like(final)
    torch.autograd.backward([out, final], [dout, d_final])

    sizes = (ctypes.c_int64 * 8)(batch, tokens, heads, value_heads, key_size, value_size, batch, value_heads)
    inputs = Inputs(sizes, scale, doubles(leaf["q"]), doubles(leaf["k"]), doubles(leaf["v"]), doubles(decay), None, doubles(leaf["state"]))
    got_out, got_final = torch.zeros_like(out), torch.zeros_like(final)
    reference.lightning_oracle(ctypes.byref(inputs), doubles(got_out), doubles(got_final))
    grads = {name: torch.zeros(shape, dtype=torch.float64) for name, shape in shapes.items()}
    gradients = Gradients(doubles(dout), doubles(d_final), *(doubles(grads[name]) for name in ("q", "k", "v", "state")))
    reference.lightning_backward_oracle(ctypes.byref(inputs), ctypes.byref(gradients))

    assert torch.allclose(got_out, out, rtol=1e-12, atol=1e-12)
    assert torch.allclose(got_final, final, rtol=1e-12, atol=1e-12)
    for name in shapes:
        assert torch.allclose(grads[name], leaf[name].grad, rtol=1e-11, atol=1e-11), name
