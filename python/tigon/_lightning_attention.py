"""Lightning Attention: causal linear attention with a constant decay per head."""

import torch
from torch import Tensor

from . import _library
from ._arrays import through_torch
from ._operation import Operation, choice, contiguous, handle_of, needs_gradient, to_autocast, unit_last

_forward = _library.function("tigon_lightning_attention")
_backward = _library.function("tigon_lightning_attention_backward")
_decode = _library.function("tigon_lightning_attention_decode")
_state = _library.function("tigon_lightning_attention_state")
_merge = _library.function("tigon_lightning_attention_merge")
_slopes = _library.function("tigon_lightning_attention_slopes")

SLOPES = {"alibi": 0, "linear": 1}


def _state_of(q, v, cu_seqlens):
    """An empty state of every sequence: (N, HV, V, K) float32."""
    sequences = q.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1
    return q.new_empty((sequences, v.shape[2], v.shape[3], q.shape[3]), dtype=torch.float32)


def _allocate(q, k, v, decay, cu_seqlens, initial_state, scale, want_final, context):
    out = torch.empty_like(v, memory_format=torch.contiguous_format)
    inputs = (unit_last(q), unit_last(k), unit_last(v), contiguous(decay), cu_seqlens, unit_last(initial_state), scale,
              context)
    return inputs, (out, _state_of(q, v, cu_seqlens) if want_final else None)


def _call(inputs, outputs):
    q, k, v, decay, cu_seqlens, initial_state, scale, context = inputs
    _forward(context, scale, q, k, v, decay, cu_seqlens, initial_state, *outputs, None, None, None, None, 0)


def _save(ctx, inputs, output):
    q, k, v, decay, cu_seqlens, initial_state, scale, want_final, context = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(q, k, v, decay, cu_seqlens, initial_state)
    ctx.options = (scale, want_final, context)


def _gradients(ctx, backward, d_out, d_final=None):
    needs = ctx.needs_input_grad
    scale, want_final, context = ctx.options
    d_final = d_final if want_final else None
    if d_out is None and d_final is None:
        return (None,) * 9
    dq, dk, dv, d_initial = backward(d_out, d_final, *ctx.saved_tensors, scale, needs[0], needs[1], needs[2], needs[5],
                                     context)
    return (dq if needs[0] else None, dk if needs[1] else None, dv if needs[2] else None, None, None,
            d_initial if needs[5] else None, None, None, None)


def _allocate_backward(d_out, d_final, q, k, v, decay, cu_seqlens, initial_state, scale, want_q, want_k, want_v,
                       want_initial, context):
    compact = torch.contiguous_format
    outputs = tuple(
        torch.empty_like(t, memory_format=compact) if want else None
        for t, want in ((q, want_q), (k, want_k), (v, want_v), (initial_state, want_initial)))
    d_out = torch.zeros_like(v, memory_format=compact) if d_out is None else unit_last(d_out)
    inputs = (d_out, unit_last(d_final), unit_last(q), unit_last(k), unit_last(v), contiguous(decay), cu_seqlens,
              unit_last(initial_state), scale, context)
    return inputs, outputs


def _call_backward(inputs, outputs):
    d_out, d_final, q, k, v, decay, cu_seqlens, initial_state, scale, context = inputs
    _backward(context, scale, d_out, q, k, v, decay, cu_seqlens, initial_state, d_final, *outputs, None, None)


_operation = Operation(
    "lightning_attention",
    "(Tensor q, Tensor k, Tensor v, Tensor decay, Tensor? cu_seqlens, Tensor? initial_state, float scale, bool "
    "want_final, int context) -> (Tensor, Tensor)",
    "(Tensor? d_out, Tensor? d_final, Tensor q, Tensor k, Tensor v, Tensor decay, Tensor? cu_seqlens, Tensor? "
    "initial_state, float scale, bool want_q, bool want_k, bool want_v, bool want_initial, int context) -> (Tensor, "
    "Tensor, Tensor, Tensor)", 2, _allocate, _call, _allocate_backward, _call_backward, _save, _gradients)

# --- what users call -------------------------------------------------------------------------------------------------


