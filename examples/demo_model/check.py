"""Checks that the fast training forwards equal transformers' own modules, in float32, on a perturbed random model."""

from __future__ import annotations

import torch
from fast_mtp import unroll
from generate import LayerCache, extend
from mtp_reference import MtpLayer
from sizes import NUM_DRAFTS, demo_config
from target import FastTarget, named_tensors
from torch import Tensor
from transformers import Glm5NextForConditionalGeneration

MAX_DIFFERENCE = 1e-4


def perturbed_model(seed: int) -> Glm5NextForConditionalGeneration:
    """Return a float32 demo-sized model whose norms, biases and hyper-connections are not at their neutral start."""
    torch.manual_seed(seed)
    model = Glm5NextForConditionalGeneration(demo_config()).float().eval()
    with torch.no_grad():
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            if tensor.dim() == 1 or "_hc." in name or "indexer" in name:
                tensor.add_(0.1 * torch.randn_like(tensor))
    return model


def report(name: str, difference: float) -> None:
    """Print one comparison; raise when it is above the bound."""
    print(f"check: {name}: max difference {difference:.2e} (bound {MAX_DIFFERENCE:.0e})", flush=True)
    if not difference <= MAX_DIFFERENCE:
        raise RuntimeError(
            f"check: {name}: expected at most {MAX_DIFFERENCE:.0e}, got {difference:.2e}; do not train with this"
        )


@torch.no_grad()
def check_target(compiled: bool) -> None:
    """Compare logits with transformers, with selection active and with selection off."""
    model = perturbed_model(0)
    text = model.config.text_config
    tokens = torch.randint(8, text.vocab_size, (2, 200))
    fast = FastTarget(model, torch.float32, compiled=compiled)
    for budget, name in ((text.index_topk, "selection on"), (512, "selection off")):
        for layer in model.model.language_model.layers:
            indexer = getattr(layer.self_attn, "indexer", None)
            if indexer is not None:
                indexer.index_topk = budget
        expected = model(input_ids=tokens, use_cache=False).logits
        got = fast.logits(fast.forward(tokens, dense=budget == 512).hidden)
        report(f"target logits, {name} (|logit| up to {expected.abs().max():.1f})", max_difference(expected, got))


def check_gradients() -> None:
    """Compare every target parameter's gradient with autograd through transformers, relative to its largest entry."""
    model = perturbed_model(1)
    tokens = torch.randint(8, model.config.text_config.vocab_size, (2, 96))
    fast = FastTarget(model, torch.float32, compiled=False)
    gradients = []
    for logits in (
        model(input_ids=tokens, use_cache=False).logits,
        fast.logits(fast.forward(tokens, dense=False).hidden),
    ):
        model.zero_grad(set_to_none=True)
        torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten()).backward()
        gradients.append({n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None})
    expected, got = gradients
    worst = max(
        (max_difference(expected[name], got[name]) / (expected[name].abs().max().item() + 1e-4), name)
        for name in expected
    )
    report(f"target gradients, worst at {worst[1]}", worst[0])


def max_difference(expected: Tensor, got: Tensor) -> float:
    """Largest absolute difference."""
    return (expected - got).abs().max().item()


@torch.no_grad()
def check_mtp(num_drafts: int = NUM_DRAFTS) -> None:
    """Compare the unrolled steps with cached decoding, at rows that do and do not complete a pool."""
    torch.manual_seed(2)
    config = demo_config().text_config
    layer = MtpLayer(config).eval()
    for name, tensor in layer.named_parameters():
        tensor.normal_(1.0 if "norm" in name and "bias" not in name else 0.0, 0.1)
    embedded, hidden = torch.randn(2, 2, 128, config.hidden_size)
    outputs = unroll(embedded, hidden, named_tensors(layer), num_drafts, config=config, dtype=torch.float32)
    worst = 0.0
    for row in (0, 1, 2, 3, 61, 70, 99, 100, 101, 102, 125):
        cache = layer.new_cache()
        if row:
            layer(embedded[:, :row], hidden[:, :row], cache)
        recycled = hidden[:, row : row + 1]
        for depth in range(min(num_drafts, 128 - row)):
            at = row + depth
            recycled, _ = layer(embedded[:, at : at + 1], recycled, cache)
            worst = max(worst, max_difference(recycled[:, 0], outputs[depth].head_normed[:, at]))
    report(f"MTP, {num_drafts} unrolled steps against cached decoding", worst)


@torch.no_grad()
def check_generation() -> None:
    """Compare the cached forward, in pieces of 90, 1, 1, 5 and 1 tokens, with the whole-sequence forward."""
    model = perturbed_model(3)
    tokens = torch.randint(8, model.config.text_config.vocab_size, (3, 98))
    fast = FastTarget(model, torch.float32, compiled=False)
    caches = [LayerCache() for _ in fast.layers]
    pieces = [extend(fast, piece, caches) for piece in tokens.split([90, 1, 1, 5, 1], dim=1)]
    report("cached generation", max_difference(fast.forward(tokens, dense=False).hidden, torch.cat(pieces, dim=1)))


def check_all() -> None:
    """Run every check; a few seconds. Nothing is compiled: the functions are the same, compilation comes later."""
    check_target(compiled=False)
    check_gradients()
    check_generation()
    check_mtp()
