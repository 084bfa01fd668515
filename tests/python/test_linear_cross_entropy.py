"""tigon.linear_cross_entropy against PyTorch's cross entropy."""

import battery
import numpy as np
import pytest
import tigon
import torch
import torch.nn.functional as F

TOKENS, WIDTH, CLASSES = 37, 24, 53
WANTED = ["x", "weight", "bias"]


def tensors(dtype=torch.float32, shape=(TOKENS,), width=WIDTH, classes=CLASSES, ignored=5):
    torch.manual_seed(11)
    target = torch.randint(0, classes, shape)
    target.view(-1)[:ignored] = -100
    return {
        "x": torch.randn(*shape, width).to(dtype), "weight": torch.randn(classes, width).to(dtype),
        "bias": torch.randn(classes).to(dtype), "target": target
    }


def formula(x, weight, target, bias=None, reduction="none", softcap=0.0, inverse_temperature=1.0, z_loss=0.0,
            label_smoothing=0.0, class_weight=None, token_weight=None, extra=()):
    z = x @ weight.T + (0 if bias is None else bias)
    z = inverse_temperature * (softcap * torch.tanh(z / softcap) if softcap else z)
    shape, target = target.shape, target.reshape(-1)
    flat = z.reshape(-1, z.shape[-1])
    kept = target != -100
    log_p = torch.log_softmax(flat, -1)
    lse = torch.where(kept, torch.logsumexp(flat, -1), 0.0)
    loss = F.cross_entropy(flat, target, reduction="none", label_smoothing=label_smoothing,
                           weight=None if class_weight is None else class_weight.double())
    loss = loss + z_loss * lse**2
    if token_weight is not None:
        loss = loss * token_weight.reshape(-1)
    entropy = torch.where(kept, -(log_p.exp() * log_p).sum(-1), 0.0)
    found = {"loss": loss.view(shape), "lse": lse.view(shape), "entropy": entropy.view(shape)}
    return tuple(found[n] for n in ("loss", *extra))


def per_token(**options):
    """The function and the formula with the same options, all differentiable outputs per token."""
    def mine(**inputs):
        out = tigon.linear_cross_entropy(reduction="none", extra=("lse", "entropy"), **options, **inputs)
        return out.loss, out.lse, out.entropy

    plain = {n: v for n, v in options.items() if n != "keep_logits"}
    return mine, lambda **inputs: formula(extra=("lse", "entropy"), **plain, **inputs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(TOKENS,), (3, 13)])
def test_formula(dtype, shape):
    battery.against_formula(*per_token(), tensors(dtype, shape), WANTED)


CLASS_WEIGHT = torch.linspace(0.1, 2, CLASSES)
OPTIONS = [{"softcap": 4.0, "inverse_temperature": 0.7}, {"label_smoothing": 0.1, "z_loss": 0.02},
           {"class_weight": CLASS_WEIGHT, "token_weight": torch.linspace(-1, 2, TOKENS),
            "label_smoothing": 0.2}, {"keep_logits": True}, {"keep_logits": 4 * TOKENS * 20, "softcap": 3.0},]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda o: "-".join(o))
def test_options(options):
    battery.against_formula(*per_token(**options), tensors(), WANTED)


def test_autograd():
    battery.all_of(*per_token(), tensors(), WANTED)


def test_kept_logits_change_no_bit():
    results = [battery.gradients(per_token(keep_logits=kept)[0], tensors(), WANTED)[1] for kept in (False, True)]
    for name in WANTED:
        assert torch.equal(*(r[name] for r in results))


@pytest.mark.parametrize("class_weight", [None, CLASS_WEIGHT])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_reductions_are_torchs(reduction, class_weight):
    made = tensors()

    def theirs(x, weight, bias, target):
        weights = None if class_weight is None else class_weight.double()
        return F.cross_entropy(F.linear(x, weight, bias), target, weight=weights, reduction=reduction)

    battery.against_formula(lambda **i: tigon.linear_cross_entropy(reduction=reduction, class_weight=class_weight, **i),
                            theirs, made, WANTED)


