"""tigon.lightning_attention against the recurrence, in float64."""

import battery
import numpy as np
import pytest
import tigon
import torch

WANTED = ["q", "k", "v", "initial_state"]


def tensors(batch=2, tokens=70, heads=2, value_heads=4, width=8, value_width=6, dtype=torch.float32, state=True):
    torch.manual_seed(5)
    made = {
        "q": torch.randn(batch, tokens, heads, width).to(dtype), "k": torch.randn(batch, tokens, heads,
                                                                                  width).to(dtype),
        "v": torch.randn(batch, tokens, value_heads, value_width).to(dtype), "decay": torch.rand(value_heads)
    }
    if state:
        made["initial_state"] = torch.randn(batch, value_heads, value_width, width)
    return made


def formula(q, k, v, decay, initial_state=None, scale=1.0):
    group = v.shape[2] // q.shape[2]
    q, k = (t.repeat_interleave(group, dim=2) for t in (q, k))
    state = torch.zeros(q.shape[0], v.shape[2], v.shape[3], q.shape[3], dtype=q.dtype)
    state = state if initial_state is None else initial_state
    factor = torch.exp(-decay.to(q.dtype))[None, :, None, None]
    outs = []
    for t in range(q.shape[1]):
        state = factor * state + v[:, t, :, :, None] * k[:, t, :, None, :]
        outs.append(scale * (state @ q[:, t, :, :, None])[..., 0])
    return torch.stack(outs, dim=1), state


def both(**inputs):
    return tigon.lightning_attention(return_final_state=True, scale=0.3, **inputs)


