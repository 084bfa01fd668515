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
        ("slots", INTEGERS),
        ("has", INTEGERS),
        ("lengths", INTEGERS),
        ("pool", ctypes.c_int64),
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


def integers(values):
    return (ctypes.c_int64 * len(values))(*values)


@pytest.mark.parametrize("lengths", [(12, 12, 12, 12), (0, 5, 12, 1)])
def test_oracle_pool(lengths):
    """Slots, flags, lengths and padding of the oracle are gathering, truncating and scattering."""
    reference = load_reference()
    torch.manual_seed(5)
    batch, tokens, heads, value_heads, key_size, value_size, pool = 4, 12, 2, 4, 5, 3, 6
    q, k = (torch.randn(batch, tokens, heads, key_size, dtype=torch.float64) for _ in range(2))
    v = torch.randn(batch, tokens, value_heads, value_size, dtype=torch.float64)
    states = torch.randn(pool, value_heads, value_size, key_size, dtype=torch.float64)
    decay = torch.rand(value_heads, dtype=torch.float64)
    slots, has = (4, -1, 0, 3), (1, 1, 0, 1)
    states[slots[2]] = float("nan")

    expected_out = torch.zeros(batch, tokens, value_heads, value_size, dtype=torch.float64)
    expected = states.clone()
    for n, (slot, flag, length) in enumerate(zip(slots, has, lengths)):
        if slot < 0:
            continue
        initial = states[slot] if flag else torch.zeros_like(states[slot])
        if length == 0:
            expected[slot] = initial
            continue
        part = (x[n : n + 1, :length] for x in (q, k, v))
        out, final = published(*part, decay, 0.5, initial[None])
        expected_out[n, :length] = out[0]
        expected[slot] = final[0]

    sizes = (ctypes.c_int64 * 8)(batch, tokens, heads, value_heads, key_size, value_size, batch, value_heads)
    inputs = Inputs(sizes, 0.5, doubles(q), doubles(k), doubles(v), doubles(decay), None, doubles(states))
    inputs.slots, inputs.has, inputs.lengths, inputs.pool = integers(slots), integers(has), integers(lengths), pool
    got_out, got = torch.zeros_like(expected_out), states.clone()
    reference.lightning_oracle(ctypes.byref(inputs), doubles(got_out), doubles(got))
    assert torch.allclose(got_out, expected_out, rtol=1e-12, atol=1e-12)
    assert torch.allclose(got, expected, rtol=1e-12, atol=1e-12, equal_nan=True)
