"""Makes docs/performance.md and its charts from receipts of `tigon bench --receipt`; no number is written by hand.

    python3 bench/plot.py bench/results/cpu.jsonl ...

Needs matplotlib for the charts.
"""

import argparse
import os
import pathlib
import sys

import receipt

ROOT = pathlib.Path(__file__).resolve().parents[1]
MIB = 1 << 20
COLOURS = ["#1b6ca8", "#d98032", "#8a8a8a", "#5a9e6f", "#a05195"]  # tigon first
INTRODUCTION = """# Performance

This page is made by `bench/plot.py` from receipts, which lie in `bench/results/`; no number in it is written by hand. It is
renewed with

```sh
build/release/tigon bench --receipt bench/results/cpu.jsonl
make gpu-bench
python3 bench/plot.py bench/results/*.jsonl
```

ms: median time. rate: executed floating-point operations, or bytes read and written, a second. of ceiling: the rate over the
ceiling that was measured in turns with it. faster: a peer's time over that of `tigon` (the host's where a row has it); below
1, `tigon` is slower. peak: memory above the inputs.
"""


def rows_of(measurements):
    """{(row, dtype, pass): {provider: measurement}} in the order of the receipt."""
    rows = {}
    for m in measurements:
        rows.setdefault((m["row"], m["dtype"], m["pass"]), {})[m["provider"]] = m
    return rows


def families_of(measurements):
    families = {}
    for m in measurements:
        families.setdefault(m["family"], []).append(m)
    return families


def rate(m):
    if "bytes" in m:
        return f"{m['bytes'] / m['device_ms'] * 1e-6:.1f} GB/s"
    gflops = m["flop"] / m["device_ms"] * 1e-6
    return f"{gflops:.1f} GFLOP/s" if gflops < 1e4 else f"{gflops * 1e-3:.0f} TFLOP/s"


def is_peer(name):
    """Not another form of tigon, nor a floor that nothing can be faster than."""
    return not name.startswith(("tigon", "floor: "))


def peak(m):
    return "-" if m["peak_bytes"] is None else f"{m['peak_bytes'] / MIB:.1f} MiB"


def cost(m):
    """What counts in a comparison: the host's time where it was measured, else the device's."""
    return m["device_ms"] if m["host_us"] is None else m["host_us"]


def table(measurements):
    hosts = any(m["host_us"] is not None for m in measurements)
    sustained = any("sustained_ms" in m for m in measurements)
    columns = ["ms", *(["sustained ms"] if sustained else []), *(["host us"] if hosts else []), "rate", "of ceiling",
               "faster", "peak"]
    lines = ["| row | dtype | pass | provider | " + " | ".join(columns) + " |", "|---|---|---|---|" + "--:|" * len(columns)]
    for (row, dtype, which), providers in rows_of(measurements).items():
        ours = providers.get("tigon")
        for name, m in providers.items():
            faster = f"{cost(m) / cost(ours):.2f}" if ours and m is not ours else ""
            share = f"{100 * m['floor_ms'] / m['device_ms']:.0f} %"
            values = [f"{m['device_ms']:.4g}", rate(m), share, faster, peak(m)]
            if hosts:
                values.insert(1, "" if m["host_us"] is None else f"{m['host_us']:.2f}")
            if sustained:
                values.insert(1, f"{m['sustained_ms']:.4g}" if "sustained_ms" in m else "")
            name = name if m["correct"] else f"{name} (wrong result)"
            lines.append(f"| {row} | {dtype} | {which} | {name} | {' | '.join(values)} |")
    return "\n".join(lines)


def summary(measurements):
    """How many comparisons there are, and in which tigon is slower."""
    slower, compared = [], 0
    for family, found in families_of(measurements).items():
        for (row, dtype, which), providers in rows_of(found).items():
            for name, m in providers.items():
                if not is_peer(name) or "tigon" not in providers:
                    continue
                compared += 1
                if cost(m) < cost(providers["tigon"]):
                    slower.append(f"- {family}, {row}, {dtype}, {which}: {name} takes "
                                  f"{cost(m) / cost(providers['tigon']):.2f} of the time")
    if not compared:
        return "No peer took part."
    if not slower:
        return f"`tigon` is not slower in any of {compared} comparisons."
    return f"`tigon` is slower in {len(slower)} of {compared} comparisons:\n\n" + "\n".join(slower)


def processor(device):
    if "gpu" in device:
        return f"{device['gpu']}, {device['multiprocessors']} multiprocessors"
    return f"{device['cpu'] or device['architecture']}, {device['cores']} cores"


