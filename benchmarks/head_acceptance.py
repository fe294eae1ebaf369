"""What the forms of lm_head do to acceptance on the demo model: accepted length by draft_head, and drafts that differ.

    python benchmarks/head_acceptance.py                 # every second held-out prompt, 128 tokens, greedy, f32

`int8_certified` drafts the ids of `bf16` by construction; on a CPU it is run as it is declared, which is `bf16`.
"""

import argparse
import json
import sys
from pathlib import Path

import torch

from drafts.generation import combine_metrics
from drafts.levers import ModelLevers
from drafts.proposer import DraftProposer
from drafts.speculate import generate
from drafts.targets.tokenizer import load_tokenizer
from drafts.targets.transformers_target import load_target

DEMO = Path(__file__).parents[1] / "examples" / "demo_model"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=128, help="new tokens per prompt")
    parser.add_argument("--checkpoint", type=Path, default=DEMO / "model")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    target = load_target(arguments.checkpoint, dtype=torch.float32)
    tokenizer = load_tokenizer(arguments.checkpoint)
    texts = [prompt["text"] for prompt in json.loads((DEMO / "prompts.json").read_text())["prompts"]][::2]
    prompts = [tokenizer.encode(text) for text in texts]
    print("| draft_head | accepted length | rounds | accepted 1st, 2nd, 3rd draft |\n|---|---|---|---|")
    for form in ("bf16", "int8"):
        proposer = DraftProposer.from_checkpoint(
            arguments.checkpoint,
            dtype=torch.float32,
            max_seq_len=512,
            levers=ModelLevers(draft_head=form),  # type: ignore[arg-type]
        )
        made = [
            generate(target, proposer, prompt_tokens=prompt, max_new_tokens=arguments.tokens, num_drafts=3)
            for prompt in prompts
        ]
        total = combine_metrics([one.metrics for one in made])
        places = ", ".join(map(str, total.accepted))
        print(f"| {form} | {total.mean_accepted_length:.4f} | {total.num_rounds} | {places} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