def lightning_attention(q, k, v, decay, *, scale=1.0, cu_seqlens=None, initial_state=None, return_final_state=False,
                        context=None):
    """Causal linear attention with a constant decay per head. For each sequence and value head, in float32:

        S_t = exp(-decay) * S_{t-1} + v_t k_t^T        out_t = scale * S_t q_t

    q, k: (B, T, H, K), one dtype; v: (B, T, HV, V), HV a multiple of H; float32, float16 or bfloat16, K and V up to
    1024. decay: (H) or (HV) float32, >= 0, a constant. cu_seqlens: None, or the bounds (N + 1), int32 or int64, of
    packed sequences (then B = 1). initial_state: None (zero), or (N, HV, V, K) float32. Any strides with a contiguous
    last dimension are read in place. out is rounded once, to v's dtype.

    Returns out, or (out, final_state) with return_final_state; differentiable in q, k, v and initial_state. scale is
    often K ** -0.5; docs/migration.md has other libraries' conventions. Under autocast q, k and v are cast as those
    of torch's attention are. NumPy and JAX arrays give arrays, without gradients.

    Raises ValueError for what breaks these rules, NotImplementedError where the device has no backend; bad bounds and
    decays are handled as tigon/lightning_attention.h says, and noted in the context."""
    if not isinstance(q, Tensor):
        return through_torch(lightning_attention, q, k, v, decay, scale=scale, cu_seqlens=cu_seqlens,
                             initial_state=initial_state, return_final_state=return_final_state, context=context)
    if scale == 0:
        raise ValueError("scale: expected another number than 0")
    q, k, v = to_autocast(q.device.type, q, k, v)
    arguments = (q, k, v, decay, cu_seqlens, initial_state, scale, return_final_state, handle_of(context))
    if torch.compiler.is_compiling():
        out, final_state = _operation.compiled(*arguments)
    else:
        keep = needs_gradient(q, k, v, initial_state)
        out, final_state = (_operation.apply if keep else _operation.run)(*arguments)
    return (out, final_state) if return_final_state else out


@torch.no_grad()
def lightning_attention_prefill(q, k, v, decay, state, *, scale=1.0, cu_seqlens=None, state_indices=None,
                                has_initial_state=None, update_state=True, checkpoints=None, checkpoint_begin=None,
                                checkpoint_every=0, context=None):
    """lightning_attention for serving, without gradients: states live in a pool and are updated in place.

    state: (N, HV, V, K) float32, or a pool (P, HV, V, K) with state_indices (N), int32 or int64, of which -1 is
    padding. has_initial_state: None, or (N): where it is 0 a sequence starts from zero. update_state False leaves the
    pool as it is, to verify draft tokens. checkpoints: (C, HV, V, K) float32, filled with the states after every
    checkpoint_every tokens (a multiple of 64), for packed sequences from row checkpoint_begin[n] (N + 1) on. Returns
    out."""
    out = torch.empty_like(v, memory_format=torch.contiguous_format)
    _forward(handle_of(context), scale, unit_last(q), unit_last(k), unit_last(v), contiguous(decay), cu_seqlens, state,
             out, state if update_state else None, state_indices, has_initial_state, checkpoints, checkpoint_begin,
             checkpoint_every)
    return out


@torch.no_grad()
def lightning_attention_decode(q, k, v, decay, state, *, scale=1.0, state_indices=None, context=None):
    """One token of N sequences: q, k (N, H, K), v (N, HV, V). state is updated in place: (N, HV, V, K) float32, or a
    pool (P, HV, V, K) with state_indices (N). Returns out (N, HV, V) in v's dtype; no gradients."""
    out = torch.empty_like(v, memory_format=torch.contiguous_format)
    _decode(handle_of(context), scale, unit_last(q), unit_last(k), unit_last(v), contiguous(decay), state, out,
            state_indices)
    return out


@torch.no_grad()
def lightning_attention_state(k, v, decay, *, cu_seqlens=None, lengths=None, state=None, state_indices=None,
                              has_initial_state=None, context=None):
    """The states after the first lengths[n] tokens of each sequence (all without lengths), without outputs or
    gradients.

    Without a state the sequences start from zero, and the result is a new (N, HV, V, K) float32: the local state of a
    part of a sequence, for lightning_attention_merge. A state, or a pool with state_indices, is updated in place and
    returned: it commits draft tokens that lightning_attention_prefill verified."""
    final = _state_of(k, v, cu_seqlens) if state is None else state
    _state(handle_of(context), unit_last(k), unit_last(v), contiguous(decay), cu_seqlens, lengths, state, state_indices,
           has_initial_state, final)
    return final


@torch.no_grad()
def lightning_attention_merge(left, right, decay, lengths, *, context=None):
    """The state of two neighbouring parts of each sequence: exp(-decay * lengths[n]) * left + right, where right is
    the local state of the second part, of lengths[n] tokens. States (N, HV, V, K) float32; no gradients."""
    out = torch.empty_like(right, memory_format=torch.contiguous_format)
    _merge(handle_of(context), left, right, contiguous(decay), lengths, out)
    return out


def lightning_attention_slopes(heads, *, kind="alibi", layer=0, layers=0, heads_total=0, head_begin=0, device=None):
    """Slopes that published models use as decay, (heads) float32: kind "alibi" (MiniMax, Ling, Ring) or "linear"
    (TransNormer), with the factor of layer `layer` of `layers`, or without it where layers is 0. heads_total and
    head_begin give a tensor-parallel rank its part."""
    number = choice("kind", kind, SLOPES)
    slopes = torch.empty(heads, dtype=torch.float32)
    _slopes(number, layer, layers, heads_total or heads, head_begin, slopes)
    return slopes if device is None else slopes.to(device)
