"""Prints what a call costs the host, in microseconds: the best mean of 60 rounds of 300 calls at a shape whose work
is nothing.

The device is cuda where there is one. "floor" is an autograd function that only allocates its outputs.
"""

import json
import time

import tigon
import torch


class Floor(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx, d_out):
        return tuple(map(torch.empty_like, ctx.saved_tensors))


def cost(function, calls=300, rounds=60):
    best = float("inf")
    for _ in range(rounds):
        torch.cuda.synchronize() if torch.cuda.is_available() else None
        start = time.perf_counter()
        for _ in range(calls):
            function()
        best = min(best, (time.perf_counter() - start) / calls)
    return round(1e6 * best, 2)


def main():
    device = "cuda" if torch.cuda.is_available() else "cpu"
    tigon.set_num_threads(1)
    plain, d = torch.randn(16, 512, device=device), torch.randn(16, 512, device=device)
    x, module = plain.clone().requires_grad_(), torch.nn.RMSNorm(512, device=device)
    weight, data = module.weight, module.weight.detach()
    _, _, rstd = tigon.rms_norm_forward(plain, data)
    result = {
        "device": device, "forward": cost(lambda: tigon.rms_norm(plain, data)),
        "backward": cost(lambda: tigon.rms_norm_backward(d, plain, data, rstd))
    }
    functions = {
        "tigon": lambda: tigon.rms_norm(x, weight), "torch": lambda: module(x), "floor": lambda: Floor.apply(x, weight)
    }
    for name, function in functions.items():
        out = function()
        result[name + " autograd forward"] = cost(function)
        result[name + " autograd backward"] = cost(lambda: torch.autograd.grad(out, (x, weight), d, retain_graph=True))
    print(json.dumps(result, indent=2))


main()
