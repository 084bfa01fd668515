"""Peers of gpu_moe.py, each behind the same function of (x, ids, weights, gate_up, down), which autograd differentiates. Packages:
sonic-moe (with quack-kernels and the nvidia-cutlass-dsl that it names; it ran with a later PyTorch than it asks for),
liger-cute-kernels (with libcudart.so.12 where the loader finds it), liger-kernel.

What they want in another form than that is made once, outside of what is timed: integer and 16-bit copies, other layouts of the
gate and up weights. Their gradient of gate_up is then in their layout.
"""

import os

import torch
import torch.nn.functional as F

import gpu


class Once:
    """make(t), made where another tensor than the last comes."""
    def __init__(self, make):
        self.make, self.given, self.made = make, None, None

    def __call__(self, t):
        if self.given is None or (t.data_ptr(), t.shape) != (self.given.data_ptr(), self.given.shape):
            self.given, self.made = t.detach(), self.make(t.detach())  # given stays, so that its address stays its own
        return self.made


def torch_grouped():
    """Sort, gather, torch._grouped_mm, SiLU, combine."""
    def run(x, ids, weights, gate_up, down):
        tokens, k = ids.shape
        order = ids.flatten().argsort(stable=True)
        offsets = torch.bincount(ids.flatten(), minlength=down.shape[0]).cumsum(0).int()
        gate, up = torch._grouped_mm(x[order // k], gate_up.mT, offs=offsets).chunk(2, -1)
        y = torch._grouped_mm(F.silu(gate) * up, down.mT, offs=offsets)
        rows = torch.empty_like(y).index_copy(0, order, y)
        return (rows.view(tokens, k, -1) * weights.to(x.dtype)[..., None]).sum(1)

    return torch.__version__, run


def sonic():
    """SonicMoE behind its router: the sort by expert, then its two halves of the MLP. Gate and up rows alternate, as its
    modules keep them. QuACK tunes its products at the first call of a shape; the Triton kernel that sums rows tunes 10 of
    its configurations."""
    import sonicmoe
    import sonicmoe.functional as functional
    from sonicmoe.enums import ActivationType
    from sonicmoe.functional.reduction_over_k_gather import token_gather_sum_kernel as summing

    sums = [(256, 8, 4), (512, 8, 4), (1024, 8, 4), (512, 4, 4), (1024, 4, 8), (1024, 2, 4), *((h, 1, w) for h in (1024, 2048) for w in (4, 8))]
    summing.configs = [c for c in summing.configs if (c.kwargs["BLOCK_H"], c.kwargs["BLOCK_K"], c.num_warps) in sums]

    def alternate(gate_up):
        experts, two_inner, width = gate_up.shape
        return gate_up.view(experts, 2, two_inner // 2, width).transpose(1, 2).reshape(experts, two_inner, width)

    as_int, alternated = Once(lambda t: t.int()), Once(alternate)

    class Alternated(torch.autograd.Function):
        @staticmethod
        def forward(_, gate_up):
            return alternated(gate_up).permute(1, 2, 0)

        @staticmethod
        def backward(_, gradient):
            return gradient.permute(2, 0, 1)

    class Compact(torch.autograd.Function):
        """Its kernels take no expanded gradient."""
        @staticmethod
        def forward(_, out):
            return out.view_as(out)

        @staticmethod
        def backward(_, gradient):
            return gradient.contiguous()

    def run(x, ids, weights, gate_up, down):
        tokens, k = ids.shape
        experts, routes = down.shape[0], tokens * k
        order = [torch.empty(n, dtype=torch.int32, device=x.device) for n in (experts, experts + 1, routes, routes, routes)]
        counts, offsets, gather, scatter, reverse = order
        functional.TC_topk_router_metadata_triton(as_int(ids), experts, counts, offsets, gather, scatter, reverse)
        a, h = functional._UpProjection.apply(x, Alternated.apply(gate_up), None, offsets, routes, k, gather, scatter, reverse,
                                              None, False, ActivationType.SWIGLU, not torch.is_grad_enabled(), False)
        return Compact.apply(functional._DownProjection.apply(a, h, down.permute(1, 2, 0), None, weights, offsets, tokens, k,
                                                              gather, scatter, reverse, None, False, ActivationType.SWIGLU))

    return f"{gpu.version('sonic-moe') or sonicmoe.__version__}, QuACK {gpu.version('quack-kernels')}", run


def liger_cute():
    """liger-cute-kernels as a group of one. A forward call keeps a level of its stack, which the next one takes again, so that one
    result at a time may be differentiated, and as often as one likes."""
    os.environ["NVSHMEM_DISABLE_NVLS"] = "1"
    import liger_cute_kernels.tvm_ffi as liger

    torch.zeros(1, device="cuda")  # NVSHMEM wants a current context
    native = liger._load_module()
    if not liger.nvshmem_is_initialized():
        unique = torch.zeros(liger.uniqueid_nbytes(), dtype=torch.uint8)
        liger.get_uniqueid(unique.data_ptr())
        liger.init_with_uniqueid(0, 1, unique.data_ptr())
    team, kept, sizes = liger.team_world(), [], []

    def split(gate_up):
        experts, two_inner, width = gate_up.shape
        return gate_up.view(experts, 2, two_inner // 2, width).transpose(0, 1).contiguous()

    as_int, as_bf16, in_two = Once(lambda t: t.int()), Once(lambda t: t.bfloat16()), Once(split)

    def forward(x, ids, weights, both, down):
        needed = [x.shape[0], x.shape[1], down.shape[0], ids.shape[1]]
        if kept:
            liger.moe_pop_fwd(team)
            kept.clear()
        if sizes != needed:
            torch.cuda.synchronize()
            if sizes:
                liger.pool_clear_all()
            liger.moe_configure_context(*needed, 1, 1, 2, team, 0)
            sizes[:] = needed
        kept.append(True)
        return liger.moe_fused_fwd_bf16(x, ids, weights, *both, down, down.shape[0], ids.shape[1], team)

    class Moe(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, ids, weights, gate_up, down):
            given = (x, as_int(ids), as_bf16(weights), in_two(gate_up), down)
            out, ctx.meta, _, _, slots, tiles, _ = forward(*given)
            ctx.save_for_backward(*given, slots, tiles)
            return out

        @staticmethod
        def backward(ctx, dout):
            x, ids, weights, both, down, slots, tiles = ctx.saved_tensors
            dx, d_weights, d_both, d_down = (torch.empty_like(t) for t in (x, weights, both, down))
            native.moe_fused_bwd_bf16(dout.contiguous(), ctx.meta, slots, tiles, ids, weights, *both, down, down.shape[0],
                                      ids.shape[1], int(team), dx, *d_both, d_down, d_weights)
            return dx, None, d_weights, d_both.view(down.shape[0], -1, x.shape[1]), d_down

    return gpu.version("liger-cute-kernels"), Moe.apply


def liger_triton():
    """Liger's Triton kernels, which tune 240 configurations at the first call of a shape: here the 4 of each kernel with the
    largest tiles that they have and the usual warps and stages."""
    import liger_kernel.ops.fused_moe_kernels as kernels
    from liger_kernel.ops.fused_moe import LigerFusedMoEFunction

    products = [(128, 64, 4, 3), (128, 64, 8, 3), (128, 64, 4, 4), (64, 64, 4, 4)]  # N, K, warps, stages
    gradients = [(128, 128, 32, 8), (128, 128, 32, 4), (64, 128, 32, 4), (128, 64, 32, 4)]  # M, N, K, warps
    sums = [(512, 8, 4), (512, 4, 4), (256, 8, 4), (512, 8, 8)]  # H, K, warps
    kept = {"_fused_up_proj_swiglu_kernel": products, "_fused_down_proj_kernel": products, "_moe_bwd_down_proj_kernel": products,
            "_moe_bwd_dX_expanded_kernel": products, "_moe_bwd_dW1_kernel": gradients, "_moe_bwd_dW2_kernel": gradients,
            "_token_gather_weighted_sum_kernel": sums}

    def of(config):
        blocks = tuple(config.kwargs[n] for n in ("BLOCK_M", "BLOCK_H", "BLOCK_N", "BLOCK_K") if n in config.kwargs)
        whole = (*blocks, config.num_warps)
        return whole if len(whole) == 4 or "BLOCK_H" in config.kwargs else (*whole, config.num_stages)

    for name, wanted in kept.items():
        kernel = getattr(kernels, name)
        kernel.configs = [c for c in kernel.configs if of(c) in wanted]
    as_int = Once(lambda t: t.int())
    return gpu.version("liger-kernel"), lambda x, i, w, g, d: LigerFusedMoEFunction.apply(x, g, d, as_int(i), w)


OWN_MEMORY = ("liger-cute",)  # not PyTorch's allocator's
PEERS = {"torch grouped_mm": torch_grouped, "sonic-moe": sonic, "liger-cute": liger_cute, "liger triton": liger_triton}
