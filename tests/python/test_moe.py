"""tigon.moe and tigon.moe_route against the formulas, in float64."""

import battery
import numpy as np
import pytest
import tigon
import torch
import torch.nn.functional as F
from tigon import _library

EXPERTS, WIDTH, INNER = 5, 12, 7
WANTED = ["x", "topk_weights", "gate", "up", "down"]


def tensors(tokens=19, choices=2, dtype=torch.float32, low=0):
    torch.manual_seed(1)
    made = {
        "x": torch.randn(tokens, WIDTH), "topk_weights": torch.rand(tokens, choices),
        "gate": torch.randn(EXPERTS, INNER, WIDTH), "up": torch.randn(EXPERTS, INNER, WIDTH),
        "down": torch.randn(EXPERTS, WIDTH, INNER)
    }
    made = {n: t.to(dtype) for n, t in made.items()}
    return {**made, "topk_ids": torch.randint(low, EXPERTS, (tokens, choices))}


def formula(x, topk_ids, topk_weights, gate, up, down, on_input=False):
    out = 0 * x
    for j in range(topk_ids.shape[1]):
        expert = topk_ids[:, j].clamp(min=0)
        s = (topk_weights[:, j] * (topk_ids[:, j] >= 0))[:, None]
        read = s * x if on_input else x
        g, u = (torch.einsum("tid,td->ti", m[expert], read) for m in (gate, up))
        y = torch.einsum("tdi,ti->td", down[expert], F.silu(g) * u)
        out = out + (y if on_input else s * y)
    return out


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_formula(dtype):
    battery.against_formula(tigon.moe, formula, tensors(dtype=dtype), WANTED)


def test_autograd():
    battery.all_of(tigon.moe, formula, tensors(low=-1), WANTED)


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("on_input", [False, True])
def test_options(recompute, on_input):
    battery.against_formula(lambda **i: tigon.moe(recompute=recompute, weights_on_input=on_input, **i),
                            lambda **i: formula(on_input=on_input, **i), tensors(), WANTED)


def test_weight_layouts():
    made = tensors()
    expected = battery.gradients(tigon.moe, made, WANTED)

    def fused(x, topk_ids, topk_weights, gate, up, down):
        return tigon.moe(x, topk_ids, topk_weights, torch.cat([gate, up], 1), None, down)

    def transposed(x, topk_ids, topk_weights, gate, up, down):
        turned = (m.transpose(1, 2).contiguous() for m in (gate, up, down))
        return tigon.moe(x, topk_ids, topk_weights, *turned, weight_layout="transposed")

    for function in (fused, transposed):
        outputs, found = battery.gradients(function, made, WANTED)
        torch.testing.assert_close(outputs[0], expected[0][0])
        for name in WANTED:
            torch.testing.assert_close(found[name], expected[1][name])


def test_shapes_and_limits():
    made = tensors(tokens=12)
    out = tigon.moe(**made)
    folded = {n: t.view(3, 4, -1) if n in ("x", "topk_ids", "topk_weights") else t for n, t in made.items()}
    assert torch.equal(tigon.moe(**folded), out.view(3, 4, -1))
    every_other = torch.stack([made["x"], made["x"]], 2).flatten(1)[:, ::2]
    assert torch.equal(tigon.moe(**{**made, "x": every_other}), out)
    empty = tigon.moe(**{n: t[:0] if n in ("x", "topk_ids", "topk_weights") else t for n, t in made.items()})
    assert empty.shape == (0, WIDTH)
    context = tigon.Context()
    limited = tigon.moe(**made, row_limit=10, context=context)
    assert torch.equal(limited[:5], out[:5]) and not limited[5:].any()
    assert context.check().argument == "row_limit" and context.check().value == 24


def test_bad_id_is_recorded():
    made = tensors()
    made["topk_ids"][3, 1] = EXPERTS
    context = tigon.Context()
    inputs = battery.leaves(made, WANTED)
    out = tigon.moe(**inputs, context=context)
    assert context.check() == tigon.Record("INVALID_ARGUMENT", 0, 7, EXPERTS, "tigon_moe", "topk_ids")
    out.sum().backward()
    assert inputs["topk_weights"].grad[3, 1] == 0


def test_autocast():
    inputs = battery.leaves(tensors(), WANTED)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = tigon.moe(**inputs)
    low = {n: t.bfloat16() if n in ("x", "gate", "up", "down") else t for n, t in tensors().items()}
    assert out.dtype == torch.bfloat16 and torch.equal(out, tigon.moe(**low))
    out.float().sum().backward()
    assert all(inputs[n].grad.dtype == torch.float32 for n in WANTED)


@pytest.mark.parametrize("recompute", [False, True])
def test_compile(recompute):
    battery.compiled(lambda **i: tigon.moe(recompute=recompute, **i), [tensors(tokens) for tokens in (14, 23)], WANTED)


def test_operators_are_registered_whole():
    made = battery.leaves(tensors(), WANTED)
    inputs = [made[n] for n in ("x", "topk_ids", "topk_weights", "gate", "up", "down")]
    # Without the saved block, whose padding holds anything.
    torch.library.opcheck(torch.ops.tigon.moe.default, (*inputs, 0, False, 0, False, 0))
    with torch.no_grad():
        out, saved = torch.ops.tigon.moe(*inputs, 0, False, 0, True, 0)
    query = _library.function("tigon_moe_saved")
    assert query(0, *inputs[:5], None, inputs[5], out, None, 0, 0, 0, 0) == saved.numel()
    logits = torch.randn(6, 8, requires_grad=True)
    # The fourth check adds the outputs up, which fails where the first holds integers.
    torch.library.opcheck(torch.ops.tigon.moe_route.default,
                          (logits, None, 2, 0, True, 0, 0, 0, 1.0, torch.int64, True, 0),
                          test_utils=("test_schema", "test_autograd_registration", "test_faketensor"))


