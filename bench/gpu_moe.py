"""The expert MLP of a mixture of experts on one CUDA device beside its peers, in one run on random data and routing;
writes a receipt (JSON Lines).

    python3 bench/gpu_moe.py RECEIPT [--rows one|few|tokens|all] [--providers NAME ...] [--add]

Needs PyTorch with CUDA and the tigon package (or PYTHONPATH=python and TIGON_FFI_LIBRARY). Peers that are not installed
are left out and named. The packages of peers may not go together: each is then measured by a process of its own, which adds to
one receipt.
"""

import argparse
import statistics
import time

import torch
import torch.nn.functional as F

import gpu
import moe_peers
import tigon

MODELS = {"qwen3-30b-a3b": (2048, 768, 128, 8), "mixtral-8x7b": (4096, 14336, 8, 2),
          "llama-4-scout": (5120, 8192, 16, 1)}  # D, I, E, k
ROWS = [("qwen3-30b-a3b", t) for t in (8192, 1024, 2048, 4096, 16384)] + [("mixtral-8x7b", 8192), ("llama-4-scout", 8192)]
REST, BURSTS, SUSTAINED_MS = 0.25, 7, 150
PROTOCOL = """Random data and routing; providers one after another, each on the same data, some in processes of their own on the same
machine. device_ms is burst: after 250 ms of rest one call to wake the clocks and one that is timed, the median of 7. op_ms: three
calls enqueued one by one. sustained_ms: the mean of calls back to back for at least 150 ms, after as long untimed. Calls are
replays of a graph where a provider can be captured (in_graph), else eager. Backward is autograd's on a kept graph, to x, the
routing weights and all weights. What peers want in other types or layouts is made before. Triton kernels of sonic-moe and liger
triton tune a part of their configurations (bench/moe_peers.py). floor_ms: the executed FLOP (forward 6, backward 12 x rows x D x
I) at the burst rate of torch's product of 8192^3 in the same process. peak_bytes: memory from PyTorch's allocator, outputs
included; null for liger-cute, which has memory of its own. correct: out and dx of 8 tokens, and one expert's gradient of down,
against the formula in float64. dense: the kernel of torch's product beside moe_rows as down of one expert, both timed by the
profiler in calls as above, tigon's behind gate and up in the same call; op_ms is device_ms there, and floor_ms torch's."""


def providers(wanted):
    """[(name, version, function)]; a peer that is not there, or does not start, is named and left out."""
    found = []
    for name in wanted:
        if name == "tigon":
            found.append((name, tigon.__version__, lambda x, i, w, g, d: tigon.moe(x, i, w, g, None, d)))
            continue
        try:
            found.append((name, *moe_peers.PEERS[name]()))
        except Exception as error:
            print(f"without {name}: {type(error).__name__}: {error}")
    return found


def burst(call):
    taken = []
    for _ in range(BURSTS):
        time.sleep(REST)
        call()
        taken.append(gpu.timed(call, 1))
    return statistics.median(taken), min(taken)


def sustained(call, each):
    calls = max(3, int(SUSTAINED_MS / each))

    def all_calls():
        for _ in range(calls):
            call()

    all_calls()
    return gpu.timed(all_calls, calls)


def problem(model, tokens):
    width, inner, experts, k = MODELS[model]
    torch.manual_seed(0)
    made = [torch.randn(tokens, width, device="cuda").bfloat16(),
            torch.rand(tokens, experts, device="cuda").topk(k).indices,
            torch.rand(tokens, k, device="cuda"),
            torch.empty(experts, 2 * inner, width, device="cuda", dtype=torch.bfloat16).normal_(0, width**-0.5),
            torch.empty(experts, width, inner, device="cuda", dtype=torch.bfloat16).normal_(0, inner**-0.5)]
    return made, torch.randn(tokens, width, device="cuda").bfloat16()


def exact(x, ids, weights, gate_up, down, dout):
    """out and dx of the first 8 tokens, and d_down of the first token's first expert, in float64."""
    some = x[:8].double().requires_grad_()
    out = torch.zeros_like(some)
    for e in ids[:8].unique().tolist():
        gate, up = (some @ gate_up[e].double().T).chunk(2, -1)
        s = (weights[:8].double() * (ids[:8] == e)).sum(1)
        out = out + s[:, None] * ((F.silu(gate) * up) @ down[e].double().T)
    dx, = torch.autograd.grad(out, some, dout[:8].double())
    e = ids[0, 0]
    token, choice = torch.where(ids == e)
    gate, up = (x[token].double() @ gate_up[e].double().T).chunk(2, -1)
    d_down = dout[token].double().T @ (weights[token, choice].double()[:, None] * F.silu(gate) * up)
    return out.detach(), dx, d_down, e


def is_close(got, want):
    return bool((got.double() - want).abs().max() <= 2e-2 * want.abs().max())


def captured(call):
    """(call, whether it is a graph's replay)"""
    try:
        graph, kept = gpu.capture([call])
        return lambda: graph.replay() or kept, True
    except Exception as error:
        print(f"  not captured: {str(error).splitlines()[0]}")
        torch.cuda.synchronize()
        return call, False


