"""The CPU path against the eager head and torch.compile, over sizes, types and batches; prints one table.

    python benchmarks/propose_cpu.py                      # every case, about 25 minutes on two cores
    python benchmarks/propose_cpu.py --only small-bf16-1  # one

Each case runs in a process of its own, its variants interleaved inside it; ratios are of medians.
"""

import argparse
import json
import subprocess
import sys

CASES = {
    "small-bf16-1": ["--size", "small", "--dtype", "bf16", "--batch", "1"],
    "small-f32-1": ["--size", "small", "--dtype", "f32", "--batch", "1"],
    "small-bf16-4": ["--size", "small", "--dtype", "bf16", "--batch", "4"],
    "small-f32-4": ["--size", "small", "--dtype", "f32", "--batch", "4"],
    "demo-bf16-1": ["--size", "demo", "--dtype", "bf16", "--batch", "1"],
    "demo-f32-1": ["--size", "demo", "--dtype", "f32", "--batch", "1"],
    "large-bf16-1": ["--size", "large", "--dtype", "bf16", "--batch", "1", "--drafts", "1"],
    "large-bf16-4": ["--size", "large", "--dtype", "bf16", "--batch", "4", "--drafts", "1"],
}
COLUMNS = ("eager", "torch_compile", "torch_compile_best", "circuit", "floor")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=sorted(CASES), action="append")
    parser.add_argument("--json", action="store_true", help="one JSON object a line instead of the table")
    arguments = parser.parse_args()
    if not arguments.json:
        print(f"{'case':<14}" + "".join(f"{name + ' us':>22}" for name in COLUMNS) + f"{'ratios':>28}")
    for name in arguments.only or CASES:
        command = [sys.executable, "-m", "drafts", "bench", *CASES[name], "--json"]
        result = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
        if arguments.json:
            print(json.dumps({"case": name, **result}))
            continue
        ours = result["circuit_us"]
        ratios = " / ".join(f"{result[f'{column}_us'] / ours:.2f}" for column in COLUMNS[:3])
        cells = "".join(f"{result[f'{column}_us']:>22,.0f}" for column in COLUMNS)
        print(f"{name:<14}{cells}{ratios:>28}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
