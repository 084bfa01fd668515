"""Tigon: fused kernels for training large language models, from PyTorch.

Functions take and give torch tensors, are differentiable, and can stand in graphs of torch.compile. NumPy and JAX arrays work
too, forward only.
"""

from ._library import version as __version__
from ._context import Context, Record, cpu_isa, cpu_threads, set_num_threads
from ._linear import linear
from ._rms_norm import GemmaRMSNorm, LlamaRMSNorm, RMSNorm, rms_norm
