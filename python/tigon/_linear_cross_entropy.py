"""Classifier projection and cross entropy in one, without the logits in memory."""

import typing

import torch
from torch import Tensor

from . import _library
from ._arrays import through_torch
from ._operation import Operation, contiguous, handle_of, needs_gradient, to_autocast, unit_last

_forward = _library.function("tigon_linear_cross_entropy")
_backward = _library.function("tigon_linear_cross_entropy_backward")
_merge = _library.function("tigon_linear_cross_entropy_merge")

# The outputs besides loss that a caller may want, as bits.
EXTRA = {"nll": 1, "lse": 2, "entropy": 4, "argmax": 8, "correct": 16}


class LinearCrossEntropyOutput(typing.NamedTuple):
    """What linear_cross_entropy gives where `extra` names more than the loss; None where it does not."""

    loss: Tensor
    nll: typing.Optional[Tensor]
    lse: typing.Optional[Tensor]
    entropy: typing.Optional[Tensor]
    argmax: typing.Optional[Tensor]
    correct: typing.Optional[Tensor]


def _per_token(x, extra):
    """nll, lse, entropy, argmax and correct, where they are wanted."""
    return tuple(
        x.new_empty(x.shape[0], dtype=torch.int64 if name == "argmax" else torch.float32) if extra & bit else None
        for name, bit in EXTRA.items())


def _allocate(x, weight, bias, target, class_weight, token_weight, ignore_index, vocab_size, inverse_temperature,
              z_loss, softcap, label_smoothing, extra, saved_bytes, context):
    loss = x.new_empty(x.shape[0], dtype=torch.float32)
    saved = x.new_empty(saved_bytes, dtype=torch.uint8) if saved_bytes else None
    inputs = (unit_last(x), unit_last(weight), contiguous(bias), target, contiguous(class_weight), token_weight,
              ignore_index, vocab_size, inverse_temperature, z_loss, softcap, label_smoothing, context)
    return inputs, (loss, *_per_token(x, extra), saved)


def _call(inputs, outputs):
    (x, weight, bias, target, class_weight, token_weight, ignore_index, vocab_size, inverse_temperature, z_loss,
     softcap, label_smoothing, context) = inputs
    loss, nll, lse, entropy, argmax, correct, saved = outputs
    _forward(context, 1, x, weight, bias, target, loss, nll, lse, entropy, ignore_index, 0, inverse_temperature, z_loss,
             softcap, label_smoothing, class_weight, token_weight, argmax, correct, None, vocab_size, saved)


def _save(ctx, inputs, output):
    (x, weight, bias, target, class_weight, token_weight, ignore_index, vocab_size, inverse_temperature, z_loss,
     softcap, label_smoothing, extra, saved_bytes, context) = inputs
    loss, nll, lse, entropy, argmax, correct, saved = output
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(*(t for t, bit in ((nll, 1), (argmax, 8), (correct, 16)) if extra & bit))
    ctx.save_for_backward(x, weight, bias, target, class_weight, token_weight, lse, entropy if extra & 4 else None,
                          saved if saved_bytes else None)
    ctx.options = (ignore_index, vocab_size, inverse_temperature, z_loss, softcap, label_smoothing, context)


def _gradients(ctx, backward, d_loss, d_nll=None, d_lse=None, d_entropy=None, *_):
    needs = ctx.needs_input_grad
    if d_loss is None and d_lse is None and d_entropy is None:
        return (None,) * 15
    x, weight, bias, target, class_weight, token_weight, lse, entropy, saved = ctx.saved_tensors
    found = backward(x, weight, bias, target, class_weight, token_weight, lse, None if d_entropy is None else entropy,
                     d_loss, d_lse, d_entropy, saved, *ctx.options, needs[0], needs[1], needs[2])
    return (*(g if need else None for g, need in zip(found, needs)), *(None,) * 12)


def _allocate_backward(x, weight, bias, target, class_weight, token_weight, lse, entropy, d_loss, d_lse, d_entropy,
                       saved, ignore_index, vocab_size, inverse_temperature, z_loss, softcap, label_smoothing, context,
                       want_x, want_weight, want_bias):
    compact = torch.contiguous_format
    dx = torch.empty_like(x, memory_format=compact) if want_x else None
    d_weight = torch.empty_like(weight, memory_format=compact) if want_weight else None
    d_bias = torch.empty_like(bias, memory_format=compact) if want_bias else None
    inputs = (unit_last(x), unit_last(weight), contiguous(bias), target, contiguous(class_weight), token_weight, lse,
              entropy, d_loss, d_lse, d_entropy, saved, ignore_index, vocab_size, inverse_temperature, z_loss, softcap,
              label_smoothing, context)
    return inputs, (dx, d_weight, d_bias)


