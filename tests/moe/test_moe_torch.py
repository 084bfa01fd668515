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


def fields(kind, names):
    return [(name, kind) for name in names.split()]


class Experts(ctypes.Structure):
    _fields_ = fields(
        ctypes.c_int64, "tokens choices width inner experts weights_on_input row_limit"
    ) + fields(ctypes.c_void_p, "x ids weights gate up down")


class Gradients(ctypes.Structure):
    _fields_ = fields(ctypes.c_void_p, "dx d_weights d_gate d_up d_down")


class Router(ctypes.Structure):
    _fields_ = (
        fields(ctypes.c_int64, "tokens choices experts sigmoid renormalize n_group topk_group group_top")
        + [("routed_scale", ctypes.c_double)]
        + fields(ctypes.c_void_p, "logits bias")
    )


def close(got, expected):
    torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-12)


def published_experts(x, ids, weights, gate, up, down, on_input, row_limit):
    """sum_j s_j down_e(silu(gate_e x) * up_e x), token by token, or with s_j on x (Llama 4). An id outside the experts adds
    nothing, nor do routes after the first row_limit valid ones."""
    rows, routes = [], 0
    for t in range(x.shape[0]):
        row = torch.zeros_like(x[t])
        for j in range(ids.shape[1]):
            e = int(ids[t, j])
            if not 0 <= e < gate.shape[0]:
                continue
            routes += 1
            if row_limit and routes > row_limit:
                continue
            read = x[t] * weights[t, j] if on_input else x[t]
            y = down[e] @ (F.silu(gate[e] @ read) * (up[e] @ read))
            row = row + (y if on_input else weights[t, j] * y)
        rows.append(row)
    return torch.stack(rows) + 0 * x


@pytest.mark.parametrize("on_input,row_limit", [(0, 0), (1, 0), (0, 5), (1, 7), (1, 1)])
@pytest.mark.parametrize("low,high", [(0, 5), (-2, 7), (3, 4)])
@pytest.mark.parametrize("tokens,choices,width,inner", [(1, 1, 1, 1), (9, 2, 12, 7), (13, 3, 5, 16)])
def test_experts(tokens, choices, width, inner, low, high, on_input, row_limit):
    library = load_reference()
    torch.manual_seed(0)
    experts = 5
    ids = torch.randint(low, high, (tokens, choices))
    shapes = [(tokens, width), (tokens, choices), (experts, inner, width), (experts, inner, width), (experts, width, inner)]
    inputs = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
    x, weights, gate, up, down = inputs
    dout = torch.randn(tokens, width, dtype=torch.float64)
    out = published_experts(x, ids, weights, gate, up, down, on_input, row_limit)
    out.backward(dout)

    data = [pointer(t.detach()) for t in (x, ids, weights, gate, up, down)]
    problem = Experts(tokens, choices, width, inner, experts, on_input, row_limit, *data)
    got = torch.empty(tokens, width, dtype=torch.float64)
    library.reference_moe(ctypes.byref(problem), pointer(got))
    close(got, out.detach())
    gradients = [torch.ones(shape, dtype=torch.float64) for shape in shapes]
    to = Gradients(*map(pointer, gradients))
    library.reference_moe_backward(ctypes.byref(problem), pointer(dout), ctypes.c_int(0), ctypes.byref(to))
    for name, tensor, gradient in zip(("dx", "d_topk_weights", "d_gate", "d_up", "d_down"), inputs, gradients):
        expected = torch.zeros_like(tensor) if tensor.grad is None else tensor.grad
        torch.testing.assert_close(gradient, expected, rtol=1e-10, atol=1e-12, msg=name)
    before = gradients[2].clone()
    library.reference_moe_backward(ctypes.byref(problem), pointer(dout), ctypes.c_int(1), ctypes.byref(to))
    close(gradients[2], 2 * before)


