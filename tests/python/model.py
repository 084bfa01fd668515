"""The language model of `tigon train` from the Python face: its layers, its windows of the data, and its optimiser.

Modules and parameters have the names of the checkpoint's tensors. The formulas are those of apps/tigon/model.h,
train.c, sampler.c and random.c. What the program computes between operations (elementwise.c, adamw.c) is computed
here in the same order in float32: the model amplifies the last bit of a sum to a hundredth of the loss within some
ten steps, since rms_norm makes rows of attention that are near zero large. """

import math

import tigon
import torch
from torch import nn

MASK = 2**64 - 1
WARM_UP, FLOOR = 0.05, 0.05
BALANCE, WEIGHT_DECAY, BETAS, EPSILON, CLIP = 0.03, 0.1, (0.9, 0.95), 1e-8, 1.0


def exp_near(x):
    """exp as the program has it: 2^n times a polynomial."""
    x = x.clamp(-87.0, 88.0)
    shifted = x * 1.44269504 + 12582912.0
    n = shifted - 12582912.0
    r = (x - n * 0.693359375) + n * 2.12194440e-4
    p = torch.full_like(x, 1.9875691500e-4)
    for c in (1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1):
        p = p * r + c
    p = p * r * r + r + 1.0
    return (p.view(torch.int32) + (shifted.view(torch.int32) << 23)).view(torch.float32)


def sigmoid(x):
    return 1.0 / (1.0 + exp_near(-x))


