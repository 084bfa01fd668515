"""rms_norm on a CUDA device beside its peers, in one run on random data; writes a receipt (JSON Lines).

    python3 bench/gpu_rms_norm.py RECEIPT [--rows large|all]

Needs PyTorch with CUDA and the tigon package (or PYTHONPATH=python and TIGON_FFI_LIBRARY). Peers that are not installed
are left out and named.

Protocol. Device time: 12 calls over rotated inputs (more than the second-level cache, of the smallest shape about twice
as much), captured into one graph whose replay is timed by events and divided by the calls; providers take turns, and the median over the turns
counts. Outputs of all calls stay allocated, so that none finds its predecessor's in the cache. The floor is a copy of
the same number of bytes under the same protocol: the faster of a copy and a negation. Host time: what a call takes the
CPU until it returns, the median of 2000 calls on a small shape, the queue emptied every 50.
"""

import argparse
import functools
import importlib.metadata
import json
import statistics
import subprocess
import time

import torch
import torch.nn.functional as F

import tigon

SHAPES = [(1024, 2048), (4096, 2048), (4096, 4096), (4096, 8192), (16384, 2048), (16384, 4096), (16384, 8192),
          (32768, 4096)]
TURNS, CALLS, EPS = 9, 12, 1e-6
CACHE_BYTES = 180_000_000


def version(package):
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


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


def providers():
    found = [Tigon("tigon", "gemma"), Tigon("tigon llama", "llama"),
             ThroughAutograd("torch", torch.__version__, lambda x, w: F.rms_norm(x, (x.shape[-1],), w, EPS))]
    compiled = torch.compile(lambda x, w: F.rms_norm(x, (x.shape[-1],), w, EPS), dynamic=False)
    found.append(ThroughAutograd("torch.compile", torch.__version__, compiled))
    try:
        from liger_kernel.ops.rms_norm import LigerRMSNormFunction
        for mode in ("gemma", "llama"):
            found.append(ThroughAutograd("liger " + mode, version("liger-kernel"), lambda x, w, mode=mode:
                                         LigerRMSNormFunction.apply(x, w, EPS, 0.0, mode, False)))
    except ImportError as error:
        print(f"without liger: {error}")
    try:
        import quack
        found.append(ThroughAutograd("quack", version("quack-kernels"), lambda x, w: quack.rmsnorm(x, w, eps=EPS)))
    except ImportError as error:
        print(f"without quack: {error}")
    return found


def capture(calls):
    """A graph of the calls; what they return stays alive with it."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for call in calls[:2]:
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        kept = [call() for call in calls]
    graph.replay()
    torch.cuda.synchronize()
    return graph, kept


@functools.cache
def first_capture():
    """The first capture of a backward pass in a process fails in PyTorch 2.11, whoever's functions it calls."""
    x = torch.ones(8, device="cuda", requires_grad=True)
    out = x * 2
    try:
        capture([lambda: torch.autograd.grad(out, x, out, retain_graph=True)])
        print("first capture of a backward pass: no error")
    except Exception as error:
        print(f"first capture of a backward pass: {error}")
        torch.cuda.synchronize()


def in_turns(graphs):
    """Milliseconds a call: {name: median over the turns}."""
    taken = {name: [] for name in graphs}
    for _ in range(TURNS):
        for name, (graph, _) in graphs.items():
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            graph.replay()
            end.record()
            torch.cuda.synchronize()
            taken[name].append(start.elapsed_time(end) / CALLS)
    return {name: statistics.median(times) for name, times in taken.items()}


def is_close(got, exact):
    """Within a few roundings of got's dtype at the size of the largest value."""
    step = {torch.bfloat16: 2.0**-7, torch.float32: 2.0**-19}[got.dtype]
    return bool(((got.double() - exact).abs() <= step * (1 + exact.abs())).all())


def exact_gradients(x, weight, dy):
    x, weight = x.double().requires_grad_(), weight.double()
    out = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS) * weight
    return out.detach(), torch.autograd.grad(out, x, dy.double())[0]


