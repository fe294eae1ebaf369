"""Train the demo model from scratch: `python examples/demo_model/train.py --out model`.

Stages: checks, tokenizer, target, target-generated text, MTP layer, and the finished model folder, its gains spread.
Each stage leaves one whole file in the work folder; a run that was interrupted continues with the first stage whose
file is missing.
`--check` runs only the checks. Needs torch, transformers, tokenizers, safetensors and a C++ compiler; about an hour
on two cores with AMX.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import check
import torch
from checkpoint import load_stage, save_model, save_stage, save_tensors
from continuing import continued_mtp, continued_target
from corpus import WindowSampler, fixed_windows, read_sources, to_stream
from generate import generate_text
from mtp_reference import MtpLayer
from safetensors.torch import load_file
from sizes import WINDOW
from spread_gains import spread_gains
from target import FastTarget
from tokenizer import train_tokenizer
from tokenizers import Tokenizer
from torch import Tensor
from train_mtp import MtpPlan, new_mtp, train_mtp
from train_target import TargetPlan, new_model, train_target
from transformers import logging
from workers import run_stage

LIBRARY_SHARE = 0.65
# generated windows start with this much real text
PROMPT_TOKENS = 96
GENERATED_ROWS = 256
# library windows per generated window in the MTP layer's training set
LIBRARY_WINDOWS = 1.0


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare the fast forwards with transformers and stop")
    parser.add_argument("--out", type=Path, default=Path("model"), help="folder of the finished model")
    parser.add_argument("--work", type=Path, default=Path("demo_model_work"), help="folder of the stages' files")
    parser.add_argument("--continue-from", type=Path, help="earlier checkpoint of these sizes to start from")
    parser.add_argument("--target-seconds", type=float, default=TargetPlan.seconds)
    parser.add_argument("--generate-seconds", type=float, default=180.0)
    parser.add_argument("--mtp-seconds", type=float, default=MtpPlan.seconds)
    parser.add_argument("--workers", type=int, default=2, help="processes of one thread each")
    parser.add_argument("--skip-check", action="store_true", help="start training at once")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def make_tokenizer(work: Path, continue_from: Path | None) -> None:
    """Train the tokenizer into the work folder, or take the earlier checkpoint's."""
    path = work / "tokenizer.json"
    if path.exists():
        return
    if continue_from:
        tokenizer = Tokenizer.from_file(str(continue_from / "tokenizer.json"))
    else:
        tokenizer = train_tokenizer(list(read_sources()[0].values()))
    tokenizer.save(str(path.with_suffix(".partial")))
    os.replace(path.with_suffix(".partial"), path)


def corpus_streams(tokenizer: Tokenizer, seed: int) -> tuple[list[Tensor], Tensor]:
    """Return the training streams (library, tests) and the held-out windows [num_windows, WINDOW]."""
    library, tests, held_out = read_sources()
    streams = [to_stream(tokenizer, sources, seed=seed) for sources in (library, tests)]
    return streams, fixed_windows(to_stream(tokenizer, held_out, seed=seed), WINDOW)


def target_stage(rank: int, world: int, options: argparse.Namespace) -> None:
    """Train the target and write target.safetensors."""
    logging.set_verbosity_error()
    streams, held_out = corpus_streams(Tokenizer.from_file(str(options.work / "tokenizer.json")), options.seed)
    if rank == 0:
        sizes = " and ".join(f"{len(stream) / 1e6:.2f} M" for stream in streams)
        print(f"corpus: {sizes} tokens (library, tests); {len(held_out)} held-out windows of {WINDOW}", flush=True)
    sampler = WindowSampler(streams, [LIBRARY_SHARE, 1 - LIBRARY_SHARE], WINDOW, options.seed + rank)
    if options.continue_from:
        model = continued_target(options.continue_from)
        plan = TargetPlan(seconds=options.target_seconds, dense_share=0.0, peak=0.3, warm_up=20)
    else:
        model, plan = new_model(options.seed), TargetPlan(seconds=options.target_seconds)
    train_target(model, sampler, held_out, plan, rank=rank, world=world)
    if rank == 0:
        save_stage(model, options.work / "target.safetensors")


def load_target(path: Path) -> FastTarget:
    """Return the trained target, ready for the compiled forward."""
    model = new_model(0)
    load_stage(model, path)
    return FastTarget(model)


def generate_stage(rank: int, world: int, options: argparse.Namespace) -> None:
    """Let the target continue training prompts; each process writes its windows to generated.{rank}.safetensors."""
    streams, _ = corpus_streams(Tokenizer.from_file(str(options.work / "tokenizer.json")), options.seed)
    sampler = WindowSampler(streams, [LIBRARY_SHARE, 1 - LIBRARY_SHARE], WINDOW, options.seed + 100 + rank)
    target = load_target(options.work / "target.safetensors")
    prompts = sampler.batch(GENERATED_ROWS * 64)[:, :PROMPT_TOKENS]
    windows = generate_text(target, prompts, WINDOW, GENERATED_ROWS, options.generate_seconds)
    library = sampler.batch(round(len(windows) * LIBRARY_WINDOWS))
    save_tensors({"generated": windows, "library": library}, options.work / f"windows.{rank}.safetensors")


def mtp_stage(rank: int, world: int, options: argparse.Namespace) -> None:
    """Train the MTP layer and write mtp.safetensors."""
    windows = load_file(options.work / f"windows.{rank}.safetensors")
    target = load_target(options.work / "target.safetensors")
    layer = continued_mtp(options.continue_from, target.config) if options.continue_from else new_mtp(target)
    plan = MtpPlan(seconds=options.mtp_seconds)
    torch.manual_seed(options.seed + rank)
    train_mtp(target, layer, windows["library"], windows["generated"], plan, rank=rank, world=world)
    if rank == 0:
        save_stage(layer, options.work / "mtp.safetensors")


def finish(options: argparse.Namespace) -> None:
    """Write the model folder from the stages' files."""
    model = new_model(0)
    load_stage(model, options.work / "target.safetensors")
    layer = MtpLayer(model.config.text_config)
    load_stage(layer, options.work / "mtp.safetensors")
    save_model(model, layer, Tokenizer.from_file(str(options.work / "tokenizer.json")), options.out)
    spread_gains(options.out, Path(__file__).parent / "prompts.json")


def main() -> None:
    """Run every stage whose result is missing, then write the model folder."""
    options = arguments()
    logging.set_verbosity_error()
    if not options.skip_check:
        check.check_all()
    if options.check:
        return
    options.work.mkdir(parents=True, exist_ok=True)
    make_tokenizer(options.work, options.continue_from)
    stages = (
        (["target.safetensors"], target_stage),
        ([f"windows.{rank}.safetensors" for rank in range(options.workers)], generate_stage),
        (["mtp.safetensors"], mtp_stage),
    )
    for results, stage in stages:
        if not all((options.work / result).exists() for result in results):
            run_stage(stage, options.workers, options)
    finish(options)


if __name__ == "__main__":
    main()
