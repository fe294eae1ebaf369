"""Train the MTP layer on a frozen target: K unrolled steps, on library text and on the target's own greedy text."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from fast_mtp import StepFunctions, after_attention, before_attention, unroll
from mtp_reference import MtpLayer
from muon import Optimiser, rate_factor
from sizes import MTP_LAYER, NUM_DRAFTS
from target import FastTarget, balance_experts, named_tensors
from torch import Tensor
from train_target import split_parameters
from workers import add_over_workers, agree

# later drafts count only when the earlier ones were accepted
STEP_WEIGHTS = (1.0, 0.8, 0.6)


@dataclass(frozen=True, slots=True)
class MtpPlan:
    """How long and how the MTP layer is trained; times in seconds of wall clock, not counting compilation."""

    seconds: float = 1300.0
    rows: int = 8
    warm_up: int = 30
    balance_rate: float = 0.02
    # library text teaches the start of a continuation, the target's own text what greedy decoding meets
    generated_share: float = 0.6
    muon_rate: float = 0.02
    adam_rate: float = 2e-3


class StepScores(NamedTuple):
    """Training loss, per step the share of rows whose draft is the target's argmax, and the mean expert load."""

    loss: Tensor
    matches: list[float]
    load: Tensor


def new_mtp(target: FastTarget) -> MtpLayer:
    """Return an MTP layer that starts from the target's last layer: attention, experts and norms."""
    torch.manual_seed(MTP_LAYER)
    layer = MtpLayer(target.config)
    last = target.text.layers[-1]
    source = {n: t for n, t in last.state_dict().items() if "_hc." not in n}
    with torch.no_grad():
        layer.load_state_dict(source, strict=False)
        layer.eh_proj.weight.normal_(0.0, target.config.initializer_range)
        layer.shared_head["norm"].weight.copy_(target.text.norm.weight)
    return layer


class MtpTrainer:
    """The loss of the unrolled steps against what the frozen target says."""

    def __init__(self, target: FastTarget, layer: MtpLayer, *, compiled: bool = True) -> None:
        self.target, self.parameters = target, named_tensors(layer)
        self.head = target.model.lm_head.weight.detach()
        wrap = partial(torch.compile, dynamic=False) if compiled else lambda function: function
        self.functions = StepFunctions(wrap(before_attention), wrap(after_attention))
        self.shares, self.loss = wrap(target_shares), wrap(draft_loss)

    def scores(self, tokens: Tensor, hidden: Tensor) -> StepScores:
        """Return the loss on tokens [B, T] with the target's hidden [B, T, C].

        Row r predicts token r + 2, so it is held to the target's prediction at token r + 1. The last row has no next
        token; the first rows of a later step have no true row behind them. Both are left out.
        """
        embedded = F.embedding(tokens, self.target.text.embed_tokens.weight.detach())
        outputs = unroll(
            F.pad(embedded[:, 1:], (0, 0, 0, 1)), hidden, self.parameters, NUM_DRAFTS,
            config=self.target.config, dtype=self.target.dtype, functions=self.functions,
        )  # fmt: skip
        shares, best = self.shares(hidden, self.head, self.target.dtype)
        row = torch.arange(tokens.shape[1])
        total, matches = outputs[0].index_loss, []
        for depth, (out, weight) in enumerate(zip(outputs, STEP_WEIGHTS, strict=True)):
            counted = ((row >= depth) & (row < len(row) - 1)).float()
            loss, match = self.loss(out.head_normed, self.head, shares, best, counted, self.target.dtype)
            total = total + weight * loss
            matches.append(match.item())
        return StepScores(total, matches, torch.stack([out.load.detach() for out in outputs]).mean(0))


