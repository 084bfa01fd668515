"""What the benches on a CUDA device share: how they measure, and what stands in their receipts (bench/results/README.md).
"""

import functools
import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import time

import torch

import receipt
import tigon

TURNS, CALLS = 9, 12
ROTATED = """Device time: CALLS calls over rotated inputs, more than the second-level cache holds, captured into one graph whose
replay is timed by events and divided by the calls; providers take turns, and the median over the turns counts. Outputs
of all calls stay allocated, so that none finds its predecessor's in the cache. Operation time: the same calls enqueued
one by one. Host time: what a call takes the CPU until it returns, the median of 2000 calls, the queue emptied every 50."""


def version(package):
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


@functools.cache
def first_capture():
    """The first capture of a backward pass in a process fails in PyTorch 2.11, whoever's functions it calls."""
    x = torch.ones(8, device="cuda", requires_grad=True)
    out = x * 2
    try:
        capture([lambda: torch.autograd.grad(out, x, out, retain_graph=True)])
    except RuntimeError as error:
        print(f"first capture of a backward pass: {str(error).splitlines()[0]}")
        torch.cuda.synchronize()
        capture([lambda: x.detach() * 2])  # else random numbers count as part of the failed one


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


def timed(work, calls):
    """Milliseconds of the device a call."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    work()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / calls


def kernels_of(work, calls):
    """[(name, milliseconds)] of what the device does in so many calls, in the order of time, by the profiler."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA], acc_events=True) as profile:
        for _ in range(calls):
            work()
        torch.cuda.synchronize()
    found = [e for e in profile.events() if e.device_type == torch.autograd.DeviceType.CUDA]
    return [(e.name, e.device_time * 1e-3) for e in sorted(found, key=lambda e: e.time_range.start)]


def in_turns(graphs):
    """Milliseconds a call: {name: (median over the turns, fastest)}."""
    taken = {name: [] for name in graphs}
    for _ in range(TURNS):
        for name, (graph, _) in graphs.items():
            taken[name].append(timed(graph.replay, CALLS))
    return {name: (statistics.median(times), min(times)) for name, times in taken.items()}


def one_by_one(calls):
    """Milliseconds a call, enqueued without a graph: the median over the turns."""
    def enqueue_all():
        for call in calls:
            call()

    return statistics.median(timed(enqueue_all, len(calls)) for _ in range(TURNS))


def peak_of(call):
    """Bytes that a call takes from PyTorch's allocator at most, its outputs included."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    kept = call()
    torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated() - before
    del kept
    return peak


def enqueue(call):
    """Microseconds of the host a call."""
    taken = []
    for i in range(-50, 2000):
        if i % 50 == 0:
            torch.cuda.synchronize()
        start = time.perf_counter_ns()
        call()
        taken.append(time.perf_counter_ns() - start)
    torch.cuda.synchronize()
    return statistics.median(taken[50:]) / 1e3


def environment(protocol, packages):
    """The first line of a receipt. The commit is what TIGON_COMMIT says, for sources that were carried here without it."""
    query = ["nvidia-smi", "--query-gpu=driver_version,clocks.max.sm,clocks.max.mem,power.limit", "--format=csv,noheader",
             "-i", "0"]
    driver = subprocess.run(query, capture_output=True, text=True, check=False).stdout.strip()
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False).stdout.strip()
    properties = torch.cuda.get_device_properties(0)
    major, minor = torch.cuda.get_device_capability(0)
    versions = {"tigon": tigon.__version__, "PyTorch": torch.__version__, "driver, clocks, power limit": driver}
    versions.update((name, version(name)) for name in packages if version(name))
    return {"receipt": "tigon bench 1", "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "device": {"gpu": properties.name, "multiprocessors": properties.multi_processor_count, "cpu": None,
                       "cores": os.cpu_count(), "memory_bytes": properties.total_memory, "huge_pages": None,
                       "architecture": platform.machine()},
            "versions": versions, "compiler": f"CUDA {torch.version.cuda}", "isa": f"sm_{major}{minor}", "threads": 1,
            "seed": 0, "quick": False, "seconds_a_row": 0, "commit": os.environ.get("TIGON_COMMIT") or commit or None,
            "protocol": " ".join(protocol.split()), "ceilings": {}}


class Receipt:
    """Lines of a receipt; the file is whole after each. The environment's ceiling is the median over the rows. adds: to those
    that the file has, which came from the same device, code and protocol."""
    def __init__(self, path, protocol, packages, ceiling, adds=False):
        self.path, self.ceiling = path, ceiling
        self.environment, self.lines = environment(protocol, packages), []
        if adds:
            here = self.environment
            self.environment, self.lines = receipt.read(path)
            for name in ("device", "commit", "compiler", "protocol"):
                if self.environment[name] != here[name]:
                    raise SystemExit(f"{path}: its {name} is {self.environment[name]}, and here {here[name]}")
            for name, found in here["versions"].items():
                if self.environment["versions"].setdefault(name, found) != found:
                    raise SystemExit(f"{path}: its {name} is {self.environment['versions'][name]}, and here {found}")

    def add(self, measurement):
        if any(all(measurement[n] == line[n] for n in receipt.KEY) for line in self.lines):
            raise SystemExit(f"{self.path}: has {measurement['row']}, {measurement['pass']} of {measurement['provider']} already")
        self.lines.append(measurement)
        self.environment["ceilings"] = {self.ceiling: statistics.median(line[self.ceiling] for line in self.lines)}
        with open(self.path, "w", encoding="utf-8") as file:
            for line in (self.environment, *self.lines):
                file.write(json.dumps(line) + "\n")
