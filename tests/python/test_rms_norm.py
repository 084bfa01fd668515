"""tigon.rms_norm and its modules against PyTorch."""

import copy
import os

import battery
import numpy as np
import pytest
import tigon
import torch

FLOATS = [torch.float32, torch.bfloat16, torch.float16]


def tensors(*shape, dtype=torch.float32, residual=False, weight=True):
    torch.manual_seed(3)
    made = {"x": torch.randn(shape).to(dtype)}
    if weight:
        made["weight"] = (1 + 0.3 * torch.randn(shape[-1])).to(dtype)
    if residual:
        made["residual"] = torch.randn(shape).to(dtype)
    return made


def formula(x, weight=None, residual=None, eps=1e-6, offset=0.0):
    s = x if residual is None else x + residual
    out = s * torch.rsqrt(s.square().mean(-1, keepdim=True) + eps)
    if weight is not None:
        out = out * (offset + weight)
    return out if residual is None else (out, s)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("weight", [False, True])
@pytest.mark.parametrize("shape", [(33, 40), (2, 3, 5, 17), (9,)])
def test_formula(dtype, residual, weight, shape):
    made = tensors(*shape, dtype=dtype, residual=residual, weight=weight)
    battery.against_formula(tigon.rms_norm, formula, made, list(made))


@pytest.mark.parametrize("residual", [False, True])
def test_autograd(residual):
    made = tensors(4, 6, 24, residual=residual)
    battery.all_of(tigon.rms_norm, formula, made, list(made))


@pytest.mark.parametrize("casting,offset", [("llama", 0.0), ("gemma", 1.0)])
def test_options(casting, offset):
    made = tensors(7, 3, 32, residual=True)

    def function(**inputs):
        return tigon.rms_norm(eps=0.1, casting=casting, offset=offset, **inputs)

    battery.all_of(function, lambda **inputs: formula(eps=0.1, offset=offset, **inputs), made, list(made))


def test_one_of_two_gradients():
    """The normalised rows or the sum may stay unused."""
    made = tensors(5, 16, residual=True)
    for used in (0, 1):
        battery.against_formula(lambda **i: tigon.rms_norm(**i)[used], lambda **i: formula(**i)[used], made,
                                ["x", "residual"])


@pytest.mark.parametrize("dtypes", [("float32", "bfloat16", "float32"), ("bfloat16", "float32", "float16"),
                                    ("float16", "float32", "bfloat16")])
def test_mixed_dtypes(dtypes):
    x, weight, residual = (getattr(torch, d) for d in dtypes)
    made = tensors(12, 48, residual=True)
    made = {n: t.to(d) for (n, t), d in zip(made.items(), (x, weight, residual))}
    for casting in ("gemma", "llama"):
        out, total = tigon.rms_norm(**made, casting=casting)
        assert out.dtype == x and total.dtype == residual
        battery.against_formula(lambda **i: tigon.rms_norm(casting=casting, **i), formula, made, list(made), 2e-2)
    assert tigon.rms_norm(**made, out_dtype=torch.float16, residual_dtype=torch.float32)[0].dtype == torch.float16


@pytest.mark.parametrize("casting", ["gemma", "llama"])
def test_without_autograd(casting):
    made = tensors(6, 3, 40, residual=True, dtype=torch.bfloat16)
    outputs, found = battery.gradients(lambda **i: tigon.rms_norm(casting=casting, **i), made, ["x", "weight"])
    d_out, d_total = battery.upstream(outputs)
    out, total, rstd = tigon.rms_norm_forward(**made, casting=casting)
    dx, d_weight = tigon.rms_norm_backward(d_out, total, made["weight"], rstd, d_residual_out=d_total, casting=casting)
    for got, expected in zip((out, total, dx, d_weight), (*outputs, found["x"], found["weight"])):
        assert torch.equal(got, expected)


