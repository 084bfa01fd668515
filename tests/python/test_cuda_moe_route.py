"""tigon.moe_route on CUDA tensors: beside the CPU, in graphs with new logits, on two streams, under torch.compile."""

import battery
import pytest
import tigon
import torch

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
OPTIONS = [
    {},
    {"renormalize": True, "routed_scale": 2.5},
    {"score": "sigmoid"},
    {"score": "sigmoid", "renormalize": True, "n_group": 8, "topk_group": 4, "bias": True},
    {"n_group": 4, "topk_group": 2, "ids_dtype": torch.int32},
]
SHAPES = [(300, 64), (7, 8), (65, 160), (40, 384), (33, 1000), (9, 4096)]


def logits_of(tokens=300, experts=64, dtype=torch.float32, seed=1):
    return torch.randn(tokens, experts, generator=torch.Generator().manual_seed(seed)).to(dtype)


def options_of(options, experts, device):
    """With the selection bias as a tensor."""
    made = {name: value for name, value in options.items() if name != "bias"}
    if options.get("bias"):
        bias = 0.2 * torch.randn(experts, generator=torch.Generator().manual_seed(5))
        made["selection_bias"] = bias.to(device)
    return made


def given_of(tokens, choices=4):
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(shape, generator=generator) for shape in ((tokens, choices), (), ())]


def step(logits, given, choices=4, **options):
    """All outputs and the gradient."""
    out = tigon.moe_route(logits, choices, **options)
    losses = [out.topk_weights, out.balance_loss, out.z_loss]
    return [*out, *torch.autograd.grad(losses, [logits], given)]


def on_device(tensors):
    return [t.cuda() for t in tensors]


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_is_the_cpus(options, dtype):
    for tokens, experts in SHAPES:
        made, given = logits_of(tokens, experts, dtype), given_of(tokens)
        expected = step(made.clone().requires_grad_(), given, **options_of(options, experts, "cpu"))
        got = step(made.cuda().requires_grad_(), on_device(given), **options_of(options, experts, "cuda"))
        for name, one, two in zip(("topk_ids", "topk_weights", "counts", "balance_loss", "z_loss", "gradient"), got,
                                  expected, strict=True):
            assert one.is_cuda and one.dtype == two.dtype
            if not one.dtype.is_floating_point:
                assert torch.equal(one.cpu(), two), name
            else:
                battery.close(one.cpu(), two, battery.TOLERANCE[one.dtype], name)


def test_strided_rows_and_no_tokens():
    wide = logits_of(50, 96).cuda()
    for columns in (slice(0, 64), slice(3, 40)):
        out, expected = tigon.moe_route(wide[:, columns], 3), tigon.moe_route(wide[:, columns].contiguous(), 3)
        for one, two in zip(out, expected):
            assert torch.equal(one, two)
    out = tigon.moe_route(wide[:0], 3)
    assert out.topk_ids.shape == (0, 3) and not out.counts.any() and out.balance_loss == 0 and out.z_loss == 0


def test_some_gradients_only():
    logits = logits_of().cuda().requires_grad_()
    cpu = logits.detach().cpu().requires_grad_()
    for used in ("topk_weights", "balance_loss", "z_loss"):
        got, expected = (torch.autograd.grad(getattr(tigon.moe_route(x, 4, renormalize=True), used).square().sum(), x)
                         for x in (logits, cpu))
        battery.close(got[0].cpu(), expected[0], 1e-5, used)


def test_repeatable():
    logits, given = logits_of(8192, 128).cuda().requires_grad_(), on_device(given_of(8192, 8))
    first = step(logits, given, 8)
    for _ in range(50):
        for one, two in zip(step(logits, given, 8), first):
            assert torch.equal(one, two)


def test_graph_with_new_logits():
    logits, given = logits_of().cuda().requires_grad_(), on_device(given_of(300))
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        step(logits, given)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step(logits, given)
    for seed in range(4):
        torch.manual_seed(seed)
        logits.data.normal_()
        for t in given:
            t.normal_()
        graph.replay()
        torch.cuda.synchronize()
        for one, two in zip(captured, step(logits, given)):
            assert torch.equal(one, two)


def test_two_streams():
    cases = [(logits_of(500, 64, seed=1).cuda().requires_grad_(), on_device(given_of(500))),
             (logits_of(200, 2048, seed=2).cuda().requires_grad_(), on_device(given_of(200)))]
    expected = [step(*c) for c in cases]
    streams = [torch.cuda.Stream() for _ in cases]
    torch.cuda.synchronize()
    for _ in range(50):
        got = []
        for stream, c in zip(streams, cases):
            with torch.cuda.stream(stream):
                got.append(step(*c))
        torch.cuda.synchronize()
        for one, two in zip(got, expected):
            assert all(torch.equal(a, b) for a, b in zip(one, two))


def test_compile():
    torch._dynamo.reset()

    def function(logits):
        return tuple(tigon.moe_route(logits, 4, renormalize=True))

    graph = torch.compile(function, fullgraph=True, dynamic=True, backend="aot_eager")
    for tokens in (40, 65):
        logits, given = logits_of(tokens).cuda().requires_grad_(), on_device(given_of(tokens))
        out = graph(logits)
        got = [*out, *torch.autograd.grad([out[1], out[3], out[4]], [logits], given)]
        for one, two in zip(got, step(logits, given, renormalize=True)):
            assert torch.equal(one, two)


def test_no_host_synchronisation():
    logits, given = logits_of().cuda().requires_grad_(), on_device(given_of(300))
    step(logits, given)
    torch.cuda.set_sync_debug_mode("error")
    try:
        step(logits, given)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_devices_are_not_mixed():
    with pytest.raises(ValueError, match="selection_bias: expected a tensor on CUDA device"):
        tigon.moe_route(logits_of().cuda(), 2, selection_bias=torch.zeros(64))
