"""Measure the demo model with transformers' modules: accepted length, acceptance per draft position, parity, repeats.

    python examples/demo_model/measure.py --model examples/demo_model/model

`--recycle block_output` and `--hidden-source pre_norm` show what the drafter loses when it is driven wrongly;
`--index random` and `--index dense` replace the MTP layer's pool selection.
"""

from __future__ import annotations

import argparse
import json
import time
from itertools import pairwise
from pathlib import Path

import torch
from drafting import Generation, Target, plain_greedy, speculative_greedy
from mtp_reference import MtpLayer, load_mtp
from tokenizers import Tokenizer
from torch import Tensor
from transformers import Glm5NextForConditionalGeneration, logging

HERE = Path(__file__).parent
DENSE_TOPK = 4096
FIRST_TOKENS = 32


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=HERE / "model")
    parser.add_argument("--prompts", type=Path, default=HERE / "prompts.json")
    parser.add_argument("--num-prompts", type=int, default=20)
    parser.add_argument("--num-new", type=int, default=128, help="new tokens per prompt")
    parser.add_argument("--num-drafts", type=int, default=3)
    parser.add_argument("--recycle", choices=["post_norm", "block_output"], default="post_norm")
    parser.add_argument("--hidden-source", choices=["post_norm", "pre_norm"], default="post_norm")
    parser.add_argument("--index", choices=["trained", "random", "dense"], default="trained")
    parser.add_argument("--skip-real-text", action="store_true", help="leave the teacher-forced measurement out")
    parser.add_argument("--skip-plain", action="store_true", help="do not compare with plain greedy")
    parser.add_argument("--json", type=Path, help="also write the numbers here")
    return parser.parse_args()


def replace_index(layer: MtpLayer, index: str, initializer_range: float) -> None:
    """Make the MTP layer's selection random (an untrained indexer, fixed seed) or dense."""
    indexer = layer.self_attn.indexer
    if index == "dense":
        indexer.index_topk = DENSE_TOPK
    if index == "random":
        torch.manual_seed(0)
        with torch.no_grad():
            for weight in (indexer.wq_b.weight, indexer.wk.weight, indexer.weights_proj.weight):
                weight.normal_(0.0, initializer_range)
            indexer.index_kpool_compress_gate.normal_(0.0, initializer_range)
            indexer.index_kpool_compress_ape.zero_()
            indexer.k_norm.reset_parameters()


def repeated_share(tokens: list[int], order: int = 4) -> float:
    """Share of `order`-grams of one generation that occurred earlier in it."""
    grams = [tuple(tokens[i : i + order]) for i in range(len(tokens) - order + 1)]
    return 1 - len(set(grams)) / len(grams)


@torch.no_grad()
def real_text_matches(
    target: Target, layer: MtpLayer, tokens: Tensor, first_row: int, num_drafts: int, recycle: str
) -> list[list[bool]]:
    """Compare drafts with the target's argmax on real text tokens [1, T], every draft behind true tokens.

    Returns for each draft position the comparisons of rows `first_row` and on.
    """
    best, hidden = target.forward(tokens, None)
    cache, matches = layer.new_cache(), [[] for _ in range(num_drafts)]
    layer(target.embed(tokens[:, 1 : first_row + 1]), hidden[:, :first_row], cache)
    for row in range(first_row, tokens.shape[1] - num_drafts):
        recycled = hidden[:, row : row + 1]
        for depth in range(num_drafts):
            at = row + depth + 1
            head_normed, block_output = layer(target.embed(tokens[:, at : at + 1]), recycled, cache)
            matches[depth].append((target.head(head_normed[0, -1]).argmax(-1) == best[at]).item())
            recycled = head_normed if recycle == "post_norm" else block_output
        if num_drafts > 1:
            cache.crop(-(num_drafts - 1))
    return matches