LAYOUTS = {
    "columns": lambda t: t.transpose(0, -1).contiguous().transpose(0, -1),
    "heads": lambda t: t.permute(1, 0, 2, 3).contiguous().permute(1, 0, 2, 3),
    "slice": lambda t: torch.cat([t, t, t], dim=-1)[..., :t.shape[-1]], "expanded": lambda t: t[:1].expand(t.shape),
    "every other": lambda t: t.repeat_interleave(2, dim=-1)[..., ::2],
    "batch slice": lambda t: torch.cat([t, t], dim=1)[:, :t.shape[1]]
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("residual", [False, True])
def test_layouts(layout, residual):
    """Strides change no bit, neither of inputs nor of upstream gradients."""
    made = tensors(4, 3, 5, 8, residual=residual)
    change = LAYOUTS[layout]
    laid = {n: change(t) if t.dim() > 1 else t for n, t in made.items()}
    plain = {n: t.contiguous() for n, t in laid.items()}
    results = []
    for given, strided in ((laid, True), (plain, False)):
        inputs = {n: t.detach().requires_grad_() for n, t in given.items()}
        outputs = battery.as_tuple(tigon.rms_norm(**inputs))
        grads = [change(g) for g in battery.upstream(outputs)]
        grads = grads if strided else [g.contiguous() for g in grads]
        results.append([*outputs, *torch.autograd.grad(outputs, list(inputs.values()), grads)])
    for one, two in zip(*results):
        assert torch.equal(one, two)


@pytest.mark.parametrize("shape", [(0, 8), (3, 0, 8), (1, 1, 1), (2, 1, 3, 1, 4)])
def test_small_shapes(shape):
    made = tensors(*shape)
    inputs = battery.leaves(made, list(made))
    out = tigon.rms_norm(**inputs)
    out.sum().backward()
    assert out.shape == shape and inputs["weight"].grad.shape == shape[-1:]
    torch.testing.assert_close(out, formula(**made))


# --- modules ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", [16, (4, 8)])
@pytest.mark.parametrize("eps", [None, 1e-5, 0.0])
def test_module_is_torch_nn_rms_norm(dtype, shape, eps):
    torch.manual_seed(0)
    theirs = torch.nn.RMSNorm(shape, eps=eps, dtype=dtype)
    torch.nn.init.normal_(theirs.weight)
    mine = tigon.RMSNorm(shape, eps=eps, dtype=dtype)
    mine.load_state_dict(theirs.state_dict())
    copy.deepcopy(theirs).load_state_dict(mine.state_dict())
    x = torch.randn(6, 5, *(theirs.normalized_shape)).to(dtype)
    torch.testing.assert_close(mine(x), theirs(x))
    out, total = mine(x, x)
    assert out.shape == x.shape and torch.equal(total, x + x)
    plain = tigon.RMSNorm(shape, elementwise_affine=False)
    assert not plain.state_dict() and plain(x).shape == x.shape
    assert "eps=" in repr(mine)


def test_modules_of_hugging_face():
    """The formulas of LlamaRMSNorm and GemmaRMSNorm, rounding for rounding."""
    x = torch.randn(7, 64).bfloat16()
    llama = tigon.LlamaRMSNorm(64, eps=1e-5, dtype=torch.bfloat16)
    torch.nn.init.normal_(llama.weight)
    wide = x.float()
    hat = (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + llama.variance_epsilon)).to(x.dtype)
    torch.testing.assert_close(llama(x), llama.weight * hat, rtol=0.008, atol=0)
    assert tigon.LlamaRMSNorm(64)(x).dtype == torch.float32  # float32 weight times bfloat16 rows
    gemma = tigon.GemmaRMSNorm(64, dtype=torch.bfloat16)
    assert not gemma.weight.any()
    torch.nn.init.normal_(gemma.weight)
    exact = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + gemma.eps) * (1 + gemma.weight.float())
    torch.testing.assert_close(gemma(x), exact.to(x.dtype), rtol=0.008, atol=0)


# --- autocast, compile, arrays, errors -------------------------------------------------------------------------------


