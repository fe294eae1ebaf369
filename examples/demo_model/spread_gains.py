"""Give the norm gains of a trained checkpoint the spread that large models have, without changing what it computes.

    python examples/demo_model/spread_gains.py --model model

A small model trained for an hour keeps its gains near one, so that the two sides of a norm look alike after the next
norm: a drafter wired to the wrong side drafts about as well, and no acceptance gate can tell. Here every channel of
the target's final norm and of the drafter's shared_head.norm is multiplied by a power of two, d, and the matching
column of lm_head divided by it. Both steps are exact in floating point, so every logit of the target keeps its bits.
The drafter's hnorm takes the hidden times d, and its gain is divided by it; its root mean square changes from token
to token a little, so the gain is corrected by the mean ratio over held-out prompts, and the drafter's own logits move
by a few percent.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from drafts.targets.tokenizer import load_tokenizer
from drafts.targets.transformers_target import load_target

LANGUAGE_MODEL = "model.language_model."
SPREAD = 1.0  # standard deviation of the exponents
LARGEST_EXPONENT = 3
SEED = 7


def channel_scales(width: int) -> Tensor:
    """Return float32 [width] powers of two, their exponents rounded from a normal distribution."""
    exponents = torch.randn(width, generator=torch.Generator().manual_seed(SEED)) * SPREAD
    return 2.0 ** exponents.round().clamp(-LARGEST_EXPONENT, LARGEST_EXPONENT)


def mean_ratio(model: Path, prompts: Path, scales: Tensor) -> float:
    """Return the mean of rms(scales * h) / rms(h) over the target's normed hiddens h of the prompts."""
    target, tokenizer = load_target(model), load_tokenizer(model)
    texts = [prompt["text"] for prompt in json.loads(prompts.read_text(encoding="utf-8"))["prompts"]]
    hiddens = torch.cat([target.open_sequence().prefill(tokenizer.encode(text)).normed_hiddens for text in texts])
    ratios = (hiddens * scales).square().mean(-1).sqrt() / hiddens.square().mean(-1).sqrt()
    return float(ratios.mean())


def spread_gains(model: Path, prompts: Path) -> float:
    """Rewrite the checkpoint in place, whole or not at all; returns the ratio that hnorm was corrected by."""
    path = model / "model.safetensors"
    tensors = load_file(path)
    with safe_open(path, "pt") as file:
        metadata = file.metadata()
    layers = json.loads((model / "config.json").read_text(encoding="utf-8"))["text_config"]["num_hidden_layers"]
    final_norm, drafter = f"{LANGUAGE_MODEL}norm.weight", f"{LANGUAGE_MODEL}layers.{layers}."
    gains = tensors[final_norm].float()
    if gains.std() > 0.5 * gains.mean():
        raise SystemExit(f"error: {path}: the gains are spread already; train again to spread them anew")
    scales = channel_scales(gains.numel())
    ratio = mean_ratio(model, prompts, scales)
    factors = {
        final_norm: scales,
        "lm_head.weight": 1.0 / scales,
        f"{drafter}shared_head.norm.weight": scales,
        f"{drafter}hnorm.weight": ratio / scales,
    }
    for name, factor in factors.items():
        tensors[name] = (tensors[name].float() * factor).to(tensors[name].dtype)
    partial = path.with_suffix(".partial")
    save_file(tensors, partial, metadata=metadata)
    os.replace(partial, path)
    return ratio


def main() -> None:
    """Spread the gains of a model folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="folder of a trained model, rewritten in place")
    parser.add_argument("--prompts", type=Path, default=Path(__file__).parent / "prompts.json")
    arguments = parser.parse_args()
    print(f"hnorm corrected by {spread_gains(arguments.model, arguments.prompts):.4f}")


if __name__ == "__main__":
    main()