def test_further_outputs():
    made = tensors()
    out = tigon.linear_cross_entropy(**made, reduction="none", extra=("nll", "argmax", "correct"))
    logits = F.linear(made["x"], made["weight"], made["bias"])
    kept = made["target"] != -100
    assert out.lse is None and out.entropy is None
    assert torch.equal(out.argmax, torch.where(kept, logits.argmax(-1), -1))
    assert torch.equal(out.correct, (out.argmax == made["target"]).float() * kept)
    torch.testing.assert_close(out.nll, F.cross_entropy(logits, made["target"], reduction="none"))
    inputs = battery.leaves(made, WANTED)
    out = tigon.linear_cross_entropy(**inputs, extra=("nll", "argmax", "correct"))
    assert out.loss.requires_grad and not out.nll.requires_grad and not out.correct.requires_grad


def test_layouts():
    """Rows of a wider matrix, a column of targets, transposed weights: the same bits as their copies."""
    made = tensors()
    wide = torch.cat([made["x"], made["x"]], 1)[:, :WIDTH]
    column = torch.stack([made["target"], made["target"]], 1)[:, 0]
    turned = made["weight"].T.contiguous().T
    one = tigon.linear_cross_entropy(wide, turned, column, made["bias"])
    assert torch.equal(one, tigon.linear_cross_entropy(**made))
    assert torch.equal(one, tigon.linear_cross_entropy(**{**made, "target": made["target"].int()}))


def test_padded_vocabulary_and_no_tokens():
    made = tensors()
    made["target"] %= 50
    padded = tigon.linear_cross_entropy(**made, vocab_size=50)
    exact = tigon.linear_cross_entropy(made["x"], made["weight"][:50], made["target"], made["bias"][:50])
    torch.testing.assert_close(padded, exact)
    x = torch.zeros(0, WIDTH, requires_grad=True)
    loss = tigon.linear_cross_entropy(x, made["weight"], torch.zeros(0, dtype=torch.int64), reduction="sum")
    loss.backward()
    assert loss == 0 and x.grad.shape == (0, WIDTH)


def test_shards():
    """Two shards, merged, are the whole: outputs and gradients."""
    made = tensors()
    x, weight, bias, target = (made[n] for n in ("x", "weight", "bias", "target"))
    inputs = battery.leaves(made, WANTED)
    whole = tigon.linear_cross_entropy(**inputs, reduction="none", extra=("lse", "entropy", "argmax"))
    d_loss, d_lse, d_entropy = battery.upstream((whole.loss, whole.lse, whole.entropy))
    torch.autograd.backward((whole.loss, whole.lse, whole.entropy), (d_loss, d_lse, d_entropy))
    bounds = [(0, 20), (20, CLASSES)]
    partials = torch.stack([
        tigon.linear_cross_entropy_partial(x, weight[a:b], target, bias[a:b], vocab_begin=a, vocab_size=CLASSES)
        for a, b in bounds
    ])
    merged = tigon.linear_cross_entropy_merge(partials, target, vocab_size=CLASSES, extra=("lse", "entropy", "argmax"))
    for name in ("loss", "lse", "entropy", "argmax"):
        torch.testing.assert_close(getattr(merged, name), getattr(whole, name))
    dx = torch.zeros_like(x)
    for a, b in bounds:
        part, d_weight, d_bias = tigon.linear_cross_entropy_backward(x, weight[a:b], target, merged.lse, d_loss,
                                                                     bias[a:b], vocab_begin=a, vocab_size=CLASSES,
                                                                     entropy=merged.entropy, d_lse=d_lse,
                                                                     d_entropy=d_entropy)
        dx += part
        torch.testing.assert_close(d_weight, inputs["weight"].grad[a:b])
        torch.testing.assert_close(d_bias, inputs["bias"].grad[a:b])
    torch.testing.assert_close(dx, inputs["x"].grad)
    sums = torch.ones(CLASSES, WIDTH), torch.ones(CLASSES)
    tigon.linear_cross_entropy_backward(x, weight, target, merged.lse, d_loss, bias, entropy=merged.entropy,
                                        d_lse=d_lse, d_entropy=d_entropy, out=sums)
    torch.testing.assert_close(sums[0], 1 + inputs["weight"].grad)
    torch.testing.assert_close(sums[1], 1 + inputs["bias"].grad)


