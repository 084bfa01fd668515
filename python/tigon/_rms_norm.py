"""RMS normalisation, with an optional fused residual add."""

import numbers

import torch
from torch import Tensor

from . import _library
from ._arrays import through_torch
from ._operation import Operation, choice, contiguous

_forward = _library.function("tigon_rms_norm")
_backward = _library.function("tigon_rms_norm_backward")

CASTINGS = {"llama": 0, "gemma": 1}
# The C ABI takes 0 for its default of 1e-6. With the smallest normal number in its place, a row of zeros gives zeros.
_SMALLEST_EPS = 1.1754943508222875e-38
_TORCH_EPS = 2.0**-23


def _rows(tensor):
    """A tensor of rows as the library takes it: the last dimension contiguous, the others of two strides at most."""
    if tensor is None or tensor.is_contiguous():
        return tensor
    if tensor.shape[-1] != 1 and tensor.stride(-1) != 1:
        return tensor.contiguous()
    strides, shape = tensor.stride(), tensor.shape
    leading = [i for i in range(tensor.dim() - 1) if shape[i] != 1]
    breaks = sum(strides[i] != strides[j] * shape[j] for i, j in zip(leading, leading[1:]))
    return tensor if breaks < 2 else tensor.contiguous()


def _beside(tensor):
    """A second tensor of rows: with more than three dimensions its strides and the first one's may not fit together."""
    return _rows(tensor) if tensor is None or tensor.dim() <= 3 else contiguous(tensor)


# --- forward and backward --------------------------------------------------------------------------------------------


