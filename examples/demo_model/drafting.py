"""Greedy decoding with transformers' modules: plain, and speculative with exact rollback of the hybrid cache.

This is the demo's independent yardstick: it uses nothing of the project and nothing of the fast training forward.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from mtp_reference import MtpLayer
from torch import Tensor
from transformers import DynamicCache, Glm5NextForConditionalGeneration
from transformers.models.glm5_next import modeling_glm5_next as glm5_next


class RecordedStates:
    """The KDA state after every token of the last verify, per linear layer: what transformers' crop does not restore.

    `crop` alone rolls back keys, values, index keys and convolution rows but not the recurrent state; its output then
    leaves plain greedy without any error.
    """

    def __init__(self) -> None:
        self.layers: list[list[Tensor]] = []

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Run chunked KDA token by token inside the block and keep each state, in layer order."""
        self.layers = []
        original = glm5_next.chunk_kimi_delta_attention

        def stepwise(query, key, value, g, beta, initial_state=None, **settings):
            outputs, states, state = [], [], initial_state
            for at in range(query.shape[1]):
                one = slice(at, at + 1)
                output, state = glm5_next.recurrent_kimi_delta_attention(
                    query[:, one], key[:, one], value[:, one], g=g[:, one], beta=beta[:, one], initial_state=state,
                    output_final_state=True, use_qk_l2norm_in_kernel=True,
                )  # fmt: skip
                outputs.append(output)
                states.append(state)
            self.layers.append(states)
            return torch.cat(outputs, dim=1), state

        glm5_next.chunk_kimi_delta_attention = stepwise
        try:
            yield
        finally:
            glm5_next.chunk_kimi_delta_attention = original


class Target:
    """A target model with the hidden states its drafter is fed: after the final norm, or before it."""

    def __init__(self, model: Glm5NextForConditionalGeneration, hidden_source: str = "post_norm") -> None:
        self.model, self.hidden_source = model, hidden_source
        self.embed, self.head = model.get_input_embeddings(), model.lm_head
        text = model.config.text_config
        self.linear = [i for i, kind in enumerate(text.layer_types) if kind == "linear_attention"]
        self._before_norm: Tensor | None = None
        model.model.language_model.norm.register_forward_pre_hook(self._keep)

    def _keep(self, module: torch.nn.Module, inputs: tuple[Tensor]) -> None:
        self._before_norm = inputs[0]

    def forward(self, tokens: Tensor, cache: DynamicCache | None) -> tuple[Tensor, Tensor]:
        """Run tokens [1, T]; returns the argmax after each token [T] and the drafter's hidden [1, T, C]."""
        last = self.model.model(input_ids=tokens, cache=cache, use_cache=cache is not None).last_hidden_state
        # argmax everywhere: topk(1) breaks a tie differently
        best = self.head(last)[0].argmax(-1)
        return best, last if self.hidden_source == "post_norm" else self._before_norm

    def new_cache(self) -> DynamicCache:
        """Return an empty cache."""
        return DynamicCache(config=self.model.config.text_config)

    def roll_back(self, cache: DynamicCache, recorded: RecordedStates, num_drafts: int, num_accepted: int) -> None:
        """Forget the rejected drafts of the last verify."""
        cache.crop(-(num_drafts - num_accepted))
        for layer, states in zip(self.linear, recorded.layers, strict=True):
            cache.layers[layer].recurrent_states[0].copy_(states[num_accepted])


@dataclass(slots=True)
class Generation:
    """New tokens, and per verify how many drafts were accepted and how many tokens existed before it."""

    tokens: list[int]
    accepted: list[int] = field(default_factory=list)
    started_at: list[int] = field(default_factory=list)


@torch.no_grad()
def plain_greedy(target: Target, prompt: Tensor, num_new: int) -> list[int]:
    """Decode `num_new` tokens one at a time behind prompt [1, T]; an end-of-text token does not stop it."""
    cache = target.new_cache()
    token = target.forward(prompt, cache)[0][-1]
    tokens = [token.item()]
    while len(tokens) < num_new:
        token = target.forward(token.view(1, 1), cache)[0][-1]
        tokens.append(token.item())
    return tokens


@torch.no_grad()
def propose(
    target: Target, layer: MtpLayer, cache: DynamicCache, tokens: Tensor, hidden: Tensor, num_drafts: int, recycle: str
) -> list[int]:
    """Append true rows (tokens [1, R], hidden [1, R, C]) and draft from the last; recycled rows are dropped again."""
    drafts: list[int] = []
    for _ in range(num_drafts):
        head_normed, block_output = layer(target.embed(tokens), hidden, cache)
        token = target.head(head_normed[0, -1]).argmax(-1)
        drafts.append(token.item())
        tokens = token.view(1, 1)
        hidden = (head_normed if recycle == "post_norm" else block_output)[:, -1:]
    if num_drafts > 1:
        cache.crop(-(num_drafts - 1))
    return drafts


@torch.no_grad()
def speculative_greedy(
    target: Target, layer: MtpLayer, prompt: Tensor, num_new: int, *, num_drafts: int = 3, recycle: str = "post_norm"
) -> Generation:
    """Decode like `plain_greedy`, `num_drafts` drafts per verify."""
    cache, mtp_cache, recorded = target.new_cache(), layer.new_cache(), RecordedStates()
    best, hidden = target.forward(prompt, cache)
    cache.activate_past_recording()
    result = Generation(tokens=[best[-1].item()])
    # row r pairs token r + 1 with the hidden of token r; the last row's token is the one just decoded
    rows = torch.cat([prompt[:, 1:], best[-1:].view(1, 1)], dim=1)
    while len(result.tokens) < num_new:
        drafts = propose(target, layer, mtp_cache, rows, hidden, num_drafts, recycle)
        with recorded.recording():
            best, hidden = target.forward(torch.tensor([[result.tokens[-1], *drafts]]), cache)
        wanted = best.tolist()
        accepted = next((i for i, draft in enumerate(drafts) if draft != wanted[i]), num_drafts)
        target.roll_back(cache, recorded, num_drafts, accepted)
        result.accepted.append(accepted)
        result.started_at.append(len(result.tokens))
        result.tokens += wanted[: accepted + 1]
        rows, hidden = best[: accepted + 1].view(1, -1), hidden[:, : accepted + 1]
    result.tokens = result.tokens[:num_new]
    return result
