"""Checks that every differentiable function of the Python face has to pass, whatever it computes.

A case is a function of tensors by name, the same formula in float64 PyTorch, and the tensors. The function's outputs
are compared with the formula's, and so are the gradients for a random upstream gradient of each output.
"""

import itertools

import pytest
import torch

# Relative to the largest expected value of the tensor.
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}


def as_tuple(outputs):
    return outputs if isinstance(outputs, tuple) else (outputs,)


def close(got, expected, tolerance, name):
    got, expected = got.detach().double(), expected.detach().double()
    assert got.shape == expected.shape, (name, got.shape, expected.shape)
    scale = max(1e-6, expected.abs().max().item()) if expected.numel() else 1
    error = (got - expected).abs().max().item() if expected.numel() else 0
    assert error <= tolerance * scale, f"{name}: error {error:.3g}, largest value {scale:.3g}"


def leaves(tensors, wanted):
    """Fresh leaves: those in `wanted` need a gradient."""
    return {
        name: t.detach().clone().requires_grad_(name in wanted) if t.is_floating_point() else t.clone()
        for name, t in tensors.items()
    }


def upstream(outputs, seed=7):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(o.shape, generator=generator).to(o.dtype) for o in outputs]


def gradients(function, tensors, wanted, seed=7):
    """The outputs, and the gradients by name."""
    inputs = leaves(tensors, wanted)
    outputs = as_tuple(function(**inputs))
    if not wanted:
        return outputs, {}
    found = torch.autograd.grad(outputs, [inputs[n] for n in wanted], upstream(outputs, seed))
    return outputs, dict(zip(wanted, found))


def against_formula(function, formula, tensors, wanted, tolerance=None):
    outputs, found = gradients(function, tensors, wanted)
    exact = {name: t.double() if t.is_floating_point() else t for name, t in tensors.items()}
    inputs = leaves(exact, wanted)
    expected = as_tuple(formula(**inputs))
    rounded = [g.double() for g in upstream(outputs)]
    by_hand = torch.autograd.grad(expected, [inputs[n] for n in wanted], rounded)
    for i, (got, exact_output) in enumerate(zip(outputs, expected, strict=True)):
        close(got, exact_output, tolerance or TOLERANCE[got.dtype], f"output {i}")
    for name, exact_gradient in zip(wanted, by_hand):
        assert found[name].dtype == tensors[name].dtype, name
        close(found[name], exact_gradient, tolerance or TOLERANCE[tensors[name].dtype], f"gradient of {name}")


def same_gradients_however_asked(function, tensors, wanted):
    """Any subset of the gradients has the bits of all of them, and only those that are asked for come."""
    _, full = gradients(function, tensors, wanted)
    for count in range(len(wanted) + 1):
        for subset in itertools.combinations(wanted, count):
            outputs, found = gradients(function, tensors, subset)
            assert any(o.requires_grad for o in outputs) == bool(subset)
            for name in subset:
                assert torch.equal(found[name], full[name]), (subset, name)


def backward_twice(function, tensors, wanted):
    """retain_graph gives the same bits again, and changes neither the inputs, nor the outputs, nor the upstream
    gradients."""
    inputs = leaves(tensors, wanted)
    outputs = as_tuple(function(**inputs))
    given = upstream(outputs)
    before = [t.detach().clone() for t in (*inputs.values(), *outputs, *given)]
    asked = [inputs[n] for n in wanted]
    first = torch.autograd.grad(outputs, asked, given, retain_graph=True)
    kept = [g.clone() for g in first]
    second = torch.autograd.grad(outputs, asked, given)
    for name, one, copy, two in zip(wanted, first, kept, second):
        assert torch.equal(one, copy) and torch.equal(one, two), name
    for old, new in zip(before, (*inputs.values(), *outputs, *given)):
        assert torch.equal(old, new.detach())


def shared_by_two_consumers(function, tensors, wanted, tolerance=1e-5):
    """An output, and an input, used twice: the gradients add up."""
    inputs = leaves(tensors, wanted)
    outputs = as_tuple(function(**inputs))
    again = as_tuple(function(**inputs))
    one, two = upstream(outputs, 1), upstream(outputs, 2)
    total = sum((o * a).sum() + (o * b).sum() + (p * a).sum() for o, p, a, b in zip(outputs, again, one, two))
    total.backward()
    _, first = gradients(function, tensors, wanted, 1)
    _, second = gradients(function, tensors, wanted, 2)
    for name in wanted:
        close(inputs[name].grad, 2 * first[name] + second[name], tolerance, name)


def expanded_upstream(function, tensors, wanted):
    """sum().backward() hands over a gradient of stride 0."""
    inputs = leaves(tensors, wanted)
    outputs = as_tuple(function(**inputs))
    found = torch.autograd.grad([o.sum() for o in outputs], [inputs[n] for n in wanted])
    inputs = leaves(tensors, wanted)
    outputs = as_tuple(function(**inputs))
    ones = [torch.ones_like(o) for o in outputs]
    for name, a, b in zip(wanted, found, torch.autograd.grad(outputs, [inputs[n] for n in wanted], ones)):
        assert torch.equal(a, b), name


def no_second_derivative(function, tensors, wanted):
    """A derivative of a gradient is an error, not a silent zero."""
    inputs = leaves(tensors, wanted)
    outputs = as_tuple(function(**inputs))
    found = torch.autograd.grad(outputs, [inputs[n] for n in wanted], upstream(outputs), create_graph=True)
    total = sum((g * g).sum() for g in found)
    with pytest.raises(RuntimeError, match="has no second derivative"):
        total.backward()


def all_of(function, formula, tensors, wanted, tolerance=None):
    against_formula(function, formula, tensors, wanted, tolerance)
    same_gradients_however_asked(function, tensors, wanted)
    backward_twice(function, tensors, wanted)
    shared_by_two_consumers(function, tensors, wanted)
    expanded_upstream(function, tensors, wanted)
    no_second_derivative(function, tensors, wanted)


def compiled(function, cases, wanted, backend="aot_eager"):
    """One graph without a break, compiled once, gives the bits of eager for every shape."""
    torch._dynamo.reset()
    graph = torch.compile(function, fullgraph=True, dynamic=True, backend=backend)
    for number, tensors in enumerate(cases):
        with torch._dynamo.config.patch(error_on_recompile=number > 0):
            outputs, found = gradients(graph, tensors, wanted)
        expected, by_eager = gradients(function, tensors, wanted)
        for got, want in zip(outputs, expected, strict=True):
            assert torch.equal(got, want)
        for name in wanted:
            assert torch.equal(found[name], by_eager[name]), name
