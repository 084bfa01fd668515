"""PyTorch on the CPU as a peer of `tigon bench`: runs the rows that it is asked for over a line protocol.

Started as `python3 torch_cpu.py THREADS`; apps/tigon/bench_peer.h describes the protocol. A row has inputs, and providers:
ways to compute it. Each provider gives its forward outputs, and its gradients through autograd on a kept graph.
"""

import ctypes
import gc
import json
import mmap
import os
import signal
import sys
import time
import warnings

SHARED = 3  # descriptor of the file that tensors go through
PATIENCE = 60  # seconds for forward and backward: whoever takes longer (bfloat16 without instructions for it) is left out
SETTLE = 0.03  # seconds after a run in which the threads of OpenMP stop spinning, which would slow the other side


class Provider:
    """leaves: names of the inputs that gradients are wanted of; gradients: what these are called; upstream: the input that
    is the gradient of the output, whose name is output."""

    def __init__(self, name, function, output, upstream=None, leaves=(), gradients=()):
        self.name, self.function, self.output = name, function, output
        self.upstream, self.leaves, self.gradients = upstream, leaves, gradients


# --- providers -------------------------------------------------------------------------------------------------------


def gemm(t, _):
    yield Provider("mm", lambda t: torch.mm(t["x"], t["weight"].t()), "y")
    yield Provider("linear", lambda t: F.linear(t["x"], t["weight"]), "y")


def rms_norm(t, _):
    width = t["x"].shape[-1]

    def eager(t):  # as Hugging Face LlamaRMSNorm
        x = t["x"].float()
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
        return t["weight"] * x.to(t["x"].dtype)

    names = ("out", "dy", ("x", "weight"), ("dx", "d_weight"))
    if hasattr(F, "rms_norm"):
        yield Provider("rms_norm", lambda t: F.rms_norm(t["x"], (width,), t["weight"], 1e-6), *names)
    yield Provider("eager", eager, *names)


def linear_cross_entropy(t, _):
    names = ("loss", "d_loss", ("x", "weight"), ("dx", "dweight"))
    yield Provider("eager", lambda t: F.cross_entropy(F.linear(t["x"], t["weight"]).float(), t["target"], reduction="none"),
                   *names)
    if hasattr(F, "linear_cross_entropy"):
        yield Provider("linear_cross_entropy",
                       lambda t: F.linear_cross_entropy(t["x"], t["weight"], t["target"], reduction="none"), *names)


def chunked_attention(t, scale, block, dtype):
    """All blocks of all heads at once; only the running state goes from block to block."""
    batch, tokens, heads, width = t["q"].shape

    def blocks(x):  # (B, T, H, K) -> (B, H, T / block, block, K)
        return x.to(dtype).transpose(1, 2).reshape(batch, heads, tokens // block, block, width)

    q, k, v = blocks(t["q"]), blocks(t["k"]), blocks(t["v"])
    slope = t["decay"].view(heads, 1, 1, 1)
    at = torch.arange(block, dtype=torch.float32)
    distance = at[:, None] - at[None, :]
    within = torch.where(distance >= 0, torch.exp(-slope * distance.clamp(min=0)), torch.zeros(())).to(dtype)
    entering = torch.exp(-slope * (at[:, None] + 1)).to(dtype)
    leaving = torch.exp(-slope * (block - 1 - at[:, None])).to(dtype)
    whole = torch.exp(-slope * block).view(heads, 1, 1)
    added = torch.matmul((k * leaving).transpose(-1, -2), v).float()
    state, states = torch.zeros(batch, heads, width, width), []
    for one in added.unbind(2):
        states.append(state)
        state = state * whole + one
    out = torch.matmul(torch.matmul(q, k.transpose(-1, -2)) * within, v)
    out = out + torch.matmul(q * entering, torch.stack(states, 2).to(dtype))
    return (out * scale).reshape(batch, heads, tokens, width).transpose(1, 2).to(t["q"].dtype)


def lightning_attention(t, scale):
    """The fastest of some block sizes, and of products in fp32 or in the inputs' dtype."""
    best = None
    for block in (64, 128, 256):
        for dtype in {torch.float32, t["q"].dtype}:
            if t["q"].shape[1] % block:
                continue
            one = Provider("eager", lambda t, block=block, dtype=dtype: chunked_attention(t, scale, block, dtype), "out",
                           "dout", ("q", "k", "v"), ("dq", "dk", "dv"))
            seconds = min(Run(one, t).both() for _ in range(3))
            if best is None or seconds < best[0]:
                best = seconds, one
    if best:
        yield best[1]


def moe(t, _):
    names = ("out", "dout", ("x", "topk_weights", "gate", "up", "down"),
             ("dx", "d_topk_weights", "d_gate", "d_up", "d_down"))

    def eager(t):  # a loop over experts, as Hugging Face's Mixtral
        x, out = t["x"], torch.zeros_like(t["x"])
        for expert in range(t["gate"].shape[0]):
            token, choice = torch.where(t["topk_ids"] == expert)
            rows = x.index_select(0, token)
            act = F.silu(F.linear(rows, t["gate"][expert])) * F.linear(rows, t["up"][expert])
            y = F.linear(act, t["down"][expert]) * t["topk_weights"][token, choice, None]
            out.index_add_(0, token, y.to(x.dtype))
        return out

    def grouped(t):
        x, ids = t["x"], t["topk_ids"].reshape(-1)
        order = torch.argsort(ids, stable=True)
        ends = torch.cumsum(torch.bincount(ids, minlength=t["gate"].shape[0]), 0).to(torch.int32)
        token = order // t["topk_ids"].shape[1]
        rows = x.index_select(0, token)
        products = [torch._grouped_mm(rows, t[name].transpose(1, 2), offs=ends) for name in ("gate", "up")]
        y = torch._grouped_mm(F.silu(products[0]) * products[1], t["down"].transpose(1, 2), offs=ends)
        y = y * t["topk_weights"].reshape(-1)[order, None]
        return torch.zeros_like(x).index_add(0, token, y.to(x.dtype))

    yield Provider("eager", eager, *names)
    if hasattr(torch, "_grouped_mm"):
        yield Provider("grouped_mm", grouped, *names)


FAMILIES = {f.__name__: f for f in (gemm, rms_norm, lightning_attention, linear_cross_entropy, moe)}

# --- measuring -------------------------------------------------------------------------------------------------------


class Run:
    """One provider on one row's inputs: its graph after forward, its gradients after backward."""

    def __init__(self, provider, tensors):
        self.provider, self.tensors = provider, dict(tensors)
        self.out = self.gradients = None
        for name in provider.leaves:
            self.tensors[name] = tensors[name].detach().requires_grad_()

    def drop(self):
        self.out = self.gradients = None

    def forward(self):
        self.drop()
        start = time.perf_counter()
        self.out = self.provider.function(self.tensors)
        return time.perf_counter() - start

    def backward(self):
        if self.out is None:
            self.forward()
        self.gradients = None
        leaves = [self.tensors[name] for name in self.provider.leaves]
        start = time.perf_counter()
        self.gradients = torch.autograd.grad(self.out, leaves, self.tensors[self.provider.upstream], retain_graph=True)
        return time.perf_counter() - start

    def both(self):
        seconds = self.forward() + self.backward()
        self.drop()
        return seconds

    def result(self, name):
        if name == self.provider.output:
            return self.out
        return dict(zip(self.provider.gradients, self.gradients))[name]


def status(name):
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))