def row(rows, width, dtype, found):
    size = rows * width * dtype.itemsize
    sets = max(2, min(CALLS, CACHE_BYTES // (2 * size) + 1))
    xs = [torch.randn(rows, width, device="cuda", dtype=dtype) for _ in range(sets)]
    dys = [torch.randn_like(x) for x in xs]
    weight = torch.randn(width, device="cuda", dtype=dtype)
    some = slice(0, 64)
    exact_out, exact_dx = exact_gradients(xs[0][some], weight, dys[0][some])
    first_capture()
    for which in ("forward", "backward"):
        longs = [torch.randn(size // dtype.itemsize * 3 // 2, device="cuda").to(dtype) if which == "backward" else x
                 for x in xs]
        graphs = {"copy": capture([lambda i=i: longs[i % sets].clone() for i in range(CALLS)]),
                  "negation": capture([lambda i=i: longs[i % sets].neg() for i in range(CALLS)])}
        correct = {}
        for provider in found:
            try:
                if which == "forward":
                    calls = [lambda i=i: provider.forward(xs[i % sets], weight) for i in range(CALLS)]
                    correct[provider.name] = is_close(calls[0]()[some], exact_out)
                else:
                    prepared = [provider.prepare(x, weight) for x in xs]
                    calls = [lambda i=i: provider.backward(prepared[i % sets], dys[i % sets]) for i in range(CALLS)]
                    correct[provider.name] = is_close(calls[0]()[0][some], exact_dx)
                graphs[provider.name] = capture(calls)
            except Exception as error:  # a peer that cannot run a row is left out of it
                print(f"{provider.name} {which} {rows} x {width}: {str(error).splitlines()[0]}")
                torch.cuda.synchronize()
        times = in_turns(graphs)
        floor = min(times.pop("copy"), times.pop("negation"))
        del graphs, calls, longs
        passes = 2 if which == "forward" else 3
        for provider in found:
            if provider.name not in times:
                continue
            yield {"family": "rms_norm", "pass": which, "row": f"{rows} x {width}", "dtype": str(dtype)[6:],
                   "provider": provider.name, "provider_version": provider.version,
                   "device_ms": times[provider.name], "sustained_ms": None, "host_us": None, "floor_ms": floor,
                   "bytes": passes * size, "correct": correct[provider.name]}


def enqueue(call):
    taken = []
    for i in range(-50, 2000):
        if i % 50 == 0:
            torch.cuda.synchronize()
        start = time.perf_counter_ns()
        call()
        taken.append(time.perf_counter_ns() - start)
    torch.cuda.synchronize()
    return statistics.median(taken[50:]) / 1e3


def host_rows(found):
    """What calls of a small shape cost the host: outside autograd, and with it."""
    x = torch.randn(64, 2048, device="cuda", dtype=torch.bfloat16)
    weight, dy = torch.randn(2048, device="cuda", dtype=torch.bfloat16), torch.randn_like(x)
    calls = []
    _, _, rstd = tigon.rms_norm_forward(x, weight, EPS)
    calls.append(("tigon", "forward", lambda: tigon.rms_norm(x, weight, EPS)))
    calls.append(("tigon", "backward", lambda: tigon.rms_norm_backward(dy, x, weight, rstd)))
    module = torch.nn.RMSNorm(2048, EPS, device="cuda", dtype=torch.bfloat16)
    x_leaf = x.detach().requires_grad_()
    for provider in found:
        out, *leaves = provider.prepare(x, weight)
        call = (lambda f, a, b: lambda: f(a, b))(provider.function, *leaves)
        back = (lambda p, o, a: lambda: p.backward((o, *a), dy))(provider, out, leaves)
        calls += [(provider.name, "forward with autograd", call), (provider.name, "backward with autograd", back)]
    calls.append(("torch.nn.RMSNorm", "forward with autograd", lambda: module(x_leaf)))
    for name, which, call in calls:
        try:
            cost = enqueue(call)
        except Exception as error:
            print(f"{name} host {which}: {str(error).splitlines()[0]}")
            continue
        yield {"family": "rms_norm", "pass": which, "row": "64 x 2048", "dtype": "bfloat16", "provider": name,
               "device_ms": None, "host_us": cost}


def environment():
    query = ["nvidia-smi", "--query-gpu=driver_version,clocks.sm,clocks.mem", "--format=csv,noheader", "-i", "0"]
    driver = subprocess.run(query, capture_output=True, text=True, check=False).stdout.strip()
    packages = ("torch", "triton", "liger-kernel", "quack-kernels", "apache-tvm-ffi")
    properties = torch.cuda.get_device_properties(0)
    return {"receipt": "tigon gpu bench 1", "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "device": properties.name, "multiprocessors": properties.multi_processor_count,
            "driver, clocks": driver, "cuda": torch.version.cuda,
            "versions": {name: version(name) for name in packages},
            "tigon": tigon.__version__, "seed": 0, "turns": TURNS, "calls": CALLS, "protocol": __doc__}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("receipt")
    parser.add_argument("--rows", choices=("large", "all"), default="all")
    options = parser.parse_args()
    torch.manual_seed(0)
    torch._dynamo.config.recompile_limit = 16 * len(SHAPES)  # a code for each shape, dtype and pass
    found = providers()
    with open(options.receipt, "w", encoding="utf-8") as receipt:
        def write(measured):
            receipt.write(json.dumps(measured) + "\n")
            receipt.flush()

        write(environment())
        for measured in host_rows(found):
            write(measured)
            print(f"host {measured['provider']:18s} {measured['pass']:24s} {measured['host_us']:8.2f} us", flush=True)
        shapes = SHAPES if options.rows == "all" else SHAPES[4:]
        for dtype in (torch.bfloat16, torch.float32):
            for shape in reversed(shapes):
                for measured in row(*shape, dtype, found):
                    write(measured)
                    ratio = measured["device_ms"] / measured["floor_ms"]
                    print(f"{measured['dtype']:9s} {measured['row']:13s} {measured['pass']:9s} "
                          f"{measured['provider']:14s} {measured['device_ms'] * 1e3:8.2f} us  {ratio:6.3f} of the copy"
                          f"{'' if measured['correct'] else '  WRONG'}", flush=True)
                torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
