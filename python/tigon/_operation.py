"""What all operations share: one description of an operation gives its eager form and its form for torch.compile."""

import torch


class Operation:
    """An operation with gradients, from functions that allocate tensors and functions that fill them.

    `allocate(*inputs)` gives the inputs as the library takes them and the outputs, None where one is not wanted;
    `call(inputs, outputs)` runs the library. `allocate_backward` and `call_backward` do so for the gradients.
    `save(ctx, inputs, output)` keeps what backward needs, and `gradients(ctx, backward, *grads)` calls `backward`
    with it and orders the results as the inputs. The user sees the first `visible` outputs.

    `apply` is the eager form, straight to the library, `run` and `run_backward` are the same without autograd;
    `compiled` is a registered operator, which a graph can hold. """
    def __init__(self, name, schema, backward_schema, visible, allocate, call, allocate_backward, call_backward, save,
                 gradients):
        self.run = _runner(allocate, call)
        self.run_backward = backward = _runner(allocate_backward, call_backward)
        self.apply = _eager(name, self.run, save, backward, gradients, visible).apply
        self.compiled = _register(name, schema, self.run, allocate)
        compiled_backward = _register(name + "_backward", backward_schema, backward, allocate_backward)

        def compiled_gradients(ctx, *grads):
            return gradients(ctx, compiled_backward, *grads)

        self.compiled.register_autograd(compiled_gradients, setup_context=save)


def _runner(allocate, call):
    def run(*arguments):
        inputs, outputs = allocate(*arguments)
        call(inputs, outputs)
        return outputs

    return run


class _LastDerivative(torch.autograd.Function):
    """A gradient in a graph of its own: gradients of it are an error, not a silent constant."""
    @staticmethod
    def forward(ctx, gradient, anchor, name):
        ctx.name = name
        return gradient.view_as(gradient)

    @staticmethod
    def backward(ctx, _):
        raise RuntimeError(f"tigon.{ctx.name} has no second derivative")


def _eager(name, run, save, backward, gradients, visible):
    def forward(ctx, *inputs):
        outputs = run(*inputs)
        save(ctx, inputs, outputs)
        return outputs[:visible]

    def choose(ctx, *grads):
        if not torch.is_grad_enabled():
            return gradients(ctx, backward, *grads)
        with torch.no_grad():
            found = gradients(ctx, backward, *grads)
        anchor = torch.zeros((), requires_grad=True)
        return tuple(g if g is None else _LastDerivative.apply(g, anchor, name) for g in found)

    members = {"forward": staticmethod(forward), "backward": staticmethod(choose)}
    return type("tigon_" + name, (torch.autograd.Function,), members)


def _register(name, schema, run, allocate):
    """The operator tigon::<name>. Operators cannot return None: an output that is not wanted is an empty tensor."""
    single = schema.endswith("-> Tensor")

    def fill(outputs):
        example = next(t for t in outputs if t is not None)
        filled = tuple(example.new_empty(0) if t is None else t for t in outputs)
        return filled[0] if single else filled

    def operator(*arguments):
        return fill(run(*arguments))

    registered = torch.library.custom_op("tigon::" + name, operator, mutates_args=(), schema=schema)
    registered.register_fake(lambda *arguments: fill(allocate(*arguments)[1]))
    return registered


def needs_gradient(*tensors):
    if not torch.is_grad_enabled():
        return False
    for tensor in tensors:
        if tensor is not None and tensor.requires_grad:
            return True
    return False


def unit_last(tensor):
    """The tensor with a contiguous last dimension, which the library needs; other strides are free."""
    if tensor is None or tensor.is_contiguous() or tensor.stride(-1) == 1 or tensor.shape[-1] == 1:
        return tensor
    return tensor.contiguous()


def contiguous(tensor):
    return tensor if tensor is None or tensor.is_contiguous() else tensor.contiguous()


def to_autocast(device_type, *tensors):
    """The tensors in autocast's dtype where it is on, as torch's matrix products have it."""
    if not torch.is_autocast_enabled(device_type):
        return tensors
    dtype = torch.get_autocast_dtype(device_type)
    low = (torch.float32, torch.float16, torch.bfloat16)
    return tuple(t.to(dtype) if t is not None and t.dtype in low else t for t in tensors)


def choice(name, value, choices):
    """The number behind an option's word."""
    number = choices.get(value)
    if number is None:
        raise ValueError(f"{name}: expected one of {', '.join(map(repr, choices))}, got {value!r}")
    return number


def handle_of(context):
    return 0 if context is None else context.handle
