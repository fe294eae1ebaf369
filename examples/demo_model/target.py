"""The whole target over whole sequences, on top of `fast_forward.run_layer`, and its next-token loss."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from fast_forward import LayerOutput, Parameters, matmul, rms_norm, run_layer
from torch import Tensor, nn
from transformers import Glm5NextForConditionalGeneration


class TargetOutput(NamedTuple):
    """Final-normed hidden [B, T, C], expert load per routed layer, summed index loss (nats a row)."""

    hidden: Tensor
    loads: dict[int, Tensor]
    index_loss: Tensor


def named_tensors(module: nn.Module) -> Parameters:
    """Return a module's parameters and buffers by name."""
    return dict(module.named_parameters()) | dict(module.named_buffers())


class FastTarget:
    """A fast view of a `Glm5NextForConditionalGeneration`: holds no weights of its own."""

    def __init__(
        self, model: Glm5NextForConditionalGeneration, dtype: torch.dtype = torch.bfloat16, compiled: bool = True
    ) -> None:
        self.model, self.dtype = model, dtype
        self.config = model.config.text_config
        self.text = model.model.language_model
        self.layers = [named_tensors(layer) for layer in self.text.layers]
        # one function for every layer: compiled once per kind of layer, in seconds instead of minutes
        self.run_layer: Callable[..., LayerOutput] = torch.compile(run_layer, dynamic=False) if compiled else run_layer

    def forward(self, tokens: Tensor, *, dense: bool) -> TargetOutput:
        """Run the target on tokens int64 [B, T]; `dense` turns selection and indexers off."""
        stream0 = stream1 = F.embedding(tokens, self.text.embed_tokens.weight)
        loads: dict[int, Tensor] = {}
        loss = stream0.new_zeros(())
        for index, parameters in enumerate(self.layers):
            is_linear = self.config.layer_types[index] == "linear_attention"
            is_routed = self.config.mlp_layer_types[index] == "sparse"
            out = self.run_layer(stream0, stream1, parameters, self.config, is_linear, is_routed, not dense, self.dtype)
            stream0, stream1 = out.stream0, out.stream1
            loss = loss + out.index_loss
            if is_routed:
                loads[index] = out.load.detach()
        hidden = rms_norm((stream0 + stream1) / 2, self.text.norm.weight, self.config.rms_norm_eps)
        return TargetOutput(hidden, loads, loss)

    def warm_up(self, tokens: Tensor, *, dense: bool, rank: int, world: int) -> None:
        """Compile every kind of layer, forward and backward, each in one process; the others then load it."""
        embedded = F.embedding(tokens, self.text.embed_tokens.weight).detach().requires_grad_()
        kinds: dict[tuple[bool, bool], int] = {}
        for index, kind in enumerate(self.config.layer_types):
            kinds.setdefault((kind == "linear_attention", self.config.mlp_layer_types[index] == "sparse"), index)
        # the indexed layer is the slowest to compile: it comes first in this order, alone in its process
        for place, ((is_linear, is_routed), index) in enumerate(sorted(kinds.items())):
            if min(place, 1) % world == rank:
                streams = embedded * 1.0, embedded * 1.0
                out = self.run_layer(
                    *streams, self.layers[index], self.config, is_linear, is_routed, not dense, self.dtype
                )
                (out.stream0.sum() + out.stream1.sum() + out.index_loss).backward()
        self.model.zero_grad(set_to_none=True)

    def logits(self, hidden: Tensor) -> Tensor:
        """Return the logits [..., V], float32."""
        return matmul(hidden, self.model.lm_head.weight, self.dtype).float()


def balance_experts(bias: Tensor, load: Tensor, rate: float) -> None:
    """Move the router's correction bias towards equal load.

    In proportion to the error, not by its sign: with the usual 1e-3 sign step this router collapses within 20 steps.
    """
    bias.add_(rate * (load.mean() - load))


def next_token_loss(logits: Tensor, tokens: Tensor) -> Tensor:
    """Mean cross-entropy in nats of each token after the first."""
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
