"""tigon.moe on CUDA tensors: beside the CPU, in graphs with new routing, on two streams, under torch.compile."""

import battery
import pytest
import tigon
import torch
from tigon import _library

pytestmark = pytest.mark.skipif(not torch.cuda.is_available() or torch.cuda.get_device_capability()[0] != 9,
                                reason="no Hopper device")
WANTED = ["x", "topk_weights", "gate", "up", "down"]


def tensors(tokens=300, choices=3, experts=9, width=136, inner=200, seed=1):
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape, scale=1.0):
        return (scale * torch.randn(*shape, generator=generator)).bfloat16()

    return {"x": normal(tokens, width), "topk_ids": torch.randint(-1, experts, (tokens, choices), generator=generator),
            "topk_weights": torch.rand(tokens, choices, generator=generator),
            "gate": normal(experts, inner, width, scale=width**-0.5),
            "up": normal(experts, inner, width, scale=width**-0.5),
            "down": normal(experts, width, inner, scale=inner**-0.5)}


def on_device(made):
    return {name: t.cuda() for name, t in made.items()}


def step(inputs, given, **options):
    out = tigon.moe(**inputs, **options)
    return [out, *torch.autograd.grad(out, [inputs[name] for name in WANTED], given)]


@pytest.mark.parametrize("on_input", [False, True])
@pytest.mark.parametrize("recompute", [False, True])
def test_is_the_cpus(on_input, recompute):
    made = tensors()
    given = torch.randn(300, 136).bfloat16()
    options = {"weights_on_input": on_input, "recompute": recompute}
    expected = step(battery.leaves(made, WANTED), given, **options)
    got = step(battery.leaves(on_device(made), WANTED), given.cuda(), **options)
    for one, two in zip(got, expected):
        battery.close(one.cpu(), two, 2e-2, "tensor")


def test_gradients_are_repeatable():
    inputs, given = battery.leaves(on_device(tensors()), WANTED), torch.randn(300, 136, device="cuda").bfloat16()
    first = step(inputs, given)
    for _ in range(50):
        for one, two in zip(step(inputs, given), first):
            assert torch.equal(one, two)


@pytest.mark.parametrize("tokens, experts, choices, width, inner", [(1024, 128, 8, 2048, 768),
                                                                    (4096, 128, 8, 2048, 768), (8000, 64, 4, 64, 1032)])
def test_many_calls_are_equal(tokens, experts, choices, width, inner):
    """Where all multiprocessors have many tiles of few steps: what waits too little fails rarely."""
    torch.manual_seed(tokens)
    made = {"x": torch.randn(tokens, width, device="cuda").bfloat16(),
            "topk_ids": torch.rand(tokens, experts, device="cuda").topk(choices).indices,
            "topk_weights": torch.rand(tokens, choices, device="cuda")}
    for name, shape in (("gate", (inner, width)), ("up", (inner, width)), ("down", (width, inner))):
        made[name] = torch.randn(experts, *shape, device="cuda", dtype=torch.bfloat16) * shape[1]**-0.5
    inputs, given = battery.leaves(made, WANTED), torch.randn(tokens, width, device="cuda").bfloat16()
    first = [t.clone() for t in step(inputs, given)]
    for _ in range(400):
        for one, two in zip(step(inputs, given), first):
            assert torch.equal(one, two)


def test_graph_with_new_routing():
    inputs, given = battery.leaves(on_device(tensors()), WANTED), torch.randn(300, 136, device="cuda").bfloat16()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        step(inputs, given)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step(inputs, given)
    for seed in range(4):
        torch.manual_seed(seed)
        inputs["topk_ids"].random_(-1 if seed else 8, 9)  # all to one expert, then anywhere
        inputs["x"].data.normal_()
        graph.replay()
        torch.cuda.synchronize()
        for one, two in zip(captured, step(inputs, given)):
            assert torch.equal(one, two)


def test_two_streams():
    cases = [battery.leaves(on_device(tensors(seed=s, tokens=200 + 300 * s)), WANTED) for s in range(2)]
    givens = [torch.randn_like(c["x"]) for c in cases]
    expected = [step(c, g) for c, g in zip(cases, givens)]
    streams = [torch.cuda.Stream() for _ in cases]
    torch.cuda.synchronize()
    for _ in range(50):
        got = []
        for stream, c, g in zip(streams, cases, givens):
            with torch.cuda.stream(stream):
                got.append(step(c, g))
        torch.cuda.synchronize()
        for one, two in zip(got, expected):
            assert all(torch.equal(a, b) for a, b in zip(one, two))


def test_compile():
    torch._dynamo.reset()
    graph = torch.compile(lambda **inputs: tigon.moe(**inputs), fullgraph=True, dynamic=True, backend="aot_eager")
    for tokens in (40, 65):
        inputs = battery.leaves(on_device(tensors(tokens=tokens)), WANTED)
        given = torch.randn_like(inputs["x"])
        out = graph(**inputs)
        got = [out, *torch.autograd.grad(out, [inputs[name] for name in WANTED], given)]
        for one, two in zip(got, step(inputs, given)):
            assert torch.equal(one, two)


@pytest.mark.parametrize("row_limit", [0, 100])
def test_saved_bytes(row_limit):
    given = on_device(tensors())
    inputs = [given[n] for n in ("x", "topk_ids", "topk_weights", "gate", "up", "down")]
    out, saved = torch.ops.tigon.moe(*inputs, 0, False, row_limit, True, 0)
    query = _library.function("tigon_moe_saved")
    assert query(0, *inputs[:5], None, inputs[5], out, None, 0, 0, 0, row_limit) == saved.numel()


def test_no_host_synchronisation():
    inputs, given = battery.leaves(on_device(tensors()), WANTED), torch.randn(300, 136, device="cuda").bfloat16()
    step(inputs, given)
    torch.cuda.set_sync_debug_mode("error")
    try:
        step(inputs, given)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_other_dtypes_say_so():
    inputs = on_device(tensors())
    inputs["x"] = inputs["x"].float()
    with pytest.raises(NotImplementedError, match="tigon_moe: x: expected dtype bfloat16 on a CUDA device"):
        tigon.moe(**inputs)
