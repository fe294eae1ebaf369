"""A whole tiny checkpoint on disk: random target, random MTP layer, and a tokenizer with one token a character."""

import json
import string
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

from drafts.config import read_config
from drafts.weights import head_weight_specs
from tests.drafts.tiny_target import VOCAB_SIZE, tiny_model

CHARACTERS = [
    "?",
    "\x00",
    "\x01",
    "\x02",
    *string.ascii_letters[: VOCAB_SIZE - 14],
    " ",
    "\n",
    "(",
    ")",
    ":",
    "_",
    ".",
    ",",
    "=",
    "'",
]
MAX_POSITIONS = 128


def write_tiny_checkpoint(folder: Path) -> Path:
    """Write config.json, model.safetensors and tokenizer.json, and return the folder."""
    tiny_model().save_pretrained(folder)
    document = json.loads((folder / "config.json").read_text())
    document["text_config"]["num_nextn_predict_layers"] = 1
    (folder / "config.json").write_text(json.dumps(document))
    tensors = load_file(folder / "model.safetensors")
    generator = torch.Generator().manual_seed(1)
    for spec in head_weight_specs(read_config(folder, dtype=torch.float32)):
        for source in spec.sources:
            if source not in tensors:
                tensors[source] = torch.randn(spec.source_shape(), generator=generator) * 0.3
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    write_tokenizer(folder)
    return folder


def write_tokenizer(folder: Path) -> None:
    """Write a tokenizer.json whose ids are the places in CHARACTERS; the first stands for what it does not know."""
    vocab = {character: index for index, character in enumerate(CHARACTERS)}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token=CHARACTERS[0]))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("(?m:.)"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.save(str(folder / "tokenizer.json"))