def _allocate(x, residual, weight, casting, eps, offset, out_dtype, residual_dtype, keep, context):
    x, residual, weight = _rows(x), _beside(residual), contiguous(weight)
    out = torch.empty_like(x) if out_dtype is None else torch.empty_like(x, dtype=out_dtype)
    total = None if residual is None else torch.empty_like(residual, dtype=residual_dtype)
    rstd = x.new_empty(x.numel() // (x.shape[-1] or 1), dtype=torch.float32) if keep else None
    return (x, residual, weight, casting, eps, offset, context), (out, total, rstd)


def _call(inputs, outputs):
    x, residual, weight, casting, eps, offset, context = inputs
    out, total, rstd = outputs
    _forward(context, casting, x, residual, weight, out, total, rstd, eps, offset)


def _save(ctx, inputs, output):
    x, residual, weight, casting, eps, offset, out_dtype, residual_dtype, keep, context = inputs
    out, total, rstd = output
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(x if residual is None else total, weight, rstd)
    ctx.options = (casting, offset, x.dtype, None if residual is None else residual.dtype, context)


def _gradients(ctx, backward, d_out, d_total=None, *_):
    needs = ctx.needs_input_grad
    if d_out is None and d_total is None:
        return (None,) * 10
    rows, weight, rstd = ctx.saved_tensors
    casting, offset, x_dtype, residual_dtype, context = ctx.options
    if residual_dtype is None:
        d_total = None
    shared = residual_dtype is None or residual_dtype == x_dtype
    dx, d_residual, d_weight = backward(d_out, d_total, rows, weight, rstd, casting, offset, x_dtype, residual_dtype,
                                        needs[0] or (shared and needs[1]), needs[1] and not shared, needs[2], context)
    if shared:
        d_residual = dx
    return (dx if needs[0] else None, d_residual if needs[1] else None, d_weight if needs[2] else None, None, None,
            None, None, None, None, None)


def _allocate_backward(d_out, d_total, rows, weight, rstd, casting, offset, x_dtype, residual_dtype, want_x,
                       want_residual, want_weight, context):
    rows = _rows(rows)
    d_out, d_total, weight = _beside(d_out), _beside(d_total), contiguous(weight)
    dx = torch.empty_like(rows, dtype=x_dtype) if want_x else None
    d_residual = torch.empty_like(rows, dtype=residual_dtype) if want_residual else None
    d_weight = torch.empty_like(weight) if want_weight else None
    return (d_out, d_total, rows, weight, rstd, casting, offset, x_dtype, context), (dx, d_residual, d_weight)


def _call_backward(inputs, outputs):
    d_out, d_total, rows, weight, rstd, casting, offset, x_dtype, context = inputs
    dx, d_residual, d_weight = outputs
    if rows.dtype is x_dtype:
        x_dtype = None
    _backward(context, casting, d_out, d_total, rows, weight, rstd, dx, d_residual, d_weight, x_dtype, 0, offset)


_operation = Operation(
    "rms_norm",
    "(Tensor x, Tensor? residual, Tensor? weight, int casting, float eps, float offset, ScalarType? out_dtype, "
    "ScalarType? residual_dtype, bool keep, int context) -> (Tensor, Tensor, Tensor)",
    "(Tensor? d_out, Tensor? d_total, Tensor rows, Tensor? weight, Tensor rstd, int casting, float offset, "
    "ScalarType x_dtype, ScalarType? residual_dtype, bool want_x, bool want_residual, bool want_weight, int context) "
    "-> (Tensor, Tensor, Tensor)", 2, _allocate, _call, _allocate_backward, _call_backward, _save, _gradients)

# --- what users call -------------------------------------------------------------------------------------------------


def rms_norm(x, weight=None, eps=1e-6, *, residual=None, casting="gemma", offset=0.0, out_dtype=None,
             residual_dtype=None, context=None):
    """RMS normalisation over the last dimension.

        s    = x + residual                          rounded to residual_dtype; without a residual s = x
        rstd = 1 / sqrt(mean_j s_j^2 + eps)          in float32
        out  = s * rstd * (offset + weight)

    x: (..., H), float32, float16 or bfloat16, H >= 1; residual: None, or x's shape; weight: None (out = s * rstd), or
    (H). dtypes may differ. eps None is float32's machine epsilon, 2^-23, as in torch.

    casting says where s * rstd is rounded: "gemma" nowhere (one rounding, to out's dtype:
    torch.nn.functional.rms_norm, Hugging Face GemmaRMSNorm), "llama" to x's dtype (Hugging Face LlamaRMSNorm). offset
    is 1 for Gemma's zero-centred weights. out has x's dtype, s residual's, where out_dtype and residual_dtype do not
    say otherwise.

    Returns out, or (out, s) where a residual is given: s is the residual stream that the next layer adds to. Both are
    differentiable in x, residual and weight; weight's gradient is summed in float32 and rounded once. A NumPy or JAX
    array gives an array, without gradients. Autocast changes nothing: the computation is in float32 whatever the
    dtypes.

    Raises ValueError for what breaks these rules, NotImplementedError where the device has no backend.
    """
    if not isinstance(x, Tensor):
        return through_torch(rms_norm, x, weight, eps, residual=residual, casting=casting, offset=offset,
                             out_dtype=out_dtype, residual_dtype=residual_dtype, context=context)
    if not eps:
        eps = _TORCH_EPS if eps is None else _SMALLEST_EPS
    number = CASTINGS.get(casting)
    if number is None:
        choice("casting", casting, CASTINGS)
    # Written out: calls of small shapes are bound by the time that Python takes here.
    keep = torch.is_grad_enabled() and (x.requires_grad or (weight is not None and weight.requires_grad) or
                                        (residual is not None and residual.requires_grad))
    handle = 0 if context is None else context.handle
    arguments = (x, residual, weight, number, eps, offset, out_dtype, residual_dtype, keep, handle)
    if torch.compiler.is_compiling():
        outputs = _operation.compiled(*arguments)
    elif keep:
        outputs = _operation.apply(*arguments)
    else:
        outputs = _operation.run(*arguments)
    return outputs[0] if residual is None else (outputs[0], outputs[1])


def rms_norm_forward(x, weight=None, eps=1e-6, *, residual=None, casting="gemma", offset=0.0):
    """rms_norm outside autograd: (out, s, rstd), with s None without a residual and rstd, float32, one vector of all
    rows, for rms_norm_backward."""
    return _operation.run(x, residual, weight, CASTINGS[casting], eps, offset, None, None, True, 0)


def rms_norm_backward(d_out, rows, weight, rstd, *, d_residual_out=None, casting="gemma", offset=0.0, x_dtype=None):
    """The gradients (dx, d_weight) outside autograd. rows is x, or s where forward had a residual, whose gradient is
    then dx too; x_dtype is x's dtype where it is not that of rows. d_weight is None without a weight."""
    dx, _, d_weight = _operation.run_backward(d_out, d_residual_out, rows, weight, rstd, CASTINGS[casting], offset,
                                              x_dtype or rows.dtype, None, True, False, weight is not None, 0)
    return dx, d_weight


class RMSNorm(torch.nn.Module):
    """torch.nn.RMSNorm, with a fused residual add: the same constructor, state_dict and formula (see tigon.rms_norm).

    forward(x) gives the normalised rows; forward(x, residual) gives (rows, x + residual). Further options: casting,
    offset and the dtype of the output.
"""
    def __init__(self, normalized_shape, eps=None, elementwise_affine=True, device=None, dtype=None, *, casting="gemma",
                 offset=0.0):
        super().__init__()
        if isinstance(normalized_shape, numbers.Integral):
            normalized_shape = (normalized_shape,)
        self.normalized_shape = tuple(normalized_shape)
        self.eps = eps
        self.elementwise_affine = elementwise_affine
        self.casting = casting
        self.offset = offset
        choice("casting", casting, CASTINGS)
        if elementwise_affine:
            self.weight = torch.nn.Parameter(torch.empty(self.normalized_shape, device=device, dtype=dtype))
        else:
            self.register_parameter("weight", None)
        self.reset_parameters()

    def reset_parameters(self):
        """The weight with which the layer scales by one."""
        if self.weight is not None:
            torch.nn.init.constant_(self.weight, 1.0 - self.offset)

    def forward(self, x, residual=None, out_dtype=None):
        if len(self.normalized_shape) == 1:
            return rms_norm(x, self.weight, self.eps, residual=residual, casting=self.casting, offset=self.offset,
                            out_dtype=out_dtype)
        shape, normalized = x.shape, len(self.normalized_shape)
        if tuple(shape[-normalized:]) != self.normalized_shape:
            raise ValueError(f"x: expected last dimensions {self.normalized_shape}, got shape {tuple(shape)}")
        outputs = rms_norm(x.flatten(-normalized), None if self.weight is None else self.weight.flatten(), self.eps,
                           casting=self.casting, residual=None if residual is None else residual.flatten(-normalized),
                           offset=self.offset, out_dtype=out_dtype)
        return outputs.view(shape) if residual is None else tuple(t.view(shape) for t in outputs)

    def extra_repr(self):
        return (f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}, "
                f"casting={self.casting!r}, offset={self.offset}")


class LlamaRMSNorm(RMSNorm):
    """Hugging Face's LlamaRMSNorm (also Qwen's and Mistral's): the same constructor, state_dict, formula and
    roundings."""
    def __init__(self, hidden_size, eps=1e-6, device=None, dtype=None):
        super().__init__(hidden_size, eps, device=device, dtype=dtype, casting="llama")

    @property
    def variance_epsilon(self):
        return self.eps

    def forward(self, x, residual=None, out_dtype=None):
        if out_dtype is None and self.weight.dtype is not x.dtype:
            out_dtype = torch.promote_types(x.dtype, self.weight.dtype)
        return super().forward(x, residual, out_dtype)


class GemmaRMSNorm(RMSNorm):
    """Hugging Face's GemmaRMSNorm: the same constructor, state_dict (zero-centred weight), formula and roundings."""
    def __init__(self, dim, eps=1e-6, device=None, dtype=None):
        super().__init__(dim, eps, device=device, dtype=dtype, casting="gemma", offset=1.0)
