"""How many rows of lm_head could win, by their bounds of eight bits, over real hiddens of the demo model.

    python benchmarks/certified_head.py                  # some 700 hiddens in bf16, twenty seconds

Prompts are prefilled by the demo's target, the drafter drafts at every eighth token of them; counted are the rows whose
upper bound reaches the best lower one, as kernels/lm_head_certified.py computes them. The winner of the whole head is
held to be among them.
"""

import argparse
import json
import sys
from pathlib import Path

import torch
from torch import Tensor

from compiler.quantised_rows import int8_rows, row_errors, row_scales
from drafts.proposer import DraftProposer
from drafts.runner import DraftRunner
from drafts.targets.tokenizer import load_tokenizer
from drafts.targets.transformers_target import load_target

DEMO = Path(__file__).parents[1] / "examples" / "demo_model"
EVERY = 8  # tokens


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", type=Path, default=DEMO / "model")
    parser.add_argument("--dtype", choices=("bf16", "f32"), default="bf16")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    dtype = {"bf16": torch.bfloat16, "f32": torch.float32}[arguments.dtype]
    normed = _hiddens(arguments.checkpoint, dtype)
    proposer = DraftProposer.from_checkpoint(arguments.checkpoint, dtype=dtype, max_seq_len=8)
    weight = proposer.weights["lm_head"]
    counts = _could_win(normed, weight)
    print(f"{len(normed)} hiddens, lm_head {list(weight.shape)}, {arguments.dtype}")
    spread = (weight.double() - row_scales(weight).double()[:, None] * int8_rows(weight)).norm(dim=1)
    print(f"eight bits leave {float((spread / weight.double().norm(dim=1)).mean()):.2%} of a row on average")
    points = torch.tensor([0.5, 0.9, 0.99], dtype=torch.float64)
    half, most, nearly = torch.quantile(counts.double(), points).tolist()
    print("| rows that could win | mean | median | 90 % | 99 % | most |\n|---|---|---|---|---|---|")
    print(f"| | {counts.double().mean():.2f} | {half:.0f} | {most:.0f} | {nearly:.0f} | {int(counts.max())} |")
    return 0


def _could_win(normed: Tensor, weight: Tensor) -> Tensor:
    """The rows per hidden that could win; fails where the best of the whole head is not among them."""
    about = normed.float() @ int8_rows(weight).float().T * row_scales(weight)
    error = row_errors(weight) * normed.float().norm(dim=1, keepdim=True) * (1 + weight.shape[1] * 2.0**-22)
    upper, lower = (about + error).to(weight.dtype), (about - error).to(weight.dtype)
    is_left = upper >= lower.amax(dim=1, keepdim=True)
    best = torch.nn.functional.linear(normed, weight).argmax(dim=1, keepdim=True)
    assert bool(is_left.gather(1, best).all()), "the best row is not among those that could win"
    return is_left.sum(dim=1)


def _hiddens(checkpoint: Path, dtype: torch.dtype) -> Tensor:
    """What lm_head reads, [n, hidden]: of three drafts at every eighth token of the held-out prompts."""
    target = load_target(checkpoint, dtype=torch.float32)
    tokenizer = load_tokenizer(checkpoint)
    proposer = DraftProposer.from_checkpoint(checkpoint, dtype=dtype, max_seq_len=1024)
    binding = proposer.circuit_draft()
    assert binding is not None
    seen: list[Tensor] = []
    runner = DraftRunner(
        binding, observe=lambda step, value, tensor: seen.append(tensor) if value.name == "head_normed" else None
    )
    proposer.set_circuit_draft(runner)
    for prompt in json.loads((DEMO / "prompts.json").read_text())["prompts"]:
        tokens = tokenizer.encode(prompt["text"])
        hiddens = target.open_sequence().prefill(tokens).hiddens.to(dtype)
        state = proposer.alloc_state()
        for position in range(EVERY, len(tokens) - 1, EVERY):
            start = proposer.drafter_rows(state)
            proposer.catchup_drafter(tokens[start + 1 : position + 1], hiddens[start:position], start, start, state)
            proposer.propose(tokens[position + 1], hiddens[position], position, 3, state)
            proposer.after_verify(0, state)
        proposer.free_state(state)
    return torch.cat(seen)


if __name__ == "__main__":
    sys.exit(main())
