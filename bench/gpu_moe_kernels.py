"""The kernels of the expert MLP one by one on a CUDA device; writes a receipt (JSON Lines) of those that multiply.

    python3 bench/gpu_moe_kernels.py RECEIPT [--models qwen3-30b-a3b ...]

A pass is captured into a graph, in which all kernels but the plan's and the one that is measured are disabled. Needs what
gpu_moe.py needs, and cuda-bindings of CUDA 13.
"""

import argparse
import statistics
import time

import torch
from cuda.bindings import driver

import gpu
import gpu_moe
import tigon

REST, BURSTS, SUSTAINED_MS, TOKENS = 0.06, 9, 150, 8192
PROTOCOL = """Each kernel alone in a captured pass, with what the others left in memory (d_down reads the rows of dx in the place of dout); the
plan's kernels, in backward the setting of counters, run before it and are not counted. Times are the profiler's, which starts
before each timed launch. device_ms: after 60 ms of rest one launch to wake the clocks and one that is timed, the median of 9; op_ms
is the same. sustained_ms: the mean of launches one after another for at least 150 ms, after as long untimed. flop counts the
routes and no padding. floor_ms: the same FLOP at the rate of torch's product of 8192^3 in the same run, measured likewise. correct:
after all launches a replay of the whole graph gives the outputs that it gave before, bit for bit."""
PLAN = ("moe_count", "moe_prefix", "moe_segments", "moe_place", "Memset")
# (pass, kernel): what it computes and how many times 2 rows D I
PRODUCTS = {("forward", "moe_gate_up"): ("gate and up", 2), ("forward", "moe_rows"): ("down", 1),
            ("backward", "moe_activation"): ("da'", 1), ("backward", "moe_weights"): ("d_down", 1),
            ("backward", "moe_weights_transposed"): ("d_gate and d_up", 2), ("backward", "moe_rows_transposed"): ("rows of dx", 2)}


def checked(result):
    if result[0] != driver.CUresult.CUDA_SUCCESS:
        raise RuntimeError(str(result[0]))
    return result[1:]


class Chain:
    """A captured pass, whose nodes follow one another."""
    def __init__(self, call):
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            call()
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph(keep_graph=True)
        with torch.cuda.graph(self.graph, stream=stream):
            self.outputs = call()
        self.graph.instantiate()
        self.executable = driver.CUgraphExec(self.graph.raw_cuda_graph_exec())
        self.nodes = checked(driver.cuGraphGetRootNodes(driver.CUgraph(self.graph.raw_cuda_graph()), 1))[0]
        while True:
            following, _, count = checked(driver.cuGraphNodeGetDependentNodes(self.nodes[-1], 1))
            if count == 0:
                break
            self.nodes.append(following[0])
        self.names = [name for name, _ in gpu.kernels_of(self.graph.replay, 1)]
        if len(self.names) != len(self.nodes):
            raise RuntimeError(f"{len(self.nodes)} nodes, but the profiler saw {self.names}")

    def enable(self, chosen):
        for i, node in enumerate(self.nodes):
            checked(driver.cuGraphNodeSetEnabled(self.executable, node, int(chosen(i))))

    def is_plan(self, i):
        return self.names[i].startswith(PLAN)

    def of(self, i, launches):
        """ms of node i"""
        return statistics.mean(ms for name, ms in gpu.kernels_of(self.graph.replay, launches) if name == self.names[i])

    def measure(self, i):
        """(burst, fastest, sustained) ms of node i"""
        self.enable(lambda other: other == i or self.is_plan(other))
        taken = []
        for _ in range(BURSTS):
            time.sleep(REST)
            self.graph.replay()
            taken.append(self.of(i, 1))
        launches = max(3, int(SUSTAINED_MS / taken[-1]))
        for _ in range(launches):
            self.graph.replay()
        sustained = self.of(i, launches)
        self.enable(lambda _: True)
        return statistics.median(taken), min(taken), sustained


def ceiling():
    """The rate of torch's product of 8192^3, GFLOP/s."""
    a, b = (torch.randn(8192, 8192, device="cuda").bfloat16() for _ in range(2))
    taken = []
    for _ in range(BURSTS):
        time.sleep(REST)
        a @ b  # wakes the clocks
        taken.append(gpu_moe.kernel_ms(lambda: a @ b, 1))
    return 2 * 8192**3 / statistics.median(taken) * 1e-6


def flat(outputs):
    return [outputs] if isinstance(outputs, torch.Tensor) else list(outputs)


def kernels(model, rate):
    (x, ids, *leaves), dout = gpu_moe.problem(model, TOKENS)
    width, inner, _, k = gpu_moe.MODELS[model]
    leaves = [t.detach().requires_grad_() for t in (x, *leaves)]

    def forward():
        return tigon.moe(leaves[0], ids, leaves[1], leaves[2], None, leaves[3])

    gpu.first_capture()
    kept = forward()
    for which, call in (("forward", forward), ("backward", lambda: torch.autograd.grad(kept, leaves, dout, retain_graph=True))):
        chain = Chain(call)
        before = [t.detach().clone() for t in flat(chain.outputs)]
        found = []
        for i, name in enumerate(chain.names):
            if not chain.is_plan(i):
                found.append((name, PRODUCTS.get((which, name)), *chain.measure(i)))
        chain.graph.replay()
        torch.cuda.synchronize()
        same = all(torch.equal(a, b) for a, b in zip(before, flat(chain.outputs)))
        for name, product, burst, fastest, sustained in found:
            print(f"{model}/t{TOKENS} {which:8s} {name:24s} {product[0] if product else '':16s} burst {burst * 1e3:7.1f} sustained "
                  f"{sustained * 1e3:7.1f} us{'' if same else '  WRONG'}", flush=True)
            if not product:
                continue
            flop = product[1] * 2 * TOKENS * k * width * inner
            yield {"family": "moe", "pass": which, "row": f"{model}/t{TOKENS}: {product[0]}", "dtype": "bfloat16", "provider": "tigon",
                   "provider_version": tigon.__version__, "device_ms": burst, "sustained_ms": sustained, "op_ms": burst,
                   "host_us": None, "floor_ms": flop / rate * 1e-6, "fastest_ms": fastest, "repetitions": BURSTS, "flop": flop,
                   "ceiling_gflops": rate, "peak_bytes": None, "correct": same}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("receipt")
    parser.add_argument("--models", nargs="+", choices=gpu_moe.MODELS, default=["qwen3-30b-a3b"])
    options = parser.parse_args()
    rate = ceiling()
    print(f"torch 8192^3: {rate * 1e-3:.0f} TFLOP/s burst")
    receipt = gpu.Receipt(options.receipt, PROTOCOL, ("apache-tvm-ffi", "cuda-bindings"), "ceiling_gflops")
    for model in options.models:
        for measured in kernels(model, rate):
            receipt.add(measured)


if __name__ == "__main__":
    main()
