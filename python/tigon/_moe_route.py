"""The router of a mixture of experts."""

import typing

import torch
from torch import Tensor

from . import _library
from ._arrays import through_torch
from ._operation import Operation, choice, contiguous, handle_of, needs_gradient, unit_last

_forward = _library.function("tigon_moe_route")
_backward = _library.function("tigon_moe_route_backward")

SCORES = {"softmax": 0, "sigmoid": 1}


class MoeRoute(typing.NamedTuple):
    """What moe_route gives; the last three are None without losses."""

    topk_ids: Tensor
    topk_weights: Tensor
    counts: typing.Optional[Tensor]
    balance_loss: typing.Optional[Tensor]
    z_loss: typing.Optional[Tensor]


def _allocate(logits, bias, choices, score, renormalize, n_group, topk_group, group_top, scale, ids_dtype, losses,
              context):
    tokens, experts = logits.shape
    ids = logits.new_empty((tokens, choices), dtype=ids_dtype)
    weights = logits.new_empty((tokens, choices), dtype=torch.float32)
    counts = logits.new_empty((experts,), dtype=ids_dtype) if losses else None
    balance, z = (logits.new_empty((1,), dtype=torch.float32) if losses else None for _ in range(2))
    inputs = (unit_last(logits), contiguous(bias), score, renormalize, n_group, topk_group, group_top, scale, context)
    return inputs, (ids, weights, counts, balance, z)


def _call(inputs, outputs):
    logits, bias, score, renormalize, n_group, topk_group, group_top, scale, context = inputs
    ids, weights, counts, balance, z = outputs
    _forward(context, score, renormalize, logits, ids, weights, counts, balance, bias, n_group, topk_group, group_top,
             scale, z)


def _save(ctx, inputs, output):
    logits, bias, choices, score, renormalize, n_group, topk_group, group_top, scale, ids_dtype, losses, context = (
        inputs)
    ids, weights, counts, balance, z = output
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(*((ids, counts) if losses else (ids,)))
    ctx.save_for_backward(logits, ids)
    ctx.options = (score, renormalize, scale, losses, context)


def _gradients(ctx, backward, d_ids, d_weights, d_counts, d_balance, d_z):
    score, renormalize, scale, losses, context = ctx.options
    if not losses:
        d_balance = d_z = None
    result = (None,) * 12
    if not ctx.needs_input_grad[0] or (d_weights is None and d_balance is None and d_z is None):
        return result
    found = backward(*ctx.saved_tensors, d_weights, d_balance, d_z, score, renormalize, scale, context)
    return (found[0] if isinstance(found, tuple) else found, *result[1:])


def _allocate_backward(logits, ids, d_weights, d_balance, d_z, score, renormalize, scale, context):
    d_logits = torch.empty_like(logits, memory_format=torch.contiguous_format)
    inputs = (unit_last(logits), ids, unit_last(d_weights), d_balance, d_z, score, renormalize, scale, context)
    return inputs, (d_logits,)


def _call_backward(inputs, outputs):
    logits, ids, d_weights, d_balance, d_z, score, renormalize, scale, context = inputs
    _backward(context, score, renormalize, logits, ids, d_weights, d_balance, *outputs, d_z, scale)


_operation = Operation(
    "moe_route",
    "(Tensor logits, Tensor? selection_bias, int choices, int score, bool renormalize, int n_group, int topk_group, "
    "int group_top, float scale, ScalarType ids_dtype, bool losses, int context) -> (Tensor, Tensor, Tensor, Tensor, "
    "Tensor)",
    "(Tensor logits, Tensor topk_ids, Tensor? d_weights, Tensor? d_balance, Tensor? d_z, int score, bool renormalize, "
    "float scale, int context) -> Tensor", 5, _allocate, _call, _allocate_backward, _call_backward, _save, _gradients)


def moe_route(logits, k, *, score="softmax", renormalize=False, selection_bias=None, n_group=0, topk_group=0,
              group_top=0, routed_scale=1.0, losses=True, ids_dtype=torch.int64, context=None):
    """The k best experts of each token, in falling order, and their weights.

        p            = softmax(logits) or sigmoid(logits)                       in float32
        topk_weights = p of the chosen experts, with renormalize divided by their sum, times routed_scale
        balance_loss = E * sum_e f_e P_e          f_e: share of routes to e, P_e: mean of p_e (sigmoid: of p_e / sum p)
        z_loss       = mean of logsumexp(logits)^2

    logits: (..., E), float32, float16 or bfloat16; k up to 32, E up to 4096. Experts are chosen by their logits, with
    selection_bias (E) float32 by p + bias (DeepSeek-V3), and only from the topk_group best of n_group groups of
    neighbours, whose score is the sum of their group_top best (0: 2 with a bias, else 1).

    Returns MoeRoute(topk_ids (..., k), topk_weights (..., k) float32, counts (E), balance_loss, z_loss); the last
    three are None where losses is False, the two losses are scalars. ids_dtype is that of topk_ids and counts, int32
    or int64. Differentiable in logits, through topk_weights and both losses; the choice is a constant. Autocast
    changes nothing: scores are float32. On CUDA tensors nothing waits for the host, so that calls can be captured.
    NumPy and JAX arrays give arrays, without gradients. Raises ValueError for what breaks these rules,
    NotImplementedError where the device has no backend.
"""
    if not isinstance(logits, Tensor):
        return through_torch(moe_route, logits, k, score=score, renormalize=renormalize, selection_bias=selection_bias,
                             n_group=n_group, topk_group=topk_group, group_top=group_top, routed_scale=routed_scale,
                             losses=losses, ids_dtype=ids_dtype, context=context)
    number = choice("score", score, SCORES)
    if routed_scale == 0:
        raise ValueError("routed_scale: expected another number than 0")
    shape = logits.shape[:-1]
    arguments = (logits.reshape(-1, logits.shape[-1]), selection_bias, k, number, renormalize, n_group, topk_group,
                 group_top, routed_scale, ids_dtype, losses, handle_of(context))
    if torch.compiler.is_compiling():
        ids, weights, counts, balance, z = _operation.compiled(*arguments)
    else:
        ids, weights, counts, balance, z = (_operation.apply if needs_gradient(logits) else _operation.run)(*arguments)
    ids, weights = ids.view(*shape, k), weights.view(*shape, k)
    return MoeRoute(ids, weights, counts, balance[0], z[0]) if losses else MoeRoute(ids, weights, None, None, None)