def published_choice(p, bias, choices, n_group, topk_group, group_top):
    """Ids of the top k of the biased scores, within the best groups (DeepSeek-V2 and V3)."""
    scores = p.detach() if bias is None else p.detach() + bias
    if n_group > 1:
        tokens, experts = p.shape
        top = group_top or (2 if bias is not None else 1)
        sums = scores.view(tokens, n_group, -1).topk(top, dim=-1)[0].sum(dim=-1)
        groups = sums.topk(topk_group, dim=-1)[1]
        mask = torch.zeros_like(sums).scatter_(1, groups, 1).bool()
        mask = mask.repeat_interleave(experts // n_group, dim=1)
        scores = scores.masked_fill(~mask, float("-inf"))
    return torch.topk(scores, choices, dim=1)[1]


def published_route(logits, bias, choices, sigmoid, renormalize, groups, scale):
    """Weights of the chosen experts, the Switch Transformer's balance loss and ST-MoE's z loss."""
    tokens, experts = logits.shape
    p = torch.sigmoid(logits) if sigmoid else torch.softmax(logits, dim=1)
    ids = published_choice(p, bias, choices, *groups)
    weights = p.gather(1, ids)
    if renormalize:
        weights = weights / weights.sum(dim=1, keepdim=True)
    counts = torch.bincount(ids.flatten(), minlength=experts)
    shares = p / p.sum(dim=1, keepdim=True) if sigmoid else p
    loss = experts * (counts.double() / (tokens * choices) * shares.mean(dim=0)).sum()
    z_loss = torch.logsumexp(logits, dim=1).square().mean()
    return ids, weights * (scale or 1), counts, loss, z_loss


ROUTES = [
    # tokens, choices, experts, bias, (n_group, topk_group, group_top), routed_scale
    (1, 1, 1, False, (0, 0, 0), 0.0),
    (17, 2, 8, False, (0, 0, 0), 0.0),
    (30, 8, 64, False, (0, 0, 0), 2.5),
    (9, 32, 40, False, (0, 0, 0), 0.0),
    (12, 1, 16, False, (1, 1, 0), 0.0),
    (17, 2, 8, True, (0, 0, 0), 0.0),
    (15, 8, 256, True, (8, 4, 0), 2.5),
    (15, 6, 160, False, (8, 3, 0), 16.0),
    (20, 3, 24, True, (6, 2, 3), 1.0),
    (20, 3, 24, False, (6, 2, 2), 1.5),
]


@pytest.mark.parametrize("sigmoid", [0, 1])
@pytest.mark.parametrize("renormalize", [0, 1])
@pytest.mark.parametrize("tokens,choices,experts,biased,groups,scale", ROUTES)
def test_route(tokens, choices, experts, biased, groups, scale, sigmoid, renormalize):
    library = load_reference()
    torch.manual_seed(1)
    logits = torch.randn(tokens, experts, dtype=torch.float64, requires_grad=True)
    bias = 0.2 * torch.randn(experts, dtype=torch.float64) if biased else None
    ids, weights, counts, loss, z_loss = published_route(logits, bias, choices, sigmoid, renormalize, groups, scale)
    d_weights = torch.randn(tokens, choices, dtype=torch.float64)
    d_loss, d_z_loss = 1.7, 0.3
    ((weights * d_weights).sum() + d_loss * loss + d_z_loss * z_loss).backward()

    router = Router(tokens, choices, experts, sigmoid, renormalize, *groups, scale, pointer(logits.detach()))
    router.bias = pointer(bias) if biased else None
    got_ids, got_counts = torch.empty_like(ids), torch.empty_like(counts)
    got_weights = torch.empty(tokens, choices, dtype=torch.float64)
    got_loss, got_z = torch.empty(1, dtype=torch.float64), torch.empty(1, dtype=torch.float64)
    library.reference_moe_route_select(ctypes.byref(router), pointer(got_ids))
    assert torch.equal(got_ids, ids)
    outputs = map(pointer, (got_ids, got_weights, got_counts, got_loss, got_z))
    library.reference_moe_route(ctypes.byref(router), *outputs)
    assert torch.equal(got_counts, counts)
    close(got_weights, weights.detach())
    close(got_loss[0], loss.detach())
    close(got_z[0], z_loss.detach())
    d_logits = torch.empty(tokens, experts, dtype=torch.float64)
    library.reference_moe_route_backward(
        ctypes.byref(router), pointer(got_ids), pointer(d_weights), ctypes.c_double(d_loss), ctypes.c_double(d_z_loss),
        pointer(d_logits),
    )
    close(d_logits, logits.grad)