# --- router ----------------------------------------------------------------------------------------------------------


def route_formula(logits, k, score="softmax", renormalize=False, bias=None, scale=1.0):
    p = torch.softmax(logits, -1) if score == "softmax" else torch.sigmoid(logits)
    ids = torch.topk(p if bias is None else p + bias, k, dim=-1)[1]
    weights = p.gather(-1, ids)
    if renormalize:
        weights = weights / weights.sum(-1, keepdim=True)
    experts = logits.shape[-1]
    flat, shares = ids.reshape(-1), (p / p.sum(-1, keepdim=True)).reshape(-1, experts)
    counts = torch.bincount(flat, minlength=experts)
    balance = experts * (counts.double() / flat.numel() * shares.mean(0)).sum()
    return ids, weights * scale, counts, balance, torch.logsumexp(logits, -1).square().mean()


def route_tensors(tokens=21, experts=8, dtype=torch.float32):
    torch.manual_seed(2)
    return {"logits": torch.randn(tokens, experts).to(dtype)}


def differentiable(**options):
    def mine(logits):
        out = tigon.moe_route(logits, 3, **options)
        return out.topk_weights, out.balance_loss, out.z_loss

    names = {"selection_bias": "bias", "routed_scale": "scale"}
    plain = {names.get(n, n): v for n, v in options.items()}
    return mine, lambda logits: tuple(route_formula(logits, 3, **plain)[i] for i in (1, 3, 4))


@pytest.mark.parametrize("score", ["softmax", "sigmoid"])
@pytest.mark.parametrize("renormalize", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_route(score, renormalize, dtype):
    mine, exact = differentiable(score=score, renormalize=renormalize, routed_scale=2.5)
    battery.against_formula(mine, exact, route_tensors(dtype=dtype), ["logits"])
    made = route_tensors(dtype=dtype)["logits"]
    out = tigon.moe_route(made, 3, score=score, ids_dtype=torch.int32)
    ids, _, counts, _, _ = route_formula(made.double(), 3, score)
    assert torch.equal(out.topk_ids.long(), ids) and torch.equal(out.counts.long(), counts)
    assert out.topk_ids.dtype == out.counts.dtype == torch.int32


def test_route_with_bias_and_groups():
    made = route_tensors(tokens=9)["logits"]
    bias = 0.3 * torch.randn(8)
    mine, exact = differentiable(score="sigmoid", selection_bias=bias, renormalize=True)
    battery.against_formula(mine, exact, {"logits": made}, ["logits"])
    out = tigon.moe_route(made, 2, n_group=4, topk_group=1)
    assert (out.topk_ids // 2 == made.argmax(-1, keepdim=True) // 2).all()


def test_route_autograd():
    battery.all_of(*differentiable(renormalize=True), route_tensors(), ["logits"])
    for used in range(3):
        mine, exact = differentiable()
        battery.against_formula(lambda logits: mine(logits)[used], lambda logits: exact(logits)[used], route_tensors(),
                                ["logits"])


def test_route_without_losses_and_shapes():
    made = route_tensors(tokens=12)["logits"].requires_grad_()
    out = tigon.moe_route(made, 3, losses=False)
    assert out.counts is None and out.balance_loss is None and out.z_loss is None
    folded = tigon.moe_route(made.view(3, 4, 8), 3)
    assert torch.equal(folded.topk_weights, out.topk_weights.view(3, 4, 3)) and folded.balance_loss.dim() == 0
    assert not folded.topk_ids.requires_grad and not folded.counts.requires_grad
    out.topk_weights.sum().backward()


def test_route_compile():
    battery.compiled(differentiable(renormalize=True)[0], [route_tensors(tokens) for tokens in (14, 23)], ["logits"])


def test_numpy():
    made = tensors()
    out = tigon.moe(**{n: t.numpy() for n, t in made.items()})
    np.testing.assert_array_equal(out, tigon.moe(**made).numpy())
    logits = route_tensors()["logits"]
    route = tigon.moe_route(logits.numpy(), 2)
    assert isinstance(route, tigon.MoeRoute) and isinstance(route.topk_ids, np.ndarray)
    np.testing.assert_array_equal(route.topk_weights, tigon.moe_route(logits, 2).topk_weights.numpy())


def test_errors():
    made = tensors()
    for text, call in [("tigon_moe: down: expected shape", lambda: tigon.moe(**{**made, "down": made["down"][:, :-1]})),
                       ("tigon_moe: topk_ids: expected dtype",
                        lambda: tigon.moe(**{**made, "topk_ids": made["topk_ids"].float()})),
                       ("tigon_moe: topk_weights: expected shape",
                        lambda: tigon.moe(**{**made, "topk_weights": made["topk_weights"][:, :1]})),
                       ("tigon_moe: x: expected dtype", lambda: tigon.moe(**{**made, "x": made["x"].double()})),
                       ("weight_layout: expected one of", lambda: tigon.moe(**made, weight_layout="interleaved")),
                       ("tigon_moe_route: ", lambda: tigon.moe_route(torch.randn(3, 4), 5)),
                       ("score: expected one of", lambda: tigon.moe_route(torch.randn(3, 4), 2, score="relu"))]:
        with pytest.raises(ValueError) as caught:
            call()
        assert text in str(caught.value), (text, str(caught.value))