def describe(environment, path, measurements):
    device, versions = environment["device"], environment["versions"]
    peers = {}
    for m in measurements:
        if is_peer(m["provider"]):
            peers.setdefault(m["provider_version"], {})[m["provider"]] = None
    ceilings = ", ".join(f"{name} {value:.1f}" for name, value in environment["ceilings"].items())
    facts = [("receipt", f"`{path}`"), ("date", environment["date"]), ("commit", environment["commit"] or "not known"),
             ("processor", processor(device)),
             ("memory", f"{device['memory_bytes'] / 2**30:.0f} GiB" + (f", huge pages: {device['huge_pages']}" if device["huge_pages"] else "")),
             ("versions", ", ".join(f"{name} {version}" for name, version in versions.items())),
             ("compiler, instruction set", f"{environment['compiler']}, {environment['isa']}"),
             ("threads", environment["threads"]), ("peers", "; ".join(f"{', '.join(names)} ({version})" for version, names in peers.items()) or "none"),
             ("ceilings (medians over the rows)", ceilings)]
    return "| | |\n|---|---|\n" + "\n".join(f"| {name} | {value} |" for name, value in facts) + f"\n\n{environment['protocol']}"


def draw(family, measurements, path):
    """Percent of the ceiling and peak memory of each row and provider, where not the host was measured."""
    measurements = [m for m in measurements if m["host_us"] is None]
    try:
        import matplotlib
    except ImportError:
        sys.exit("plot.py: charts need matplotlib (python3 -m pip install matplotlib)")
    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = family  # the same receipt gives the same file
    from matplotlib.figure import Figure

    rows = rows_of(measurements)
    names = list(dict.fromkeys(m["provider"] for m in measurements))
    figure = Figure(figsize=(12, 1.2 + len(rows) * (0.25 + 0.13 * len(names))), layout="constrained")
    speed, memory = figure.subplots(1, 2, sharey=True)
    height = 0.8 / len(names)
    for i, name in enumerate(names):
        at = [y + (i - (len(names) - 1) / 2) * height for y, found in enumerate(rows.values()) if name in found]
        found = [found[name] for found in rows.values() if name in found]
        colour = COLOURS[i % len(COLOURS)]
        speed.barh(at, [100 * m["floor_ms"] / m["device_ms"] for m in found], height, color=colour, label=name)
        memory.barh(at, [(m["peak_bytes"] or 0) / MIB for m in found], height, color=colour)
    speed.set_yticks(range(len(rows)), ["\n".join((row, f"{dtype}, {which}")) for row, dtype, which in rows], fontsize=8)
    speed.invert_yaxis()
    speed.set_xlabel("percent of the ceiling (longer is faster)")
    memory.set_xlabel("peak memory above the inputs, MiB")
    figure.suptitle(family)
    figure.legend(loc="outside lower center", ncols=len(names))
    figure.savefig(path, metadata={"Date": None})


def section(path, charts, page):
    environment, measurements = receipt.read(path)
    if not measurements:
        raise receipt.Malformed(f"{path}: line 2: no measurement follows")
    name = pathlib.Path(path).stem
    whole = pathlib.Path(path).resolve()
    shown = whole.relative_to(ROOT) if whole.is_relative_to(ROOT) else whole.name
    device = environment["device"]
    title = device["gpu"] if "gpu" in device else f"{device['cpu'] or 'CPU'}, {environment['threads']} threads"
    parts = [f"## {title}",
             describe(environment, shown, measurements), summary(measurements)]
    if environment["quick"]:
        parts.append("These are the tiny rows of `--quick`: no measurement of speed.")
    for family, found in families_of(measurements).items():
        chart = charts / f"{name}_{family}.svg"
        draw(family, found, chart)
        parts.append(f"### {family}\n\n![{family}]({os.path.relpath(chart, page.parent)})\n\n{table(found)}")
    return "\n\n".join(parts)


def main():
    arguments = argparse.ArgumentParser(description="Makes the page and the charts of performance from receipts.")
    arguments.add_argument("receipts", nargs="+", metavar="RECEIPT", help="JSON Lines that `tigon bench --receipt` wrote")
    arguments.add_argument("--page", type=pathlib.Path, default=ROOT / "docs/performance.md", help="default: %(default)s")
    arguments.add_argument("--charts", type=pathlib.Path, default=ROOT / "docs/assets", help="folder; default: %(default)s")
    options = arguments.parse_args()
    try:
        options.charts.mkdir(parents=True, exist_ok=True)
        sections = [section(path, options.charts, options.page) for path in options.receipts]
        options.page.write_text("\n\n".join([INTRODUCTION.rstrip(), *sections]) + "\n")
    except (receipt.Malformed, OSError) as error:
        sys.exit(f"plot.py: {error}")


if __name__ == "__main__":
    main()
