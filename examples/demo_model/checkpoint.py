"""Files of a run: one stage's weights in the work folder, and the finished model in the released layout."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import torch
from corpus import END_OF_TEXT
from mtp_reference import PREFIX, MtpLayer, split_experts
from safetensors.torch import load_file, save_file
from tokenizer import save_tokenizer
from tokenizers import Tokenizer
from torch import Tensor, nn
from transformers import GenerationConfig, Glm5NextForConditionalGeneration

MAX_BYTES = 20_000_000
# kept in float32 on disk, as the released checkpoint does and transformers insists on
FLOAT32_NAMES = ("e_score_correction_bias", "mlp.gate.weight")


def save_tensors(tensors: dict[str, Tensor], path: Path) -> None:
    """Write tensors to a safetensors file that appears whole or not at all."""
    partial = path.with_suffix(".partial")
    whole = torch.contiguous_format
    save_file({name: tensor.detach().clone(memory_format=whole) for name, tensor in tensors.items()}, partial)
    os.replace(partial, path)


def save_stage(module: nn.Module, path: Path) -> None:
    """Write a module's float32 weights."""
    save_tensors(module.state_dict(), path)


def load_stage(module: nn.Module, path: Path) -> None:
    """Read weights written by `save_stage`."""
    module.load_state_dict(load_file(path))


def mtp_state(layer: MtpLayer) -> dict[str, Tensor]:
    """Return the MTP layer's tensors under their checkpoint names and dtypes."""
    state = {name: tensor.detach() for name, tensor in split_experts(layer.state_dict()).items()}
    return {
        PREFIX + name: tensor.contiguous().to(torch.float32 if name.endswith(FLOAT32_NAMES) else torch.bfloat16)
        for name, tensor in state.items()
    }


def save_model(model: Glm5NextForConditionalGeneration, layer: MtpLayer, tokenizer: Tokenizer, folder: Path) -> None:
    """Write the whole model to `folder`, which is replaced in one step; raises above 20 MB.

    transformers writes the target (bfloat16, experts one by one); the MTP tensors are added to the same file.
    """
    partial = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    saved = Glm5NextForConditionalGeneration(model.config)
    saved.load_state_dict(model.state_dict())
    saved.generation_config = GenerationConfig(
        bos_token_id=END_OF_TEXT, eos_token_id=END_OF_TEXT, pad_token_id=model.config.text_config.pad_token_id
    )
    to_bfloat16(saved)
    saved.save_pretrained(partial)
    weights = load_file(partial / "model.safetensors")
    clash = weights.keys() & mtp_state(layer).keys()
    if clash:
        raise ValueError(f"save_model: expected no tensor of the MTP layer in the target, found {sorted(clash)[:3]}")
    save_file(weights | mtp_state(layer), partial / "model.safetensors", metadata={"format": "pt"})
    save_tokenizer(tokenizer, partial)
    size = sum(path.stat().st_size for path in partial.iterdir())
    if size > MAX_BYTES:
        raise ValueError(f"save_model: expected at most {MAX_BYTES} bytes in {partial}, got {size}; make it smaller")
    shutil.rmtree(folder, ignore_errors=True)
    partial.rename(folder)
    print(f"model: {folder}, {size / 1e6:.2f} MB", flush=True)


def to_bfloat16(model: Glm5NextForConditionalGeneration) -> None:
    """Round every weight to bfloat16 but those transformers keeps in float32."""
    strict = tuple(model._keep_in_fp32_modules_strict)
    for name, parameter in model.named_parameters():
        if not any(part in name for part in strict):
            parameter.data = parameter.data.bfloat16()
    model.config.dtype = model.config.text_config.dtype = model.config.vision_config.dtype = torch.bfloat16
