"""Tigon: fused kernels for training large language models, from PyTorch.

Functions take and give torch tensors, are differentiable, and can stand in graphs of torch.compile. NumPy and JAX
arrays work too, forward only."""

from ._context import Context, Record, cpu_isa, cpu_threads, set_num_threads
from ._library import version as __version__
from ._lightning_attention import (lightning_attention, lightning_attention_decode, lightning_attention_merge,
                                   lightning_attention_prefill, lightning_attention_slopes, lightning_attention_state)
from ._linear import linear
from ._linear_cross_entropy import (LinearCrossEntropy, LinearCrossEntropyOutput, linear_cross_entropy,
                                    linear_cross_entropy_backward, linear_cross_entropy_merge,
                                    linear_cross_entropy_partial)
from ._moe import moe
from ._moe_route import MoeRoute, moe_route
from ._rms_norm import GemmaRMSNorm, LlamaRMSNorm, RMSNorm, rms_norm, rms_norm_backward, rms_norm_forward

__all__ = [
    "Context", "GemmaRMSNorm", "LinearCrossEntropy", "LinearCrossEntropyOutput", "LlamaRMSNorm", "MoeRoute", "RMSNorm",
    "Record", "__version__", "cpu_isa", "cpu_threads", "lightning_attention", "lightning_attention_decode",
    "lightning_attention_merge", "lightning_attention_prefill", "lightning_attention_slopes",
    "lightning_attention_state", "linear", "linear_cross_entropy", "linear_cross_entropy_backward",
    "linear_cross_entropy_merge", "linear_cross_entropy_partial", "moe", "moe_route", "rms_norm", "rms_norm_backward",
    "rms_norm_forward", "set_num_threads"
]
