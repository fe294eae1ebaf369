"""Train the target: dense attention first, pool selection on for the last part; the indexers learn throughout."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from corpus import WindowSampler
from muon import Optimiser, rate_factor
from sizes import demo_config
from target import FastTarget, balance_experts, next_token_loss
from torch import Tensor
from transformers import Glm5NextForConditionalGeneration
from workers import add_over_workers, agree, wait_for_all


@dataclass(frozen=True, slots=True)
class TargetPlan:
    """How long and how the target is trained; times in seconds of wall clock, not counting compilation."""

    seconds: float = 1600.0
    rows: int = 8
    warm_up: int = 40
    dense_share: float = 0.65
    peak: float = 1.0
    balance_rate: float = 0.02
    eval_every_s: float = 240.0
    seed: int = 0


def new_model(seed: int) -> Glm5NextForConditionalGeneration:
    """Return the untrained float32 model."""
    torch.manual_seed(seed)
    model = Glm5NextForConditionalGeneration(demo_config()).float()
    with torch.no_grad():
        # transformers starts this gate at ones, which makes the same gate for every channel: start small instead
        for layer in model.model.language_model.layers:
            indexer = getattr(layer.self_attn, "indexer", None)
            if indexer is not None:
                indexer.index_kpool_compress_gate.normal_(0.0, 0.02)
    return model


def split_parameters(named: dict[str, Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """Return (matrices for Muon, the rest for AdamW): embeddings, head, router, convolutions, indexers are the rest."""
    matrices, others = [], []
    for name, parameter in named.items():
        is_matrix = parameter.dim() >= 2 and not any(
            part in name for part in ("embed", "lm_head", "gate.weight", "conv1d", "_hc.", "indexer", "b_proj.weight")
        )
        # q_b_proj, kv_b_proj and the gates' f_b/g_b are matrices although their names end like the beta projection's
        is_matrix = is_matrix or name.endswith(("q_b_proj.weight", "f_b_proj.weight", "g_b_proj.weight"))
        is_matrix = is_matrix or name.endswith("kv_b_proj.weight")
        (matrices if is_matrix else others).append(parameter)
    return matrices, others


def held_out_loss(fast: FastTarget, windows: Tensor, *, dense: bool, rows: int) -> float:
    """Return nats per token on `windows` [num_windows, T].

    Gradients stay on: without them every kind of layer would be compiled once more.
    """
    losses = []
    for part in windows.split(rows):
        if len(part) == rows:  # the compiled functions have one batch size
            losses.append(next_token_loss(fast.logits(fast.forward(part, dense=dense).hidden), part).item())
    return sum(losses) / len(losses)


def train_target(
    model: Glm5NextForConditionalGeneration,
    sampler: WindowSampler,
    held_out: Tensor,
    plan: TargetPlan,
    *,
    rank: int = 0,
    world: int = 1,
) -> float:
    """Train `model` in place on `world` processes; returns the held-out loss with selection on (nats per token)."""
    fast = FastTarget(model)
    text = model.model.language_model
    named = {n: p for n, p in model.named_parameters() if ".visual." not in n}
    indexers = [p for n, p in named.items() if "indexer" in n]
    optimiser = Optimiser(*split_parameters(named), rank=rank, world=world)
    phases = {progress < plan.dense_share for progress in (0.0, 0.999)}
    for dense in sorted(phases, reverse=True):
        fast.warm_up(sampler.batch(plan.rows), dense=dense, rank=rank, world=world)
        wait_for_all(world)
    start, step, next_eval, smooth, largest = None, 0, plan.eval_every_s, 0.0, 0.0
    while True:
        elapsed = agree(0.0 if start is None else time.monotonic() - start, world)
        progress = elapsed / plan.seconds
        if progress >= 1:
            break
        tokens = sampler.batch(plan.rows)
        dense = progress < plan.dense_share
        out = fast.forward(tokens, dense=dense)
        loss = next_token_loss(fast.logits(out.hidden), tokens)
        (loss + out.index_loss).backward()
        for parameter in indexers if dense else ():
            parameter.grad = torch.zeros_like(parameter)
        optimiser.step(plan.peak * rate_factor(progress, step, plan.warm_up))
        for index, load in out.loads.items():
            load = add_over_workers(load, world) / world
            balance_experts(text.layers[index].mlp.gate.e_score_correction_bias, load, plan.balance_rate)
            largest = max(largest, load.max().item())
        smooth = loss.item() if step == 0 else 0.98 * smooth + 0.02 * loss.item()
        step += 1
        if start is None:
            start = time.monotonic()  # the first step compiles
        if step % 20 == 0 and rank == 0:
            speed = step * world * tokens.numel() / (time.monotonic() - start)
            print(
                f"target: step {step} {100 * progress:.0f} % loss {smooth:.3f} index {out.index_loss.item():.3f} "
                f"largest load {largest:.2f} {speed / 1e3:.1f} k tokens/s",
                flush=True,
            )
            largest = 0.0
        if elapsed > next_eval:
            # every process does its share: none waits for another
            loss = held_out_loss(fast, held_out[rank * 32 : rank * 32 + 32], dense=dense, rows=plan.rows)
            print(f"target: held-out loss {loss:.3f} nats/token on 32 windows (process {rank})", flush=True)
            next_eval = elapsed + plan.eval_every_s
    if rank:
        return float("nan")
    final = held_out_loss(fast, held_out, dense=False, rows=plan.rows)
    print(
        f"target: {step} steps, {step * world * tokens.numel() / 1e6:.2f} M tokens; held-out loss "
        f"{final:.3f} nats/token with selection, {held_out_loss(fast, held_out, dense=True, rows=plan.rows):.3f} dense",
        flush=True,
    )
    return final