def test_autocast_is_torchs():
    x, weight = torch.randn(5, 32), torch.randn(32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for given in (x, x.bfloat16()):
            mine, theirs = tigon.rms_norm(given, weight), torch.nn.functional.rms_norm(given, (32,), weight, 1e-6)
            assert mine.dtype == given.dtype == theirs.dtype
            torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("residual", [False, True])
def test_compile(residual):
    cases = [tensors(*shape, residual=residual) for shape in ((6, 5, 32), (9, 4, 48))]
    battery.compiled(tigon.rms_norm, cases, list(cases[0]))


@pytest.mark.skipif(not os.environ.get("TIGON_TEST_FULL"), reason="half a minute: runs with TIGON_TEST_FULL=1")
def test_compile_module_with_inductor():
    module = tigon.RMSNorm(32, eps=1e-6)

    def function(x, residual):
        out, total = module(torch.sin(x), residual)
        return out * 2, total

    cases = [tensors(*shape, residual=True, weight=False) for shape in ((6, 32), (9, 32))]
    torch._dynamo.reset()
    graph = torch.compile(function, fullgraph=True, dynamic=True)
    for made in cases:
        got, expected = (battery.gradients(f, made, ["x", "residual"]) for f in (graph, function))
        torch.testing.assert_close(got, expected)


def test_operator_is_registered_whole():
    made = battery.leaves(tensors(3, 4, 16, residual=True), ["x", "residual", "weight"])
    arguments = (made["x"], made["residual"], made["weight"], 1, 1e-6, 0.0, None, None, True, 0)
    torch.library.opcheck(torch.ops.tigon.rms_norm.default, arguments)


def test_numpy():
    made = {n: t.numpy() for n, t in tensors(5, 24, residual=True).items()}
    made["x"].flags.writeable = False
    out, total = tigon.rms_norm(**made)
    assert isinstance(out, np.ndarray) and isinstance(total, np.ndarray)
    np.testing.assert_allclose(out,
                               formula(**{n: torch.from_numpy(np.array(a))
                                          for n, a in made.items()})[0], rtol=1e-5)


def test_jax():
    jnp = pytest.importorskip("jax.numpy", reason="jax is not installed")
    x, weight = jnp.arange(24, dtype=jnp.float32).reshape(3, 8), jnp.ones(8, jnp.bfloat16)
    out = tigon.rms_norm(x, weight)
    assert isinstance(out, type(x))
    np.testing.assert_allclose(out, formula(torch.from_numpy(np.array(x))), rtol=1e-5)


def test_errors():
    x, weight = torch.randn(4, 8), torch.ones(8)
    for error, text, call in [
        (ValueError, "tigon_rms_norm: weight: expected shape (8), got (7)", lambda: tigon.rms_norm(x, torch.ones(7))),
        (ValueError, "tigon_rms_norm: x: expected dtype", lambda: tigon.rms_norm(x.double(), weight)),
        (ValueError, "residual: expected shape (4, H), got (5, 8)",
         lambda: tigon.rms_norm(x, weight, residual=torch.ones(5, 8))),
        (ValueError, "residual: expected shape (2, 2, H), got (4, 8)",
         lambda: tigon.rms_norm(x.view(2, 2, 8), weight, residual=x)),
        (ValueError, "eps: expected a finite number", lambda: tigon.rms_norm(x, weight, eps=-1.0)),
        (ValueError, "casting: expected one of", lambda: tigon.rms_norm(x, weight, casting="torch")),
        (ValueError, "x: expected a last dimension", lambda: tigon.rms_norm(x[:, :0])),
        (ValueError, "x: expected 1 to 16 dimensions", lambda: tigon.rms_norm(torch.tensor(1.0))),
        (TypeError, "eps: expected a number", lambda: tigon.rms_norm(x, weight, eps="1")),
        (TypeError, "expected a torch.Tensor", lambda: tigon.rms_norm([1.0])),
        (RuntimeError, "meta", lambda: tigon.rms_norm(x.to("meta"), weight))
    ]:
        with pytest.raises(error) as caught:
            call()
        assert text in str(caught.value), (text, str(caught.value))
