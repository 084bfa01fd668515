"""Mixture of experts: the SwiGLU expert MLP on given expert ids and weights."""

import torch
from torch import Tensor

from . import _library
from ._arrays import through_torch
from ._operation import Operation, choice, handle_of, needs_gradient, to_autocast, unit_last

_forward = _library.function("tigon_moe")
_backward = _library.function("tigon_moe_backward")

LAYOUTS = {"rows": 0, "transposed": 1}


def _pair(gate, up):
    """gate, up and gate_up of the C ABI."""
    return (None, None, gate) if up is None else (gate, up, None)


def _saved_bytes(x, ids, down, layout, row_limit):
    """At least tigon_moe_saved's answer (more for empty problems): under torch.compile shapes are symbols."""
    experts, inner = down.shape[0], down.shape[1 if layout else 2]
    routes = rows = ids.shape[0] * ids.shape[1]
    if row_limit:
        rows = min(rows, row_limit)
    if not x.is_cuda:
        return (2 * inner * rows * x.element_size() + 255) // 256 * 256
    rows += 63 * min(rows, experts)
    parts = [4 * inner * rows, *[4 * (experts + 1)] * 3, 4 * rows, 4 * routes, rows]
    return sum((bytes + 255) // 256 * 256 for bytes in parts)


def _allocate(x, ids, weights, gate, up, down, layout, on_input, row_limit, keep, context):
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    saved = x.new_empty(_saved_bytes(x, ids, down, layout, row_limit), dtype=torch.uint8) if keep else None
    inputs = (unit_last(x), unit_last(ids), unit_last(weights), unit_last(gate), unit_last(up), unit_last(down), layout,
              on_input, row_limit, context)
    return inputs, (out, saved)


def _call(inputs, outputs):
    x, ids, weights, gate, up, down, layout, on_input, row_limit, context = inputs
    _forward(context, x, ids, weights, *_pair(gate, up), down, *outputs, 0, layout, on_input, row_limit)


def _save(ctx, inputs, output):
    x, ids, weights, gate, up, down, layout, on_input, row_limit, keep, context = inputs
    ctx.save_for_backward(x, ids, weights, gate, up, down, output[1] if keep else None)
    ctx.options = (layout, on_input, row_limit, context)


def _gradients(ctx, backward, d_out, *_):
    needs = ctx.needs_input_grad
    order = (0, 2, 3, 4, 5)
    found = backward(d_out, *ctx.saved_tensors, *ctx.options, *(needs[i] for i in order))
    result = [None] * 11
    for i, gradient in zip(order, found):
        result[i] = gradient if needs[i] else None
    return tuple(result)


def _allocate_backward(d_out, x, ids, weights, gate, up, down, saved, layout, on_input, row_limit, context, *wanted):
    outputs = tuple(
        torch.empty_like(t, memory_format=torch.contiguous_format) if want else None
        for t, want in zip((x, weights, gate, up, down), wanted))
    inputs = (unit_last(d_out), unit_last(x), unit_last(ids), unit_last(weights), unit_last(gate), unit_last(up),
              unit_last(down), saved, layout, on_input, row_limit, context)
    return inputs, outputs


def _call_backward(inputs, outputs):
    d_out, x, ids, weights, gate, up, down, saved, layout, on_input, row_limit, context = inputs
    dx, d_weights, d_gate, d_up, d_down = outputs
    gates = (None, None, d_gate) if up is None else (d_gate, d_up, None)
    _backward(context, 0, d_out, x, ids, weights, *_pair(gate, up), down, saved, dx, d_weights, *gates, d_down, 0,
              layout, on_input, row_limit)


_operation = Operation(
    "moe", "(Tensor x, Tensor topk_ids, Tensor topk_weights, Tensor gate, Tensor? up, Tensor down, int layout, bool "
    "on_input, SymInt row_limit, bool keep, int context) -> (Tensor, Tensor)",
    "(Tensor d_out, Tensor x, Tensor topk_ids, Tensor topk_weights, Tensor gate, Tensor? up, Tensor down, Tensor? "
    "saved, int layout, bool on_input, SymInt row_limit, int context, bool want_x, bool want_weights, bool want_gate, "
    "bool want_up, bool want_down) -> (Tensor, Tensor, Tensor, Tensor, Tensor)", 1, _allocate, _call,
    _allocate_backward, _call_backward, _save, _gradients)


def moe(x, topk_ids, topk_weights, gate, up, down, *, weight_layout="rows", weights_on_input=False, row_limit=0,
        recompute=False, context=None):
    """Mixture of SwiGLU experts. For each token t and choice j, with expert e = topk_ids[t, j] and s =
    topk_weights[t, j]:

        y = down_e (silu(gate_e x_t) * (up_e x_t))           out_t = sum over j of s * y

    x: (..., D); topk_ids: (..., k), int32 or int64; topk_weights: (..., k), k up to 32. gate, up: (E, I, D), down:
    (E, D, I); with up None, gate holds both, (E, 2I, D), gate rows first. weight_layout "transposed": (E, D, I), (E,
    D, 2I) and (E, I, D). float32, float16 or bfloat16. Pre-activations, activations and y are kept in x's dtype, sums
    are float32 and out is rounded once, to x's dtype.

    weights_on_input: s scales what the expert reads (Llama 4). Ids below 0 are skipped; every other route is
    computed, nothing is dropped, unless row_limit bounds the number of routes. recompute: backward computes the
    pre-activations again instead of keeping 2 I of x's elements a route.

    Differentiable in x, topk_weights, gate, up and down; weight gradients are summed in float32 and rounded once.
    Under autocast x and the expert weights are cast as matrix products cast theirs. NumPy and JAX arrays give arrays,
    without gradients. Raises ValueError for what breaks these rules, NotImplementedError where the device has no
    backend; ids of E and above are skipped and noted in the context.
"""
    if not isinstance(x, Tensor):
        return through_torch(moe, x, topk_ids, topk_weights, gate, up, down, weight_layout=weight_layout,
                             weights_on_input=weights_on_input, row_limit=row_limit, context=context)
    layout = choice("weight_layout", weight_layout, LAYOUTS)
    x, gate, up, down = to_autocast(x.device.type, x, gate, up, down)
    shape, choices = x.shape, topk_ids.shape[-1]
    keep = needs_gradient(x, topk_weights, gate, up, down)
    arguments = (x.reshape(-1, shape[-1]), topk_ids.reshape(-1, choices),
                 topk_weights.reshape(-1,
                                      topk_weights.shape[-1]), gate, up, down, layout, weights_on_input, row_limit, keep
                 and not recompute, handle_of(context))
    if torch.compiler.is_compiling():
        out = _operation.compiled(*arguments)[0]
    else:
        out = (_operation.apply if keep else _operation.run)(*arguments)[0]
    return out.view(shape)