def row(model, tokens, rate, found):
    made, dout = problem(model, tokens)
    width, inner, _, k = MODELS[model]
    out, dx, d_down, expert = exact(*made, dout)
    gpu.first_capture()
    for name, release, function in found:
        x, ids, *leaves = made
        leaves = [t.detach().requires_grad_() for t in (x, *leaves)]

        def forward():
            return function(leaves[0], ids, *leaves[1:])

        try:
            kept = forward()
            calls = {"forward": forward,
                     "backward": lambda kept=kept: torch.autograd.grad(kept, leaves, dout, retain_graph=True)}
            gradients = calls["backward"]()
            good = {"forward": is_close(kept[:8], out),
                    "backward": is_close(gradients[0][:8], dx) and is_close(gradients[3][expert], d_down)}
            del gradients
        except Exception as error:
            print(f"{name} {model}/t{tokens}: {str(error).splitlines()[0]}")
            torch.cuda.synchronize()
            continue
        for which, call in calls.items():
            peak = None if name in moe_peers.OWN_MEMORY else gpu.peak_of(call)
            op = gpu.one_by_one([call] * 3)
            run, in_graph = captured(call)
            median, fastest = burst(run)
            flop = (6 if which == "forward" else 12) * tokens * k * width * inner
            yield {"family": "moe", "pass": which, "row": f"{model}/t{tokens}", "dtype": "bfloat16", "provider": name,
                   "provider_version": release, "device_ms": median, "sustained_ms": sustained(run, median),
                   "op_ms": op, "host_us": None, "floor_ms": flop / rate * 1e-6, "fastest_ms": fastest,
                   "repetitions": BURSTS, "flop": flop, "ceiling_gflops": rate, "peak_bytes": peak,
                   "correct": good[which], "in_graph": in_graph}
            del run
        del kept, calls
        torch.cuda.empty_cache()


def kernel_ms(call, calls, name=""):
    """Of the kernels whose names begin so, the sum of a call."""
    total = sum(ms for kernel, ms in gpu.kernels_of(call, calls) if kernel.startswith(name))
    return total / calls


def dense():
    """The product of 8192^3: torch's, and the kernel moe_rows as down of one expert, behind gate and up."""
    size = 8192
    x, down, dout = (torch.randn(size, size, device="cuda").bfloat16() for _ in range(3))
    down *= size**-0.5
    gate_up = torch.empty(1, 2 * size, size, device="cuda", dtype=torch.bfloat16).normal_(0, size**-0.5)
    ids = torch.zeros(size, 1, device="cuda", dtype=torch.int64)
    problem_of_one = (x, ids, torch.ones(size, 1, device="cuda"), gate_up, down[None])

    def forward():
        return tigon.moe(*problem_of_one[:4], None, down[None])

    def product():
        return x @ down.T

    right = is_close(forward()[:8], exact(*problem_of_one, dout)[0])
    right_torch = is_close(product()[:8], x[:8].double() @ down.double().T)
    found = []
    for name, release, call, kernels, each, good in (("tigon", tigon.__version__, forward, "moe_rows", 5, right),
                                                     ("torch matmul", torch.__version__, product, "", 1.4, right_torch)):
        taken = []
        for _ in range(BURSTS):
            time.sleep(REST)
            call()
            taken.append(kernel_ms(call, 1, kernels))
        calls = max(3, int(SUSTAINED_MS / each))
        for _ in range(calls):
            call()
        found.append((name, release, statistics.median(taken), min(taken), kernel_ms(call, calls, kernels), good))
    torchs = found[1][2]
    for name, release, median, fastest, lasting, good in found:
        yield {"family": "moe", "pass": "product", "row": "dense/8192^3", "dtype": "bfloat16", "provider": name,
               "provider_version": release, "device_ms": median, "sustained_ms": lasting, "op_ms": median, "host_us": None,
               "floor_ms": torchs, "fastest_ms": fastest, "repetitions": BURSTS, "flop": 2 * size**3,
               "ceiling_gflops": 2 * size**3 / torchs * 1e-6, "peak_bytes": None, "correct": good, "in_graph": False}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("receipt")
    parser.add_argument("--rows", choices=("one", "few", "tokens", "all"), default="all",
                        help="one: the first model at 8192 tokens; few: each model there; tokens: the first at others "
                             "(default: %(default)s)")
    parser.add_argument("--providers", nargs="+", choices=("tigon", *moe_peers.PEERS), default=("tigon", "torch grouped_mm"),
                        help="default: %(default)s")
    parser.add_argument("--add", action="store_true",
                        help="to a receipt of the same machine and code, which has the product of 8192^3 already")
    options = parser.parse_args()
    rows = {"one": ROWS[:1], "few": (ROWS[0], *ROWS[-2:]), "tokens": ROWS[1:-2], "all": ROWS}[options.rows]
    found = providers(options.providers)
    a, b = (torch.randn(8192, 8192, device="cuda").bfloat16() for _ in range(2))
    rate = 2 * 8192**3 / burst(lambda: a @ b)[0] * 1e-6
    print(f"torch 8192^3: {rate * 1e-3:.0f} TFLOP/s burst")
    del a, b
    receipt = gpu.Receipt(options.receipt, PROTOCOL, ("triton", "apache-tvm-ffi"), "ceiling_gflops", options.add)
    for measured in ([] if options.add else [dense()]) + [row(*r, rate, found) for r in rows]:
        for m in measured:
            receipt.add(m)
            print(f"{m['row']:22s} {m['pass']:9s} {m['provider']:17s} burst {m['device_ms']:8.3f} sustained "
                  f"{m['sustained_ms']:8.3f} ms  {m['flop'] / m['device_ms'] * 1e-9:5.0f} TFLOP/s"
                  f"{'' if m['in_graph'] else '  eager'}{'' if m['correct'] else '  WRONG'}", flush=True)


if __name__ == "__main__":
    main()
