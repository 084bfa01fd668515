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


def pointer(tensor):
    return None if tensor is None else ctypes.c_void_p(tensor.data_ptr())


def published(x, weight, bias, target, ignore_index, inverse_temperature, z_loss):
    logits = inverse_temperature * (x @ weight.T + (0 if bias is None else bias))
    log_p = torch.log_softmax(logits, dim=-1)
    kept = target != ignore_index
    nll = torch.nn.functional.cross_entropy(logits, target, reduction="none", ignore_index=ignore_index)
    lse = torch.where(kept, torch.logsumexp(logits, dim=-1), 0.0)
    entropy = torch.where(kept, -(log_p.exp() * log_p).sum(dim=-1), 0.0)
    return nll + z_loss * lse**2, nll, lse, entropy


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("inverse_temperature,z_loss", [(1.0, 0.0), (0.7, 0.01), (3.0, 0.1)])
@pytest.mark.parametrize("upstream", [(1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 1, 1)])
@pytest.mark.parametrize("tokens,width,vocabulary,ignored", [(1, 1, 2, 0), (17, 9, 33, 0), (40, 16, 101, 13)])
def test_oracle(with_bias, inverse_temperature, z_loss, upstream, tokens, width, vocabulary, ignored):
    library = load_reference()
    generator = torch.Generator().manual_seed(tokens * 31 + vocabulary)

    def normal(*shape):
        return torch.randn(*shape, dtype=torch.float64, generator=generator)

    x = normal(tokens, width).requires_grad_()
    weight = normal(vocabulary, width).requires_grad_()
    bias = normal(vocabulary).requires_grad_() if with_bias else None
    target = torch.randint(0, vocabulary, (tokens,), generator=generator)
    target[:ignored] = -100
    gradients = [normal(tokens) if wanted else None for wanted in upstream]

    outputs = published(x, weight, bias, target, -100, inverse_temperature, z_loss)
    objective = sum((g * o).sum() for g, o in zip(gradients, (outputs[0], outputs[2], outputs[3])) if g is not None)
    inputs = [x, weight] + ([bias] if with_bias else [])
    expected = torch.autograd.grad(objective, inputs)

    got = [torch.full((tokens,), float("nan"), dtype=torch.float64) for _ in range(4)]
    sizes = [ctypes.c_int64(n) for n in (tokens, width, vocabulary)]
    options = [ctypes.c_int64(-100), ctypes.c_double(inverse_temperature), ctypes.c_double(z_loss)]
    tensors = [pointer(t) for t in (x, weight, bias, target)]
    library.reference_linear_cross_entropy(*sizes, *tensors, *options, *[pointer(t) for t in got])
    for mine, theirs in zip(got, outputs):
        torch.testing.assert_close(mine, theirs.detach(), rtol=1e-11, atol=1e-11)

    grads = [torch.full_like(t, float("nan")) for t in inputs]
    library.reference_linear_cross_entropy_backward(
        *sizes, *tensors, *options, *[pointer(g) for g in gradients], *[pointer(g) for g in grads],
        *([] if with_bias else [None]))
    for mine, theirs in zip(grads, expected):
        torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-10)