def _call_backward(inputs, outputs):
    (x, weight, bias, target, class_weight, token_weight, lse, entropy, d_loss, d_lse, d_entropy, saved, ignore_index,
     vocab_size, inverse_temperature, z_loss, softcap, label_smoothing, context) = inputs
    _backward(context, 1, x, weight, bias, target, lse, entropy, d_loss, d_lse, d_entropy, *outputs, ignore_index, 0,
              inverse_temperature, z_loss, softcap, label_smoothing, class_weight, token_weight, vocab_size, 0, saved)


_OPTIONS = ("SymInt ignore_index, SymInt vocab_size, float inverse_temperature, float z_loss, float softcap, "
            "float label_smoothing, ")
_operation = Operation(
    "linear_cross_entropy",
    "(Tensor x, Tensor weight, Tensor? bias, Tensor target, Tensor? class_weight, Tensor? token_weight, " + _OPTIONS +
    "int extra, SymInt saved_bytes, int context) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    "(Tensor x, Tensor weight, Tensor? bias, Tensor target, Tensor? class_weight, Tensor? token_weight, Tensor lse, "
    "Tensor? entropy, Tensor? d_loss, Tensor? d_lse, Tensor? d_entropy, Tensor? saved, " + _OPTIONS +
    "int context, bool want_x, bool want_weight, bool want_bias) -> (Tensor, Tensor, Tensor)", 6, _allocate, _call,
    _allocate_backward, _call_backward, _save, _gradients)

# --- what users call -------------------------------------------------------------------------------------------------


def _extra_bits(extra):
    bits = 0
    for name in extra:
        if name not in EXTRA:
            raise ValueError(f"extra: expected names of {', '.join(EXTRA)}, got {name!r}")
        bits |= EXTRA[name]
    return bits


def _mean(loss, target, ignore_index, class_weight):
    """torch.nn.functional.cross_entropy's mean: over the tokens that are not ignored, by their targets' weights."""
    kept = target != ignore_index
    if class_weight is None:
        return loss.sum() / kept.sum()
    return loss.sum() / class_weight[torch.where(kept, target, 0).long()].mul(kept).sum()


def linear_cross_entropy(x, weight, target, bias=None, *, reduction="mean", ignore_index=-100, label_smoothing=0.0,
                         class_weight=None, token_weight=None, softcap=0.0, inverse_temperature=1.0, z_loss=0.0,
                         vocab_size=0, extra=(), keep_logits=False, context=None):
    """Projection on the vocabulary and cross entropy; the logits never live in memory.

        u       = x weight^T + bias
        z       = inverse_temperature * softcap * tanh(u / softcap)        without softcap: inverse_temperature * u
        lse     = log sum_v exp(z_v)           nll = lse - z_target        entropy = lse - sum_v p_v z_v
        loss    = token_weight * ((1 - label_smoothing) * w_target * nll
                                  + label_smoothing / C * sum_v w_v (lse - z_v) + z_loss * lse^2)
                  with w = class_weight, or 1

    x: (..., D); weight: (V, D); bias: None or (V): float32, float16 or bfloat16, in any mix. target: (...) int32 or
    int64. class_weight: (V) float32; token_weight: (...) float32. Logits, their gradients and sums are float32, but that
    gradients of logits are rounded to bfloat16 where x and weight are; gradients are rounded once, to their tensor's
    dtype. Tokens with target ignore_index have 0 everywhere (argmax -1). vocab_size: the number of classes where weight
    has rows of padding behind them, which count nowhere (0: all rows).

    reduction "mean" (as torch: divided by the tokens that are not ignored, or by the class weights of their targets),
    "sum", or "none". extra names further outputs per token, "nll", "lse", "entropy", "argmax" (int64), "correct"
    (float32); with it the result is a LinearCrossEntropyOutput. Differentiable in x, weight and bias, through loss,
    lse and entropy.

    keep_logits trades memory for time: True keeps every logit (4 T V bytes) for backward, a number keeps as many as
    fit into that many bytes. The results have the same bits.

    Under autocast x, weight and bias are cast as torch.nn.functional.linear casts them. NumPy and JAX arrays give
    arrays, without gradients. Raises ValueError for what breaks these rules, NotImplementedError where the device has
    no backend; a target out of range is treated like an ignored one and noted in the context.
"""
    if not isinstance(x, Tensor):
        return through_torch(linear_cross_entropy, x, weight, target, bias, reduction=reduction,
                             ignore_index=ignore_index, label_smoothing=label_smoothing, class_weight=class_weight,
                             token_weight=token_weight, softcap=softcap, inverse_temperature=inverse_temperature,
                             z_loss=z_loss, vocab_size=vocab_size, extra=extra, context=context)
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(f"reduction: expected 'mean', 'sum' or 'none', got {reduction!r}")
    if tuple(target.shape) != tuple(x.shape[:-1]):
        raise ValueError(f"target: expected shape {tuple(x.shape[:-1])}, got {tuple(target.shape)}")
    bits = _extra_bits(extra)
    x, weight, bias = to_autocast(x.device.type, x, weight, bias)
    keep = needs_gradient(x, weight, bias)
    leading = x.shape[:-1]
    x, target = x.reshape(-1, x.shape[-1]), target.reshape(-1)
    if token_weight is not None:
        token_weight = token_weight.reshape(-1)
    saved_bytes = 4 * x.shape[0] * weight.shape[0] if keep_logits is True else int(keep_logits)
    arguments = (x, weight, bias, target, class_weight, token_weight, ignore_index, vocab_size, inverse_temperature,
                 z_loss, softcap, label_smoothing, bits | EXTRA["lse"] if keep else bits, saved_bytes if keep else 0,
                 handle_of(context))
    if torch.compiler.is_compiling():
        outputs = _operation.compiled(*arguments)
    else:
        outputs = (_operation.apply if keep else _operation.run)(*arguments)
    loss = outputs[0]
    if reduction == "none":
        loss = loss.view(leading)
    else:
        loss = loss.sum() if reduction == "sum" else _mean(loss, target, ignore_index, class_weight)
    if not bits:
        return loss
    return LinearCrossEntropyOutput(
        loss, *(o.view(leading) if bits & bit else None for o, bit in zip(outputs[1:], EXTRA.values())))


class LinearCrossEntropy(torch.nn.Module):
    """A classifier and its loss: holds weight (vocabulary, width) and, with bias, bias (vocabulary), as
    torch.nn.Linear does and initialised like it; forward(x, target) is tigon.linear_cross_entropy with the options of
    the constructor."""
    def __init__(self, in_features, out_features, bias=False, device=None, dtype=None, **options):
        super().__init__()
        self.linear = torch.nn.Linear(in_features, out_features, bias, device, dtype)
        self.options = options

    @property
    def weight(self):
        return self.linear.weight

    @property
    def bias(self):
        return self.linear.bias

    def forward(self, x, target, token_weight=None):
        return linear_cross_entropy(x, self.weight, target, self.bias, token_weight=token_weight, **self.options)


# --- vocabulary shards -----------------------------------------------------------------------------------------------


def linear_cross_entropy_partial(x, weight, target, bias=None, *, vocab_begin, vocab_size, ignore_index=-100,
                                 class_weight=None, softcap=0.0, inverse_temperature=1.0, context=None):
    """What the classes [vocab_begin, vocab_begin + V) of vocab_size say about each token: the (T, 8) float32 partials
    of tigon/linear_cross_entropy.h, for linear_cross_entropy_merge. x: (T, D). No gradients: see
    linear_cross_entropy_backward. Gather partials as they are: one column holds integers."""
    partial = x.new_empty(x.shape[0], 8, dtype=torch.float32)
    _forward(handle_of(context), 1, unit_last(x.detach()), unit_last(weight.detach()), contiguous(bias), target, None,
             None, None, None, ignore_index, vocab_begin, inverse_temperature, 0.0, softcap, 0.0,
             contiguous(class_weight), None, None, None, partial, vocab_size, None)
    return partial


def linear_cross_entropy_merge(partials, target, *, vocab_size, ignore_index=-100, label_smoothing=0.0,
                               class_weight=None, token_weight=None, z_loss=0.0, extra=("lse",), context=None):
    """The per-token outputs from the partials (N, T, 8) of N shards that hold all classes together."""
    bits = _extra_bits(extra)
    loss = partials.new_empty(partials.shape[1])
    rest = _per_token(loss, bits)
    _merge(handle_of(context), 1, partials, target, contiguous(class_weight), token_weight, None, loss, *rest,
           ignore_index, vocab_size, z_loss, label_smoothing)
    return LinearCrossEntropyOutput(loss, *rest)


def linear_cross_entropy_backward(x, weight, target, lse, d_loss=None, bias=None, *, vocab_begin=0, vocab_size=0,
                                  entropy=None, d_lse=None, d_entropy=None, ignore_index=-100, label_smoothing=0.0,
                                  class_weight=None, token_weight=None, softcap=0.0, inverse_temperature=1.0,
                                  z_loss=0.0, out=None, context=None):
    """The gradients (dx, d_weight, d_bias) of a shard, with lse and entropy of all classes, from the merge.

    dx is the shard's part, in float32: its sum over the shards is the gradient. d_weight and d_bias are the shard's
    own. out: float32 (d_weight, d_bias) to which the gradients are added, d_bias None without a bias.
"""
    dx = torch.empty(x.shape, dtype=torch.float32, device=x.device)
    if out is None:
        d_weight = torch.empty(weight.shape, dtype=weight.dtype, device=weight.device)
        d_bias = None if bias is None else torch.empty_like(bias)
    else:
        d_weight, d_bias = out
    _backward(handle_of(context), 1, unit_last(x.detach()), unit_last(weight.detach()), contiguous(bias), target, lse,
              entropy, d_loss, d_lse, d_entropy, dx, d_weight,
              d_bias, ignore_index, vocab_begin, inverse_temperature, z_loss, softcap, label_smoothing,
              contiguous(class_weight), token_weight, vocab_size, out is not None, None)
    return dx, d_weight, d_bias
