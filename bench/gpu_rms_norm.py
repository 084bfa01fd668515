"""rms_norm on a CUDA device beside its peers, in one run on random data; writes a receipt (JSON Lines).

    python3 bench/gpu_rms_norm.py RECEIPT [--rows large|all]

Needs PyTorch with CUDA and the tigon package (or PYTHONPATH=python and TIGON_FFI_LIBRARY). Peers that are not installed
are left out and named.
"""

import argparse

import torch
import torch.nn.functional as F

import gpu
import tigon

SHAPES = [(1024, 2048), (4096, 2048), (4096, 4096), (4096, 8192), (16384, 2048), (16384, 4096), (16384, 8192),
          (32768, 4096)]
HOST_SHAPE = (64, 2048)
EPS = 1e-6
CACHE_BYTES = 180_000_000
PROTOCOL = gpu.ROTATED + """ The floor is a copy of the same number of bytes under the same protocol: the faster of a copy and a
negation. host_us is measured at 64 x 2048, in rows that say whether autograd takes part; there "floor: launches"
are the bare torch calls of as many kernels, and "floor: autograd" is a function in Python that only allocates. peak_bytes: memory from
PyTorch's allocator, outputs included. correct: 64 rows of out or dx, and all of d_weight, against the formula in
float64."""


class ThroughAutograd:
    """A peer: forward is its function, backward is autograd's on a kept graph."""
    def __init__(self, name, release, function):
        self.name, self.version, self.function = name, release, function

    def forward(self, x, weight):
        with torch.no_grad():
            return self.function(x, weight)

    def prepare(self, x, weight):
        x, weight = x.detach().requires_grad_(), weight.detach().requires_grad_()
        return self.function(x, weight), x, weight

    def backward(self, prepared, dy):
        out, x, weight = prepared
        return torch.autograd.grad(out, (x, weight), dy, retain_graph=True)


class Tigon(ThroughAutograd):
    def __init__(self, name, casting):
        super().__init__(name, tigon.__version__, lambda x, w: tigon.rms_norm(x, w, EPS, casting=casting))


class OnlyAllocates(torch.autograd.Function):
    """What any function in Python pays to autograd."""
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx, _):
        return tuple(map(torch.empty_like, ctx.saved_tensors))


def providers():
    found = [Tigon("tigon", "gemma"), Tigon("tigon llama", "llama"),
             ThroughAutograd("torch", torch.__version__, lambda x, w: F.rms_norm(x, (x.shape[-1],), w, EPS))]
    compiled = torch.compile(lambda x, w: F.rms_norm(x, (x.shape[-1],), w, EPS), dynamic=False)
    found.append(ThroughAutograd("torch.compile", torch.__version__, compiled))
    try:
        from liger_kernel.ops.rms_norm import LigerRMSNormFunction
        for mode in ("gemma", "llama"):
            found.append(ThroughAutograd("liger " + mode, gpu.version("liger-kernel"), lambda x, w, mode=mode:
                                         LigerRMSNormFunction.apply(x, w, EPS, 0.0, mode, False)))
    except ImportError as error:
        print(f"without liger: {error}")
    try:
        import quack
        found.append(ThroughAutograd("quack", gpu.version("quack-kernels"), lambda x, w: quack.rmsnorm(x, w, eps=EPS)))
    except ImportError as error:
        print(f"without quack: {error}")
    return found


def is_close(got, exact):
    """Within a few roundings of got's dtype at the size of the largest value."""
    step = {torch.bfloat16: 2.0**-7, torch.float32: 2.0**-19}[got.dtype]
    return bool(((got.double() - exact).abs() <= step * (1 + exact.abs())).all())


def exact_gradients(x, weight, dy):
    x, weight = x.double().requires_grad_(), weight.double()
    out = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS) * weight
    return out.detach(), torch.autograd.grad(out, x, dy.double())[0]


def exact_d_weight(x, dy):
    """(d_weight, the sum of its terms' sizes)."""
    total, size = 0, 0
    for x, dy in zip(x.split(1024), dy.split(1024)):
        x = x.double()
        terms = dy.double() * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS)
        total, size = total + terms.sum(0), size + terms.abs().sum(0)
    return total, size


