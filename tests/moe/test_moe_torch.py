"""The float64 oracle against PyTorch's float64 autograd of the published formulas."""

import ctypes
import glob
import os

import pytest
import torch
import torch.nn.functional as F


def load_reference():
    path = os.environ.get("TIGON_REFERENCE_LIBRARY") or os.environ.get("TIGON_REFERENCE_LIB")
    if not path:
        root = os.path.join(os.path.dirname(__file__), "..", "..")
        found = sorted(glob.glob(os.path.join(root, "build", "*", "libtigon_reference.so")), key=os.path.getmtime)
        if not found:
            pytest.skip("libtigon_reference.so is not built")
        path = found[-1]
    return ctypes.CDLL(path)


def pointer(tensor):
    assert tensor.is_contiguous()
    return ctypes.c_void_p(tensor.data_ptr())


def sizes(*values):
    return [ctypes.c_int64(value) for value in values]


def close(got, expected):
    torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-12)


def published_experts(x, ids, weights, gate, up, down):
    """sum_j s_j down_e(silu(gate_e x) * up_e x), token by token; an id outside the experts adds nothing."""
    rows = []
    for t in range(x.shape[0]):
        row = torch.zeros_like(x[t])
        for j in range(ids.shape[1]):
            e = int(ids[t, j])
            if 0 <= e < gate.shape[0]:
                row = row + weights[t, j] * (down[e] @ (F.silu(gate[e] @ x[t]) * (up[e] @ x[t])))
        rows.append(row)
    return torch.stack(rows) + 0 * x


@pytest.mark.parametrize("low,high", [(0, 5), (-2, 7), (3, 4)])
@pytest.mark.parametrize("tokens,choices,width,inner", [(1, 1, 1, 1), (9, 2, 12, 7), (13, 3, 5, 16)])
def test_experts(tokens, choices, width, inner, low, high):
    library = load_reference()
    torch.manual_seed(0)
    experts = 5
    ids = torch.randint(low, high, (tokens, choices))
    shapes = [(tokens, width), (tokens, choices), (experts, inner, width), (experts, inner, width), (experts, width, inner)]
    inputs = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
    x, weights, gate, up, down = inputs
    dout = torch.randn(tokens, width, dtype=torch.float64)
    out = published_experts(x, ids, weights, gate, up, down)
    out.backward(dout)

    counts = sizes(tokens, choices, width, inner, experts)
    common = [pointer(t.detach()) for t in (x, ids, weights, gate, up, down)]
    got = torch.empty(tokens, width, dtype=torch.float64)
    library.reference_moe(*counts, *common, pointer(got))
    close(got, out.detach())
    gradients = [torch.ones(shape, dtype=torch.float64) for shape in shapes]
    library.reference_moe_backward(*counts, pointer(dout), *common, ctypes.c_int(0), *map(pointer, gradients))
    for name, tensor, gradient in zip(("dx", "d_topk_weights", "d_gate", "d_up", "d_down"), inputs, gradients):
        expected = torch.zeros_like(tensor) if tensor.grad is None else tensor.grad
        torch.testing.assert_close(gradient, expected, rtol=1e-10, atol=1e-12, msg=name)
    before = gradients[2].clone()
    library.reference_moe_backward(*counts, pointer(dout), *common, ctypes.c_int(1), *map(pointer, gradients))
    close(gradients[2], 2 * before)


def published_route(logits, choices, sigmoid, renormalize):
    """Top-k of the scores, and the Switch Transformer's balance loss."""
    tokens, experts = logits.shape
    p = torch.sigmoid(logits) if sigmoid else torch.softmax(logits, dim=1)
    weights, ids = torch.topk(p, choices, dim=1)
    if renormalize:
        weights = weights / weights.sum(dim=1, keepdim=True)
    counts = torch.bincount(ids.flatten(), minlength=experts)
    shares = p / p.sum(dim=1, keepdim=True) if sigmoid else p
    loss = experts * (counts.double() / (tokens * choices) * shares.mean(dim=0)).sum()
    return ids, weights, counts, loss


@pytest.mark.parametrize("sigmoid", [0, 1])
@pytest.mark.parametrize("renormalize", [0, 1])
@pytest.mark.parametrize("tokens,choices,experts", [(1, 1, 1), (17, 2, 8), (30, 8, 64), (9, 32, 40)])
def test_route(tokens, choices, experts, sigmoid, renormalize):
    library = load_reference()
    torch.manual_seed(1)
    logits = torch.randn(tokens, experts, dtype=torch.float64, requires_grad=True)
    ids, weights, counts, loss = published_route(logits, choices, sigmoid, renormalize)
    d_weights = torch.randn(tokens, choices, dtype=torch.float64)
    d_loss = 1.7
    ((weights * d_weights).sum() + d_loss * loss).backward()

    arguments = sizes(tokens, choices, experts) + [ctypes.c_int(sigmoid), ctypes.c_int(renormalize)]
    got_ids, got_counts = torch.empty_like(ids), torch.empty_like(counts)
    got_weights, got_loss = torch.empty(tokens, choices, dtype=torch.float64), torch.empty(1, dtype=torch.float64)
    data = pointer(logits.detach())
    library.reference_moe_route(*arguments, data, *map(pointer, (got_ids, got_weights, got_counts, got_loss)))
    assert torch.equal(got_ids, ids)
    assert torch.equal(got_counts, counts)
    close(got_weights, weights.detach())
    close(got_loss[0], loss.detach())
    d_logits = torch.empty(tokens, experts, dtype=torch.float64)
    library.reference_moe_route_backward(
        *arguments, data, pointer(got_ids), pointer(d_weights), ctypes.c_double(d_loss), pointer(d_logits)
    )
    close(d_logits, logits.grad)