def formula_of_both(**inputs):
    return formula(scale=0.3, **inputs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_formula(dtype):
    made = tensors(dtype=dtype)
    battery.against_formula(both, formula_of_both, made, WANTED, 1e-4 if dtype == torch.float32 else None)


def test_without_states():
    made = tensors(state=False)
    battery.against_formula(tigon.lightning_attention, lambda **i: formula(**i)[0], made, ["q", "k", "v"], 1e-4)


def test_autograd():
    made = tensors(tokens=20)
    battery.against_formula(both, formula_of_both, made, WANTED, 1e-4)
    battery.same_gradients_however_asked(both, made, WANTED)
    battery.backward_twice(both, made, WANTED)
    battery.shared_by_two_consumers(both, made, WANTED)
    battery.expanded_upstream(both, made, WANTED)
    battery.no_second_derivative(both, made, WANTED)


@pytest.mark.parametrize("used", [0, 1])
def test_one_of_two_gradients(used):
    made = tensors(tokens=9)
    wanted = WANTED if used == 0 else ["k", "v", "initial_state"]
    battery.against_formula(lambda **i: both(**i)[used], lambda **i: formula_of_both(**i)[used], made, wanted, 1e-4)


def test_packed_sequences():
    made = tensors(batch=1, tokens=50, state=False)
    bounds = [0, 13, 13, 50]
    states = torch.randn(3, 4, 6, 8)
    out, final = tigon.lightning_attention(**made, cu_seqlens=torch.tensor(bounds), initial_state=states,
                                           return_final_state=True)
    for n, (a, b) in enumerate(zip(bounds, bounds[1:])):
        part = {name: made[name][:, a:b] for name in ("q", "k", "v")}
        alone, state = tigon.lightning_attention(**part, decay=made["decay"], initial_state=states[n:n + 1],
                                                 return_final_state=True)
        assert torch.equal(out[:, a:b], alone) and torch.equal(final[n], state[0])


def test_layouts():
    """Slices of one projection and transposed heads are read in place and give the bits of their copies."""
    torch.manual_seed(0)
    projection = torch.randn(2, 40, 3, 4, 8)
    q, k, v = projection.unbind(2)
    turned = v.permute(0, 2, 1, 3).contiguous().permute(0, 2, 1, 3)
    decay = torch.rand(4)
    copies = tigon.lightning_attention(q.contiguous(), k.contiguous(), v.contiguous(), decay)
    assert torch.equal(tigon.lightning_attention(q, k, turned, decay), copies)
    every_other = torch.stack([q, q], dim=-1).flatten(-2)[..., ::2]
    assert torch.equal(tigon.lightning_attention(every_other, k, v, decay), copies)


def test_decode_is_prefill():
    made = tensors(tokens=12)
    state = made.pop("initial_state")
    out, final = both(**made, initial_state=state)
    running = state.clone()
    for t in range(12):
        token = tigon.lightning_attention_decode(made["q"][:, t], made["k"][:, t], made["v"][:, t], made["decay"],
                                                 running, scale=0.3)
        torch.testing.assert_close(token, out[:, t], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(running, final, rtol=1e-4, atol=1e-4)


def test_pools():
    made = tensors(tokens=130)
    state = made.pop("initial_state")
    out, final = tigon.lightning_attention(**made, initial_state=state, return_final_state=True)
    slots = torch.tensor([3, 1])
    pool = torch.full((5, *state.shape[1:]), float("nan"))
    pool[slots] = state
    before = pool.clone()
    checkpoints = torch.zeros(4, *state.shape[1:])
    got = tigon.lightning_attention_prefill(**made, state=pool, state_indices=slots, update_state=False,
                                            checkpoints=checkpoints, checkpoint_every=64)
    assert torch.equal(got, out) and torch.equal(pool[slots], before[slots])
    _, after_64 = tigon.lightning_attention(*(made[n][:, :64] for n in "qkv"), made["decay"], initial_state=state,
                                            return_final_state=True)
    assert torch.equal(checkpoints[[0, 2]], after_64)
    tigon.lightning_attention_prefill(**made, state=pool, state_indices=slots)
    assert torch.equal(pool[slots], final) and pool[[0, 2, 4]].isnan().all()
    fresh = tigon.lightning_attention_prefill(**made, state=pool, state_indices=torch.tensor([0, -1]),
                                              has_initial_state=torch.tensor([False, True]))
    assert torch.equal(fresh[0], tigon.lightning_attention(**made)[0]) and not fresh[1].any()


def test_states_and_merge():
    made = tensors(tokens=40, state=False)
    left = tigon.lightning_attention_state(made["k"][:, :25], made["v"][:, :25], made["decay"])
    right = tigon.lightning_attention_state(made["k"][:, 25:], made["v"][:, 25:], made["decay"])
    whole = tigon.lightning_attention_state(made["k"], made["v"], made["decay"])
    lengths = torch.full((2,), 15)
    torch.testing.assert_close(tigon.lightning_attention_merge(left, right, made["decay"], lengths), whole, rtol=1e-4,
                               atol=1e-4)
    accepted = tigon.lightning_attention_state(made["k"], made["v"], made["decay"], lengths=torch.full((2,), 25))
    assert torch.equal(accepted, left)
    state = torch.zeros_like(whole)
    assert tigon.lightning_attention_state(made["k"], made["v"], made["decay"], state=state) is state
    assert torch.equal(state, whole)


def test_slopes():
    torch.testing.assert_close(tigon.lightning_attention_slopes(4), torch.tensor([0.25, 0.0625, 0.015625, 0.00390625]))
    whole = tigon.lightning_attention_slopes(8, layer=2, layers=10)
    part = tigon.lightning_attention_slopes(2, layer=2, layers=10, heads_total=8, head_begin=4)
    assert torch.equal(part, whole[4:6])
    assert tigon.lightning_attention_slopes(8, kind="linear", layer=1, layers=2)[0] == 0
    with pytest.raises(ValueError, match="tigon_lightning_attention_slopes: "):
        tigon.lightning_attention_slopes(4, layer=3, layers=2)


def test_autocast():
    inputs = battery.leaves(tensors(), WANTED)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out, final = both(**inputs)
    assert out.dtype == torch.bfloat16 and final.dtype == torch.float32
    low = {n: t.bfloat16() if n in "qkv" else t for n, t in tensors().items()}
    assert torch.equal(out, both(**low)[0])
    out.float().sum().backward()
    assert all(inputs[n].grad.dtype == torch.float32 for n in WANTED)


def test_compile():
    cases = [tensors(batch, tokens) for batch, tokens in ((5, 30), (3, 41))]
    battery.compiled(both, cases, WANTED)


def test_operator_is_registered_whole():
    made = battery.leaves(tensors(tokens=9), WANTED)
    arguments = (made["q"], made["k"], made["v"], made["decay"], None, made["initial_state"], 0.5, True, 0)
    torch.library.opcheck(torch.ops.tigon.lightning_attention.default, arguments)


def test_numpy():
    made = tensors()
    out, final = tigon.lightning_attention(**{n: t.numpy() for n, t in made.items()}, return_final_state=True)
    expected = tigon.lightning_attention(**made, return_final_state=True)
    assert isinstance(out, np.ndarray)
    np.testing.assert_array_equal(out, expected[0].numpy())
    np.testing.assert_array_equal(final, expected[1].numpy())


def test_bad_decay_is_recorded():
    made = tensors(state=False)
    made["decay"][2] = -1
    context = tigon.Context()
    tigon.lightning_attention(**made, context=context)
    record = context.check()
    assert (record.op, record.argument, record.index) == ("tigon_lightning_attention", "decay", 2)


def test_errors():
    made = tensors()
    for text, change in [("tigon_lightning_attention: k: expected shape", {"k": made["k"][:, :-1]}),
                         ("tigon_lightning_attention: decay: expected", {"decay": torch.rand(3)}),
                         ("tigon_lightning_attention: initial_state: expected shape",
                          {"initial_state": made["initial_state"][:1]}),
                         ("tigon_lightning_attention: q: expected dtype", {"q": made["q"].double()}),
                         ("scale: expected another number than 0", {"scale": 0}),
                         ("tigon_lightning_attention: scale", {"scale": float("nan")})]:
        with pytest.raises(ValueError) as caught:
            tigon.lightning_attention(**{**made, **change})
        assert text in str(caught.value), (text, str(caught.value))
