"""Plain projection on Tigon's packed matrix product."""

import torch
from torch import Tensor

from . import _library
from ._arrays import through_torch
from ._operation import Operation, contiguous, handle_of, needs_gradient, to_autocast, unit_last

_forward = _library.function("tigon_linear")
_backward = _library.function("tigon_linear_backward")


def _allocate(x, weight, bias, context):
    return (unit_last(x), unit_last(weight), contiguous(bias), context), (x.new_empty(x.shape[0], weight.shape[0]),)


def _call(inputs, outputs):
    x, weight, bias, context = inputs
    _forward(context, x, weight, bias, outputs[0])


def _save(ctx, inputs, output):
    x, weight, bias, context = inputs
    ctx.save_for_backward(x, weight)
    ctx.options = (None if bias is None else bias.dtype, context)


def _gradients(ctx, backward, dy):
    bias_dtype, context = ctx.options
    return (*(g if n else None for g, n in zip(
        backward(dy, *ctx.saved_tensors, bias_dtype, *ctx.needs_input_grad[:3], context), ctx.needs_input_grad)), None)


def _allocate_backward(dy, x, weight, bias_dtype, want_x, want_weight, want_bias, context):
    dx = torch.empty_like(x, memory_format=torch.contiguous_format) if want_x else None
    d_weight = torch.empty_like(weight, memory_format=torch.contiguous_format) if want_weight else None
    d_bias = dy.new_empty(weight.shape[0], dtype=bias_dtype) if want_bias else None
    return (unit_last(dy), unit_last(x), unit_last(weight), context), (dx, d_weight, d_bias)


def _call_backward(inputs, outputs):
    dy, x, weight, context = inputs
    _backward(context, 0, 0, dy, x, weight, *outputs)


_operation = Operation(
    "linear", "(Tensor x, Tensor weight, Tensor? bias, int context) -> Tensor",
    "(Tensor dy, Tensor x, Tensor weight, ScalarType? bias_dtype, bool want_x, bool want_weight, bool want_bias, int "
    "context) -> (Tensor, Tensor, Tensor)", 1, _allocate, _call, _allocate_backward, _call_backward, _save, _gradients)


def linear(x, weight, bias=None, *, context=None):
    """x weight^T + bias: x (..., D), weight (N, D), bias None or (N), result (..., N) in x's dtype.

    float32, float16 or bfloat16 in any mix; products and sums in float32, results rounded once. Differentiable in x,
    weight and bias. Under autocast the tensors are cast as torch.nn.functional.linear casts them. A NumPy or JAX
    array gives an array, without gradients. Raises ValueError for what breaks these rules, NotImplementedError
    without a backend."""
    if not isinstance(x, Tensor):
        return through_torch(linear, x, weight, bias, context=context)
    x, weight, bias = to_autocast(x.device.type, x, weight, bias)
    arguments = (x.reshape(-1, x.shape[-1]), weight, bias, handle_of(context))
    if torch.compiler.is_compiling():
        y = _operation.compiled(*arguments)
    elif needs_gradient(x, weight, bias):
        (y,) = _operation.apply(*arguments)
    else:
        (y,) = _operation.run(*arguments)
    return y.view(*x.shape[:-1], weight.shape[0])
