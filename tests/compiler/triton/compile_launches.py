"""Compile every launch at the released sizes and print what its machine code is, one JSON object a line.

    python tests/compiler/triton/compile_launches.py --batch 1 --arch 90

A process of its own: triton makes kernels to compile or kernels to interpret, never both.
"""

from __future__ import annotations

import argparse
import inspect
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))

from compiler.triton.ahead_of_time import compile_launch
from compiler.triton.document import code_key
from compiler.triton.program import kernel_of
from drafts.commands.plan_subject import plan_subject
from drafts.draft_head import DraftHead
from drafts.plan_drafter import bind_without_weights
from drafts.triton_runner import compile_for_launches, launch_circuit, launch_plan


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=1, help="rows of a chain, or of the context program")
    parser.add_argument("--context-rows", action="store_true", help="the context program in place of a chain")
    parser.add_argument("--arch", type=int, default=90)
    parser.add_argument("--kpool", type=int, default=None)
    parser.add_argument("--context", type=int, default=131072)
    parser.add_argument("--confidence", action="store_true", help="with a grammar's mask and confidences")
    parser.add_argument("--draft-head", default="bf16", help="the lever of that name")
    parser.add_argument("--draft-vocab", type=int, default=None, help="rows of a trimmed lm_head")
    parser.add_argument("--only", help="launches whose name starts so")
    arguments = parser.parse_args()
    subject = plan_subject("glm-5.3-flash", dtype_name="bf16")
    config = subject.config
    if arguments.kpool is not None:
        config = config.model_copy(update={"index_kpool": arguments.kpool})
    listed = None if arguments.draft_vocab is None else tuple(range(arguments.draft_vocab))
    head = DraftHead(draft_head=arguments.draft_head, draft_vocab=listed)
    binding = bind_without_weights(config, subject.decisions, draft_head=head)
    parts = {"has_grammar": arguments.confidence, "has_confidence": arguments.confidence}
    # two drafts: the second is fed by the first, and has no norm of the target's
    circuit = launch_circuit(binding, num_drafts=0 if arguments.context_rows else 2, **parts)
    blocks = arguments.context // binding.state_layout.block_size
    compiled = compile_for_launches(
        binding, circuit, num_rows=arguments.batch, max_blocks=blocks, num_blocks=blocks + 1, num_sequences=2
    )
    plan = launch_plan(compiled, name="released")
    for launch in {code_key(launch): launch for launch in plan.launches}.values():
        if arguments.only and not launch.name.startswith(arguments.only):
            continue
        code = compile_launch(launch, arch=arguments.arch)
        print(
            json.dumps(
                {
                    "launch": launch.name,
                    "kernel": launch.kernel,
                    "grid": list(launch.grid),
                    "registers": code.registers,
                    "spilled_bytes": code.spilled_bytes,
                    "shared_bytes": code.shared_bytes,
                    "warps": code.num_warps,
                    "blocks": code.blocks_per_multiprocessor(),
                    "wide_loads": code.wide_loads,
                    "narrow_loads": code.count(r"LDGSTS(?!\S*\.128)|LDG\.E\.U?[0-9]*(16|8)\b"),
                    "tensor_core_products": code.tensor_core_products,
                    "has_dot": "dot(" in inspect.getsource(kernel_of(launch.kernel).fn),
                }
            ),
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