def row(rows, width, dtype, found):
    size = rows * width * dtype.itemsize
    sets = max(2, min(gpu.CALLS, CACHE_BYTES // (2 * size) + 1))
    xs = [torch.randn(rows, width, device="cuda", dtype=dtype) for _ in range(sets)]
    dys = [torch.randn_like(x) for x in xs]
    weight = torch.randn(width, device="cuda", dtype=dtype)
    some = slice(0, 64)
    exact_out, exact_dx = exact_gradients(xs[0][some], weight, dys[0][some])
    d_weight, terms = exact_d_weight(xs[0], dys[0])
    # Llama's weight gradient rounds xhat to x's dtype
    rounding = terms * (2.0**-8 if dtype is torch.bfloat16 else 0) + 1
    for which in ("forward", "backward"):
        passes = 2 if which == "forward" else 3
        longs = [torch.randn(size // dtype.itemsize * passes // 2, device="cuda").to(dtype) for _ in xs]
        graphs = {"copy": gpu.capture([lambda i=i: longs[i % sets].clone() for i in range(gpu.CALLS)]),
                  "negation": gpu.capture([lambda i=i: longs[i % sets].neg() for i in range(gpu.CALLS)])}
        correct, op, peak = {}, {}, {}
        for provider in found:
            name = provider.name
            try:
                if which == "forward":
                    calls = [lambda i=i: provider.forward(xs[i % sets], weight) for i in range(gpu.CALLS)]
                    correct[name] = is_close(calls[0]()[some], exact_out)
                else:
                    prepared = [provider.prepare(x, weight) for x in xs]
                    calls = [lambda i=i: provider.backward(prepared[i % sets], dys[i % sets]) for i in range(gpu.CALLS)]
                    got = calls[0]()
                    off = (got[1].double() - d_weight).abs() / (rounding + terms * 2.0**-19 + d_weight.abs() * 2.0**-7)
                    correct[name] = is_close(got[0][some], exact_dx) and bool((off <= 1).all())
                peak[name] = gpu.peak_of(calls[0])
                op[name] = gpu.one_by_one(calls)
                graphs[name] = gpu.capture(calls)
            except Exception as error:  # a peer that cannot run a row is left out of it
                print(f"{name} {which} {rows} x {width}: {str(error).splitlines()[0]}")
                torch.cuda.synchronize()
        times = gpu.in_turns(graphs)
        floor = min(times.pop("copy")[0], times.pop("negation")[0])
        del graphs, calls, longs
        for provider in found:
            if provider.name in times:
                yield measurement(which, rows, width, dtype, provider, times[provider.name], op[provider.name], None, floor,
                                  passes * size, peak[provider.name], correct[provider.name])


def measurement(which, rows, width, dtype, provider, times, op_ms, host_us, floor, size, peak, correct):
    return {"family": "rms_norm", "pass": which, "row": f"{rows} x {width}", "dtype": str(dtype)[6:],
            "provider": provider.name, "provider_version": provider.version, "device_ms": times[0], "op_ms": op_ms,
            "host_us": host_us, "floor_ms": floor, "fastest_ms": times[1], "repetitions": gpu.TURNS * gpu.CALLS,
            "bytes": size, "ceiling_gbs": size / floor * 1e-6, "peak_bytes": peak, "correct": correct}


def host_rows(found):
    """What calls of a small shape cost the host: outside autograd, and with it."""
    rows, width = HOST_SHAPE
    dtype = torch.bfloat16
    x, dy = torch.randn(rows, width, device="cuda", dtype=dtype), torch.randn(rows, width, device="cuda", dtype=dtype)
    weight = torch.randn(width, device="cuda", dtype=dtype)
    _, _, rstd = tigon.rms_norm_forward(x, weight, EPS)
    module = torch.nn.RMSNorm(width, EPS, device="cuda", dtype=dtype)
    torch_nn = ThroughAutograd("torch.nn.RMSNorm", torch.__version__, lambda x, w: module(x))
    one = ThroughAutograd("floor: launches", torch.__version__, lambda x, w: torch.neg(x))
    floor = ThroughAutograd("floor: autograd", torch.__version__, OnlyAllocates.apply)
    calls = [(one, "forward, host", lambda: torch.neg(x)), (one, "backward, host", lambda: (torch.neg(x), torch.neg(x)))]
    calls.append((found[0], "backward, host", lambda: tigon.rms_norm_backward(dy, x, weight, rstd)))
    for provider in (*found, torch_nn):
        calls.append((provider, "forward, host", lambda provider=provider: provider.forward(x, weight)))
    for provider in (*found, floor):
        out, *leaves = provider.prepare(x, weight)
        calls.append((provider, "forward with autograd, host",
                      lambda f=provider.function, a=leaves: f(*a)))
        calls.append((provider, "backward with autograd, host",
                      lambda p=provider, o=(out, *leaves): p.backward(o, dy)))
    x_leaf = x.detach().requires_grad_()
    calls.append((torch_nn, "forward with autograd, host", lambda: module(x_leaf)))
    for provider, which, call in calls:
        try:
            cost = gpu.enqueue(call)
            times = gpu.in_turns({"": gpu.capture([call] * gpu.CALLS)})[""]
        except Exception as error:
            print(f"{provider.name} {which}: {str(error).splitlines()[0]}")
            torch.cuda.synchronize()
            continue
        size = x.nbytes * (2 if which.startswith("forward") else 3)
        yield measurement(which, rows, width, dtype, provider, times, gpu.one_by_one([call] * gpu.CALLS), cost, times[0],
                          size, gpu.peak_of(call), True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("receipt")
    parser.add_argument("--rows", choices=("large", "all"), default="all")
    options = parser.parse_args()
    torch.manual_seed(0)
    torch._dynamo.config.recompile_limit = 16 * len(SHAPES)  # a code for each shape, dtype and pass
    found = providers()
    receipt = gpu.Receipt(options.receipt, PROTOCOL, ("triton", "liger-kernel", "quack-kernels", "apache-tvm-ffi"),
                          "ceiling_gbs")
    gpu.first_capture()
    for m in host_rows(found):
        receipt.add(m)
        print(f"{m['provider']:18s} {m['pass']:30s} {m['host_us']:8.2f} us", flush=True)
    shapes = SHAPES if options.rows == "all" else SHAPES[4:]
    for dtype in (torch.bfloat16, torch.float32):
        for shape in reversed(shapes):
            for m in row(*shape, dtype, found):
                receipt.add(m)
                print(f"{m['dtype']:9s} {m['row']:13s} {m['pass']:9s} {m['provider']:14s} {m['device_ms'] * 1e3:8.2f} us  "
                      f"{m['device_ms'] / m['floor_ms']:6.3f} of the copy{'' if m['correct'] else '  WRONG'}", flush=True)
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