def test_module():
    torch.manual_seed(0)
    linear = torch.nn.Linear(WIDTH, CLASSES)
    mine = tigon.LinearCrossEntropy(WIDTH, CLASSES, bias=True, label_smoothing=0.1)
    mine.linear.load_state_dict(linear.state_dict())
    made = tensors()
    loss = mine(made["x"], made["target"])
    torch.testing.assert_close(loss, F.cross_entropy(linear(made["x"]), made["target"], label_smoothing=0.1))
    loss.backward()
    assert mine.weight.grad.shape == (CLASSES, WIDTH) and mine.bias.grad.shape == (CLASSES,)


def test_autocast():
    inputs = battery.leaves(tensors(), WANTED)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = tigon.linear_cross_entropy(**inputs)
    low = {n: t.bfloat16() if n in WANTED else t for n, t in tensors().items()}
    assert loss.dtype == torch.float32 and torch.equal(loss, tigon.linear_cross_entropy(**low))
    loss.backward()
    assert all(inputs[n].grad.dtype == torch.float32 for n in WANTED)


@pytest.mark.parametrize("options", [{}, {"keep_logits": True, "extra": ("lse", "argmax")}])
def test_compile(options):
    def function(**inputs):
        out = tigon.linear_cross_entropy(**inputs, **options)
        return (out.loss, out.lse) if options else out

    battery.compiled(function, [tensors(shape=shape) for shape in ((6, 5), (9, 4))], WANTED)


def test_operator_is_registered_whole():
    made = battery.leaves(tensors(), WANTED)
    arguments = (made["x"], made["weight"], made["bias"], made["target"], None, None, -100, 0, 1.0, 0.0, 0.0, 0.0, 6, 0,
                 0)
    torch.library.opcheck(torch.ops.tigon.linear_cross_entropy.default, arguments)


def test_numpy():
    made = tensors()
    out = tigon.linear_cross_entropy(**{n: t.numpy() for n, t in made.items()}, reduction="none", extra=("lse",))
    assert isinstance(out.loss, np.ndarray) and out.nll is None
    np.testing.assert_array_equal(out.loss, tigon.linear_cross_entropy(**made, reduction="none").numpy())


def test_bad_target_is_recorded():
    made = tensors(ignored=0)
    made["target"][9] = CLASSES + 7
    context = tigon.Context()
    assert context.check() is None
    loss = tigon.linear_cross_entropy(**made, reduction="none", context=context)
    record = context.check()
    assert loss[9] == 0
    assert record == tigon.Record("INVALID_ARGUMENT", 0, 9, CLASSES + 7, "tigon_linear_cross_entropy", "target")
    context.clear()
    assert context.check() is None


def test_errors():
    made = tensors()
    for text, change in [
        ("tigon_linear_cross_entropy: weight: expected shape", {"weight": torch.randn(CLASSES, WIDTH + 1)}),
        ("tigon_linear_cross_entropy: bias: expected shape", {"bias": torch.randn(CLASSES + 1)}),
        ("tigon_linear_cross_entropy: label_smoothing", {"label_smoothing": 2.0}),
        ("tigon_linear_cross_entropy: target: expected dtype", {"target": made["target"].float()}),
        ("target: expected shape", {"target": made["target"][1:]}),
        ("tigon_linear_cross_entropy: x: expected dtype", {"x": made["x"].double()}),
        ("reduction: expected", {"reduction": "average"}), ("extra: expected", {"extra": ("logits",)})
    ]:
        with pytest.raises(ValueError) as caught:
            tigon.linear_cross_entropy(**{**made, **change})
        assert text in str(caught.value), (text, str(caught.value))