def reset_peak():
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")


def give_memory_back():
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)


class Peer:
    """The answers to what may be asked."""

    def __init__(self):
        self.inputs, self.family, self.scale, self.runs = {}, None, 1.0, {}
        self.kind, self.slow = None, {}  # (family, dtype); elements and seconds of who was left out of such a row

    def prepare(self, family, dtype, scale):
        self.runs, self.inputs = {}, {}
        give_memory_back()
        self.family, self.scale, self.kind = FAMILIES[family], scale, (family, dtype)
        return {}

    def shared(self, dtype, shape, size):
        memory = mmap.mmap(SHARED, size)
        return memory, torch.frombuffer(memory, dtype=getattr(torch, dtype)).reshape(shape)

    def input(self, name, dtype, shape, bytes):
        memory, tensor = self.shared(dtype, shape, bytes)
        self.inputs[name] = tensor.clone()
        del tensor
        memory.close()
        return {}

    def ready(self):
        left_out = []
        size = sum(tensor.numel() for tensor in self.inputs.values())
        for provider in self.family(self.inputs, self.scale):
            slow = self.slow.get((*self.kind, provider.name))
            if slow and slow[0] <= size:
                left_out.append(f"{provider.name}: took {slow[1]:.0f} s for a row no larger")
                continue
            run = Run(provider, self.inputs)
            try:
                seconds = run.forward()
                if provider.leaves:
                    seconds += run.backward()
                run.drop()
                if seconds > PATIENCE:
                    self.slow[(*self.kind, provider.name)] = size, seconds
                    left_out.append(f"{provider.name}: takes {seconds:.0f} s, more than {PATIENCE} s")
                else:
                    self.runs[provider.name] = run
            except (RuntimeError, TypeError, NotImplementedError) as error:
                left_out.append(f"{provider.name}: {error}")
        return {"providers": list(self.runs), "left_out": left_out}

    def begin(self, provider):
        """The run of that provider; what the others hold is freed."""
        for name, run in self.runs.items():
            if name != provider:
                run.drop()
        return self.runs[provider]

    def peak(self, provider, which):
        run = self.begin(provider)
        run.forward()
        if run.provider.leaves:
            run.backward()
        run.drop()
        give_memory_back()
        level = status("VmRSS:")
        if which == "backward":
            run.forward()
        reset_peak()
        getattr(run, which)()
        return {"peak_bytes": max(0, status("VmHWM:") - level)}

    def run(self, provider, which):
        seconds = getattr(self.begin(provider), which)()
        if torch.get_num_threads() > 1:
            time.sleep(SETTLE)
        return {"seconds": seconds}

    def output(self, provider, which, name, dtype, shape, bytes):
        memory, tensor = self.shared(dtype, shape, bytes)
        result = self.runs[provider].result(name)
        if list(result.shape) != shape:
            return {"error": f"{name} of {provider} has shape {list(result.shape)}, not {shape}"}
        with torch.no_grad():
            tensor.copy_(result)
        del tensor
        memory.close()
        return {}


def main():
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the program ends this process by closing its input
    warnings.simplefilter("ignore")
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints is no answer

    def answer(message):
        answers.write(json.dumps(message) + "\n")
        answers.flush()

    global torch, F
    try:
        import torch
        import torch.nn.functional as F
    except ImportError as error:
        answer({"error": f"{sys.executable} has no PyTorch ({error})"})
        return
    threads = int(sys.argv[1])
    torch.set_num_threads(threads)
    answer({"peer": "PyTorch", "version": torch.__version__, "threads": torch.get_num_threads()})
    peer = Peer()
    for line in sys.stdin:
        message = json.loads(line)
        what = message.pop("do")
        try:
            answer(getattr(peer, what)(**message))
        except Exception as error:  # the program decides what a failure means
            answer({"error": f"{what}: {type(error).__name__}: {error}"})


if __name__ == "__main__":
    main()
