"""CUDA tensors: rms_norm on the current stream, in graphs and under torch.compile; other families say that they
cannot."""

import battery
import pytest
import tigon
import torch
from test_rms_norm import formula, tensors

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
WANTED = ["x", "weight", "residual"]


def on_device(made, device="cuda"):
    return {name: t.to(device) for name, t in made.items()}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(64, 512), (2, 3, 5, 64), (4, 8192)])
def test_is_the_cpus(dtype, shape):
    made = tensors(*shape, dtype=dtype, residual=True)
    inputs = battery.leaves(made, WANTED)
    outputs = tigon.rms_norm(**inputs)
    given = battery.upstream(outputs)
    expected = [*outputs, *torch.autograd.grad(outputs, list(inputs.values()), given)]
    inputs = battery.leaves(on_device(made), WANTED)
    outputs = tigon.rms_norm(**inputs)
    got = [*outputs, *torch.autograd.grad(outputs, list(inputs.values()), [g.cuda() for g in given])]
    for one, two in zip(got, expected):
        assert one.is_cuda
        battery.close(one.cpu(), two, battery.TOLERANCE[dtype], "tensor")


def test_layouts():
    x = torch.randn(4, 6, 3, 5, 64, device="cuda")[:, :, 1]
    torch.testing.assert_close(tigon.rms_norm(x), formula(x))
    torch.testing.assert_close(tigon.rms_norm(x.transpose(1, 2)), formula(x.transpose(1, 2)))


def test_runs_on_the_current_stream():
    """Behind a long product on its stream; on the default stream it would read zeros."""
    side = torch.cuda.Stream()
    made = on_device(tensors(256, 1024))
    x = torch.zeros_like(made["x"])
    slow = torch.randn(8192, 8192, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        for _ in range(20):
            slow @ slow
        x.copy_(made["x"])
        out = tigon.rms_norm(x, made["weight"])
    side.synchronize()
    torch.testing.assert_close(out, formula(**made))


def test_graph_capture():
    made = on_device(tensors(128, 512))
    inputs = battery.leaves(made, ["x", "weight"])
    given = torch.randn(128, 512, device="cuda")

    def step():
        return torch.autograd.grad(tigon.rms_norm(**inputs), list(inputs.values()), given)

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    for seed in range(3):
        torch.manual_seed(seed)
        inputs["x"].data.normal_()
        graph.replay()
        torch.cuda.synchronize()
        for one, two in zip(captured, step()):
            assert torch.equal(one, two)


def test_compile():
    cases = [on_device(tensors(*shape, residual=True)) for shape in ((6, 512), (9, 512))]
    torch._dynamo.reset()
    graph = torch.compile(tigon.rms_norm, fullgraph=True, dynamic=True, backend="aot_eager")
    for made in cases:
        for one, two in zip(graph(**made), tigon.rms_norm(**made)):
            assert torch.equal(one, two)


def test_second_device():
    if torch.cuda.device_count() < 2:
        pytest.skip("one device")
    made = tensors(32, 256)
    out = tigon.rms_norm(**on_device(made, "cuda:1"))
    assert out.device.index == 1 and torch.cuda.current_device() == 0
    torch.testing.assert_close(out.cpu(), formula(**made))


def test_devices_are_not_mixed():
    made = tensors(4, 64)
    with pytest.raises(ValueError, match="weight: "):
        tigon.rms_norm(made["x"].cuda(), made["weight"])


def test_other_families_say_so():
    x, weight = torch.randn(4, 16, device="cuda"), torch.randn(8, 16, device="cuda")
    heads = torch.randn(1, 4, 2, 8, device="cuda")
    ids = torch.zeros(4, 1, dtype=torch.int64, device="cuda")
    experts = torch.randn(2, 8, 16, device="cuda")
    for name, call in [
        ("tigon_linear", lambda: tigon.linear(x, weight)),
        ("tigon_linear_cross_entropy", lambda: tigon.linear_cross_entropy(x, weight, ids[:, 0])),
        ("tigon_lightning_attention",
         lambda: tigon.lightning_attention(heads, heads, heads, torch.rand(2, device="cuda"))),
        ("tigon_moe", lambda: tigon.moe(x, ids, torch.rand(4, 1, device="cuda"), experts, experts, experts.mT)),
    ]:
        with pytest.raises(NotImplementedError) as caught:
            call()
        assert str(caught.value).startswith(name + ": "), str(caught.value)