class Silu(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * sigmoid(x)

    @staticmethod
    def backward(ctx, d):
        (x,) = ctx.saved_tensors
        s = sigmoid(x)
        return d * (s * (1.0 + x * (1.0 - s)))


class Gate(torch.autograd.Function):
    """x * sigmoid(gate)"""
    @staticmethod
    def forward(ctx, x, gate):
        ctx.save_for_backward(x, gate)
        return x * sigmoid(gate)

    @staticmethod
    def backward(ctx, d):
        x, gate = ctx.saved_tensors
        s = sigmoid(gate)
        return d * s, d * x * s * (1.0 - s)


class Experts(nn.Module):
    def __init__(self, experts, width, hidden):
        super().__init__()
        self.gate = nn.Parameter(torch.empty(experts, hidden, width))
        self.up = nn.Parameter(torch.empty(experts, hidden, width))
        self.down = nn.Parameter(torch.empty(experts, width, hidden))


class Layer(nn.Module):
    def __init__(self, width, heads, experts, top_k, hidden):
        super().__init__()
        self.heads, self.top_k = heads, top_k
        self.attention_norm = nn.Parameter(torch.empty(width))
        self.qkvg = nn.Parameter(torch.empty(4 * width, width))
        self.attention_out = nn.Parameter(torch.empty(width, width))
        self.moe_norm = nn.Parameter(torch.empty(width))
        self.router = nn.Parameter(torch.empty(experts, width))
        self.experts = Experts(experts, width, hidden)

    def forward(self, branch, residual, decay):
        """branch is added to the residual stream first. Returns the next pair, and the balance loss."""
        normed, stream = tigon.rms_norm(branch, self.attention_norm, residual=residual)
        q, k, v, gate = tigon.linear(normed, self.qkvg).chunk(4, dim=-1)
        q, k, v = (Silu.apply(t).unflatten(-1, (self.heads, -1)) for t in (q, k, v))
        attended = tigon.lightning_attention(q, k, v, decay, scale=q.shape[-1]**-0.5)
        gated = Gate.apply(tigon.rms_norm(attended).flatten(-2), gate)
        branch = tigon.linear(gated, self.attention_out)
        normed, stream = tigon.rms_norm(branch, self.moe_norm, residual=stream)
        route = tigon.moe_route(tigon.linear(normed, self.router), self.top_k, renormalize=self.top_k > 1)
        experts = self.experts
        branch = tigon.moe(normed, route.topk_ids, route.topk_weights, experts.gate, experts.up, experts.down)
        return branch, stream, route.balance_loss


class Model(nn.Module):
    def __init__(self, layers, width, heads, experts, top_k, hidden, vocabulary):
        super().__init__()
        self.embedding = nn.Parameter(torch.empty(vocabulary, width))
        self.final_norm = nn.Parameter(torch.empty(width))
        self.output = nn.Parameter(torch.empty(vocabulary, width))
        self.layers = nn.ModuleList(Layer(width, heads, experts, top_k, hidden) for _ in range(layers))
        self.decay = [4 * 2**(-8 * h / max(1, heads - 1)) for h in range(heads)]

    def forward(self, tokens, targets):
        """The mean loss, and the mean balance loss of the layers."""
        branch, balance = nn.functional.embedding(tokens, self.embedding), 0.0
        stream = torch.zeros_like(branch)
        decay = torch.tensor(self.decay)
        for layer in self.layers:
            branch, stream, layer_balance = layer(branch, stream, decay)
            balance = balance + layer_balance / len(self.layers)
        normed, _ = tigon.rms_norm(branch, self.final_norm, residual=stream)
        return tigon.linear_cross_entropy(normed, self.output, targets), balance


class AdamW:
    """The program's, over all parameters in the order of its block; norms and the embedding have no weight decay."""
    def __init__(self, model, step):
        parameters = dict(model.named_parameters())
        first = ["embedding", "final_norm", "output"]
        self.parameters = {n: parameters[n] for n in first + [n for n in parameters if n not in first]}
        self.moments = {n: torch.zeros_like(p) for n, p in parameters.items()}
        self.variances = {n: torch.zeros_like(p) for n, p in parameters.items()}
        self.step = step

    def norm(self):
        """Of the gradient: squares are added in float32 in 16 lanes of 64, tensors being padded to 64."""
        parts = [nn.functional.pad(p.grad.flatten(), (0, -p.numel() % 64)) for p in self.parameters.values()]
        block = torch.cat(parts)
        block = nn.functional.pad(block, (0, -block.numel() % 1024)).view(-1, 64, 16)
        lanes = torch.zeros(block.shape[0], 16)
        for i in range(64):
            lanes = lanes + block[:, i] * block[:, i]
        return math.sqrt(lanes.double().sum().item())

    @torch.no_grad()
    def update(self, rate):
        self.step += 1
        norm = self.norm()
        scale = single(CLIP / norm) if norm > CLIP else 1.0
        beta1, beta2 = map(single, BETAS)
        corrections = [single(1 / (1 - beta**self.step)) for beta in (beta1, beta2)]
        for name, p in self.parameters.items():
            decays = p.dim() > 1 and name != "embedding"
            shrink = single(1 - rate * single(WEIGHT_DECAY)) if decays else 1.0
            moment, variance, g = self.moments[name], self.variances[name], p.grad * scale
            moment.copy_(moment * beta1 + g * single(1 - beta1))
            variance.copy_(variance * beta2 + g * single(1 - beta2) * g)
            root = (variance *
                    corrections[1]).double().sqrt().float()  # torch.sqrt of float32 is not the nearest number
            direction = moment * corrections[0] / (root + single(EPSILON))
            p.copy_(p * shrink - direction * single(rate))


def single(x):
    """The nearest float32."""
    return torch.tensor(x, dtype=torch.float32).item()


def learning_rate(step, steps, peak):
    """Of the step after `step` finished ones."""
    done = step / steps
    if done < WARM_UP:
        return peak * min(1, (done + 1 / steps) / WARM_UP)
    return peak * (FLOOR + (1 - FLOOR) * 0.5 * (1 + math.cos(math.pi * (done - WARM_UP) / (1 - WARM_UP))))


class Random:
    """A stream of random numbers that has a name."""
    def __init__(self, seed, name):
        self.state = self.mix(self.mix(seed + 0x9E3779B97F4A7C15 & MASK) ^ (name * 0xD6E8FEB86659FD93 & MASK))

    @staticmethod
    def mix(z):
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & MASK
        z = (z ^ z >> 27) * 0x94D049BB133111EB & MASK
        return z ^ z >> 31

    def below(self, bound):
        limit = MASK - MASK % bound
        while True:
            self.state = self.state + 0x9E3779B97F4A7C15 & MASK
            bits = self.mix(self.state)
            if bits < limit:
                return bits % bound


def windows(text, length, seed, epoch, index):
    """Windows of length + 1 tokens, each once an epoch, from a position on."""
    training = len(text) - max(len(text) // 20, min(len(text) // 5, 100000))
    while True:
        source = Random(seed, 0x100000000 + epoch)
        offset = source.below(length)
        order = []
        for i in range((training - offset - 1) // length):
            j = source.below(i + 1)
            order.append(i)
            order[i], order[j] = order[j], i
        for window in order[index:]:
            begin = offset + window * length
            yield list(text[begin:begin + length + 1])
        epoch, index = epoch + 1, 0


def take_step(model, optimiser, batch, rate):
    """The mean loss of the batch, before the update."""
    batch = torch.tensor(batch)
    model.zero_grad()
    loss, balance = model(batch[:, :-1], batch[:, 1:])
    (loss + BALANCE * balance).backward()
    optimiser.update(rate)
    return loss.item()
