"""NumPy and JAX arrays in place of tensors, forward only: they pass through DLPack without a copy, and the results
are of the first array's kind."""

import warnings

import torch


def _kind(value):
    """The module of an array's type ("numpy", "jax"), or None for what is no array."""
    if isinstance(value, torch.Tensor) or not hasattr(type(value), "__dlpack__"):
        return None
    module = type(value).__module__.split(".")[0]
    return "jax" if module in ("jax", "jaxlib") else module


def _to_tensor(value):
    kind = _kind(value)
    if kind is None:
        return value
    if kind == "numpy":
        with warnings.catch_warnings():  # read-only arrays: inputs are never written
            warnings.simplefilter("ignore", UserWarning)
            return torch.from_numpy(value)
    return torch.from_dlpack(value)


def _from_tensor(value, kind):
    if isinstance(value, tuple):
        parts = [_from_tensor(v, kind) for v in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    if not isinstance(value, torch.Tensor):
        return value
    if kind == "numpy":
        return value.numpy()
    if kind == "jax":
        import jax

        return jax.dlpack.from_dlpack(value.contiguous())
    return value


def through_torch(function, *arguments, **options):
    """function with its arrays as tensors, and tensors of its result as arrays of the first argument's kind."""
    kind = _kind(arguments[0])
    if kind is None:
        raise TypeError(f"expected a torch.Tensor, a NumPy array or a JAX array, got {type(arguments[0]).__name__}")
    with torch.no_grad():
        result = function(*map(_to_tensor, arguments), **{name: _to_tensor(v) for name, v in options.items()})
    return _from_tensor(result, kind)
