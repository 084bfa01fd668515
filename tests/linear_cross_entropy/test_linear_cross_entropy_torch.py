"""The oracle of linear cross entropy against PyTorch float64 autograd of the published formula."""

import ctypes
import glob
import os

import pytest
import torch


def load_reference():
    path = os.environ.get("TIGON_REFERENCE_LIBRARY")
    if not path:
        root = os.environ.get("TIGON_SOURCE_DIR", os.path.join(os.path.dirname(__file__), "..", ".."))
        found = sorted(glob.glob(os.path.join(root, "build", "*", "libtigon_reference.so")), key=os.path.getmtime)
        if not found:
            pytest.skip("libtigon_reference.so is not built")
        path = found[-1]
    return ctypes.CDLL(path)


class Problem(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int64) for name in ("tokens", "width", "vocabulary", "classes", "ignore_index")]
    _fields_ += [(name, ctypes.c_void_p) for name in ("x", "weight", "bias", "target", "class_weight", "token_weight")]
    _fields_ += [(name, ctypes.c_double)
                 for name in ("inverse_temperature", "softcap", "z_loss", "label_smoothing")]
    _fields_ += [("dz_kind", ctypes.c_int)]  # of the plain composition


class Outputs(ctypes.Structure):
    _fields_ = [(name, ctypes.c_void_p) for name in ("loss", "nll", "lse", "entropy", "argmax")]


class Gradients(ctypes.Structure):
    _fields_ = [(name, ctypes.c_void_p) for name in ("d_loss", "d_lse", "d_entropy", "dx", "dweight", "dbias", "walks")]


def pointer(tensor):
    return None if tensor is None else tensor.data_ptr()


def published(x, weight, bias, target, options, class_weight, token_weight):
    logits = x @ weight.T + (0 if bias is None else bias)
    if options["softcap"]:
        logits = options["softcap"] * torch.tanh(logits / options["softcap"])
    logits = options["inverse_temperature"] * logits
    log_p = torch.log_softmax(logits, dim=-1)
    kept = target != -100
    nll = torch.nn.functional.cross_entropy(logits, target, reduction="none")
    loss = torch.nn.functional.cross_entropy(
        logits, target, reduction="none", weight=class_weight, label_smoothing=options["label_smoothing"])
    lse = torch.where(kept, torch.logsumexp(logits, dim=-1), 0.0)
    entropy = torch.where(kept, -(log_p.exp() * log_p).sum(dim=-1), 0.0)
    loss = (1 if token_weight is None else token_weight) * (loss + options["z_loss"] * lse**2)
    return loss, nll, lse, entropy, torch.where(kept, logits.argmax(dim=-1), -1)


OPTIONS = [
    {},
    {"inverse_temperature": 0.7, "z_loss": 0.01},
    {"inverse_temperature": 3.0, "z_loss": 0.1},
    {"softcap": 2.0},
    {"softcap": 30.0, "inverse_temperature": 1.5},
    {"label_smoothing": 0.1},
    {"label_smoothing": 1.0, "z_loss": 0.1},
    {"softcap": 1.0, "label_smoothing": 0.3, "inverse_temperature": 1.4, "z_loss": 0.05},
]


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("weights", ["none", "class", "class and token"])
@pytest.mark.parametrize("upstream", [(1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 1, 1)])
@pytest.mark.parametrize("tokens,width,classes,padding,ignored", [(1, 1, 2, 0, 0), (17, 9, 33, 0, 0), (40, 16, 101, 27, 13)])
def test_oracle(with_bias, options, weights, upstream, tokens, width, classes, padding, ignored):
    library = load_reference()
    options = {"inverse_temperature": 1.0, "softcap": 0.0, "z_loss": 0.0, "label_smoothing": 0.0, **options}
    generator = torch.Generator().manual_seed(tokens * 31 + classes)

    def normal(*shape):
        return torch.randn(*shape, dtype=torch.float64, generator=generator)

    x = normal(tokens, width).requires_grad_()
    weight = normal(classes, width).requires_grad_()
    bias = normal(classes).requires_grad_() if with_bias else None
    target = torch.randint(0, classes, (tokens,), generator=generator)
    target[:ignored] = -100
    class_weight = None
    if "class" in weights:
        class_weight = normal(classes).abs()
        class_weight[::5] = 0
    token_weight = normal(tokens) if "token" in weights else None
    gradients = [normal(tokens) if wanted else None for wanted in upstream]

    outputs = published(x, weight, bias, target, options, class_weight, token_weight)
    objective = sum((g * o).sum() for g, o in zip(gradients, (outputs[0], outputs[2], outputs[3])) if g is not None)
    inputs = [x, weight] + ([bias] if with_bias else [])
    expected = [g.detach() for g in torch.autograd.grad(objective, inputs)]

    # Rows of padding hold NaN and get gradient 0.
    vocabulary = classes + padding
    table = torch.full((vocabulary, width), float("nan"), dtype=torch.float64)
    table[:classes] = weight.detach()
    table_bias = None
    if with_bias:
        table_bias = torch.full((vocabulary,), float("nan"), dtype=torch.float64)
        table_bias[:classes] = bias.detach()
    problem = Problem(tokens, width, vocabulary, classes, -100,
                      *[pointer(t) for t in (x, table, table_bias, target, class_weight, token_weight)],
                      *[options[n] for n in ("inverse_temperature", "softcap", "z_loss", "label_smoothing")])

    got = [torch.full((tokens,), float("nan"), dtype=torch.float64) for _ in range(4)]
    argmax = torch.full((tokens,), -7)
    library.reference_linear_cross_entropy(ctypes.byref(problem),
                                           ctypes.byref(Outputs(*[pointer(t) for t in got], pointer(argmax))))
    for mine, theirs in zip(got, outputs):
        torch.testing.assert_close(mine, theirs.detach(), rtol=1e-11, atol=1e-11)
    assert torch.equal(argmax, outputs[4])

    grads = [torch.full(s, float("nan"), dtype=torch.float64)
             for s in ((tokens, width), (vocabulary, width), (vocabulary,))]
    library.reference_linear_cross_entropy_backward(
        ctypes.byref(problem), ctypes.byref(Gradients(*[pointer(g) for g in gradients], *[pointer(g) for g in grads])))
    for mine, theirs in zip(grads, expected):
        rows = theirs.shape[0]
        torch.testing.assert_close(mine[:rows], theirs, rtol=1e-10, atol=1e-10)
        assert (mine[rows:] == 0).all()