def target_shares(hidden: Tensor, head: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return for every row r the target's probabilities [B, T, V] and argmax [B, T] at token r + 1."""
    logits = F.linear(F.pad(hidden[:, 1:], (0, 0, 0, 1)).to(dtype), head.to(dtype)).float()
    return logits.softmax(-1), logits.argmax(-1)


def draft_loss(
    head_normed: Tensor, head: Tensor, shares: Tensor, best: Tensor, counted: Tensor, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Half cross-entropy to the target's probabilities, half to its argmax; and the share of equal argmax.

    head_normed [B, T, C], shares [B, T, V], best [B, T]; counted [T] is 1 for the rows that count.
    """
    logits = F.linear(head_normed.to(dtype), head.to(dtype)).float()
    log_shares = logits.log_softmax(-1)
    soft = (shares * log_shares).sum(-1)
    hard = log_shares.gather(-1, best.unsqueeze(-1)).squeeze(-1)
    weight = counted / (counted.sum() * len(best))
    return -0.5 * ((soft + hard) * weight).sum(), ((logits.argmax(-1) == best) * weight).sum()


def target_hidden(target: FastTarget, tokens: Tensor, rows: int) -> Tensor:
    """Return the target's final-normed hidden for every window, bfloat16 [num_windows, T, C].

    Gradients stay on so that the functions compiled for the target's training serve again.
    """
    return torch.cat([target.forward(part, dense=False).hidden.detach().bfloat16() for part in tokens.split(rows)])


@torch.no_grad()
def held_out_matches(trainer: MtpTrainer, windows: Tensor, hidden: Tensor, rows: int) -> list[float]:
    """Return the teacher-forced match per step on real text, windows [num_windows, T]."""
    batches = zip(windows.split(rows), hidden.split(rows), strict=True)
    parts = [trainer.scores(tokens, part.float()).matches for tokens, part in batches]
    return [sum(column) / len(parts) for column in zip(*parts, strict=True)]


def train_mtp(
    target: FastTarget,
    layer: MtpLayer,
    library: Tensor,
    generated: Tensor,
    plan: MtpPlan,
    *,
    rank: int = 0,
    world: int = 1,
) -> None:
    """Train `layer` in place on windows [num_windows, T] of library text and of the target's own greedy text."""
    trainer = MtpTrainer(target, layer)
    sources = [(tokens, target_hidden(target, tokens, plan.rows)) for tokens in (generated, library)]
    own_rows = round(plan.rows * plan.generated_share)
    counts = (own_rows, plan.rows - own_rows)
    if rank == 0:
        print(f"mtp: {len(generated)} generated and {len(library)} library windows in process 0", flush=True)
    optimiser = Optimiser(
        *split_parameters(dict(layer.named_parameters())),
        muon_rate=plan.muon_rate, adam_rate=plan.adam_rate, rank=rank, world=world,
    )  # fmt: skip
    start, step, smooth = None, 0, [0.0] * NUM_DRAFTS
    while True:
        progress = agree(0.0 if start is None else (time.monotonic() - start) / plan.seconds, world)
        if progress >= 1:
            break
        chosen = [torch.randint(len(tokens), (count,)) for (tokens, _), count in zip(sources, counts, strict=True)]
        tokens, hidden = (
            torch.cat([source[part][rows] for source, rows in zip(sources, chosen, strict=True)]) for part in (0, 1)
        )
        scores = trainer.scores(tokens, hidden.float())
        scores.loss.backward()
        optimiser.step(rate_factor(progress, step, plan.warm_up))
        load = add_over_workers(scores.load, world) / world
        balance_experts(layer.mlp.gate.e_score_correction_bias, load, plan.balance_rate)
        smooth = [0.98 * old + 0.02 * new if step else new for old, new in zip(smooth, scores.matches, strict=True)]
        step += 1
        start = start or time.monotonic()  # the first step compiles
        if step % 20 == 0 and rank == 0:
            rate = step * world * tokens.numel() / (time.monotonic() - start) / 1e3
            shown = " ".join(f"{match:.3f}" for match in smooth)
            print(
                f"mtp: step {step} {100 * progress:.0f} % loss {scores.loss.item():.3f} match {shown} "
                f"largest load {load.max().item():.2f} {rate:.1f} k tokens/s",
                flush=True,
            )
    if rank == 0:
        print(f"mtp: {step} steps, {step * world * tokens.numel() / 1e6:.2f} M tokens", flush=True)