def summarise(generations: list[Generation], num_drafts: int) -> dict[str, object]:
    """Pool the verifies of every prompt: mean length and acceptance per draft position."""
    accepted = [a for generation in generations for a in generation.accepted]
    early = [
        a + 1
        for generation in generations
        for a, start in zip(generation.accepted, generation.started_at, strict=True)
        if start < FIRST_TOKENS
    ]
    reached = [sum(a >= depth for a in accepted) for depth in range(num_drafts + 1)]
    return {
        "verifies": len(accepted),
        "mean_accepted_length": sum(a + 1 for a in accepted) / len(accepted),
        f"mean_accepted_length_first_{FIRST_TOKENS}": sum(early) / len(early),
        "accepted_at_position": [count / len(accepted) for count in reached[1:]],
        "accepted_given_previous": [count / previous if previous else 0.0 for previous, count in pairwise(reached)],
    }


def is_equal(tokens: list[int], plain: list[int], module: str) -> bool:
    """Compare speculative with plain greedy tokens and say where they part."""
    if tokens != plain:
        first = next(i for i, (a, b) in enumerate(zip(tokens, plain, strict=True)) if a != b)
        print(f"measure: {module}: leaves plain greedy at token {first}", flush=True)
    return tokens == plain


def measure(options: argparse.Namespace) -> dict[str, object]:
    """Run everything and return the numbers."""
    model = Glm5NextForConditionalGeneration.from_pretrained(options.model, dtype=torch.float32).eval()
    config = model.config.text_config
    target = Target(model, options.hidden_source)
    layer = load_mtp(options.model, config)
    replace_index(layer, options.index, config.initializer_range)
    tokenizer = Tokenizer.from_file(str(options.model / "tokenizer.json"))
    prompts = json.loads(options.prompts.read_text())["prompts"][: options.num_prompts]
    generations, repeats, equal, matches = [], [], 0, [[] for _ in range(options.num_drafts)]
    start = time.monotonic()
    for prompt in prompts:
        ids = torch.tensor([tokenizer.encode(prompt["text"]).ids])
        got = speculative_greedy(
            target, layer, ids, options.num_new, num_drafts=options.num_drafts, recycle=options.recycle
        )
        if not options.skip_plain:
            equal += is_equal(got.tokens, plain_greedy(target, ids, options.num_new), prompt["module"])
        generations.append(got)
        repeats.append(repeated_share(got.tokens))
        if not options.skip_real_text:
            text = torch.tensor([tokenizer.encode(prompt["text"] + prompt["continuation"]).ids])
            for column, new in zip(
                matches,
                real_text_matches(target, layer, text, ids.shape[1] - 1, options.num_drafts, options.recycle),
                strict=True,
            ):
                column.extend(new)
    numbers = {
        "prompts": len(prompts), "num_new": options.num_new, "num_drafts": options.num_drafts,
        "recycle": options.recycle, "hidden_source": options.hidden_source, "index": options.index, "dtype": "float32",
    } | summarise(generations, options.num_drafts)  # fmt: skip
    if not options.skip_plain:
        numbers["equal_to_plain_greedy"] = f"{equal}/{len(prompts)}"
    numbers["repeated_4_grams"] = sum(repeats) / len(repeats)
    if not options.skip_real_text:
        numbers["real_text_match_at_position"] = [sum(column) / len(column) for column in matches]
    numbers["seconds"] = round(time.monotonic() - start, 1)
    return numbers


def show(value: object) -> str:
    """Format one number or list of numbers."""
    if isinstance(value, list):
        return " / ".join(f"{one:.3f}" for one in value)
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def main() -> None:
    """Measure, print a table, and write JSON when asked."""
    options = arguments()
    logging.set_verbosity_error()
    numbers = measure(options)
    for name, value in numbers.items():
        print(f"{name:32} {show(value)}")
    if options.json:
        options.json.write_text(json.dumps(numbers, indent=2) + "\n")


if __name__ == "__main__":
    main()
