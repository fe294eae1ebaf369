"""A chain of drafts on a GPU at the released sizes, random weights: eager, torch.compile, launches, one graph.

    python benchmarks/propose_gpu.py                          # batch 1, 4, 16 at 4k and 128k; needs 40 GB
    python benchmarks/propose_gpu.py --batch 1 --context 4096 --skip torch_compile
    python benchmarks/propose_gpu.py --size tiny              # a minute, to see that everything runs

One process and one run for all columns: variants take turns, start on an idle device with an L2 that holds nothing of
theirs, and are timed by CUDA events. Times are medians in microseconds, with the 20th to 80th percentile in the JSON.

    eager           the eager head, a loop over the experts that rows chose
    torch_compile   the circuit's references by torch.compile, max-autotune with CUDA graphs
    launches        our kernels, started one by one
    captured        our kernels as one graph, the replay alone
    runner          that graph as a proposer calls it: checks, inputs, replay, ids
    floor           the bytes that the nodes declare at the rate that a copy of 1 GiB was measured at

`used` is the floor's part of `captured`; `same` is the share of drafts in which `runner` gives the eager head's token:
random weights make near ties, which bf16 lets fall either way. Exit status 2 where there is no GPU.
"""

import argparse
import json
import sys
from collections.abc import Callable
from typing import Any

import torch

from compiler import DerivedWeights
from drafts.benchmark.on_gpu import GpuCase, L2Flush, copy_gbps, gpu_weights, released_config, time_by_events
from drafts.benchmark.sizes import sized_config
from drafts.benchmark.variants import compiled_by_torch, eager
from drafts.config import DraftConfig

VARIANTS = ("eager", "torch_compile", "launches", "captured", "runner")
NO_GPU = "propose_gpu: there is no CUDA device; run it on a machine with a GPU, nothing was measured"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=("released", "tiny"), default="released")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--context", type=int, nargs="+", help="rows of a sequence; 4096 and 131072, or 1024 for tiny")
    parser.add_argument("--drafts", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each case's timing")
    parser.add_argument("--skip", choices=VARIANTS, nargs="+", default=[])
    parser.add_argument("--json", action="store_true", help="one JSON object a line instead of the table")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        print(NO_GPU, file=sys.stderr)
        return 2
    device = torch.device("cuda", torch.cuda.current_device())
    config = head_config(arguments.size)
    weights, flush = gpu_weights(config, device=device), L2Flush(device)
    rate = copy_gbps(device)
    weight_gb = sum(weight.nbytes for weight in weights.values()) / 1e9
    if not arguments.json:
        print(
            f"{torch.cuda.get_device_name(device)}, torch {torch.__version__}; {arguments.size} sizes in bf16, "
            f"{weight_gb:.1f} GB of weights, {arguments.drafts} drafts; copies at {rate:,.0f} GB/s; "
            f"L2 flushed with {flush.num_bytes / 1e6:.0f} MB before every run; microseconds, medians"
        )
        print(f"{'case':<18}" + "".join(f"{name:>15}" for name in (*VARIANTS, "floor")) + f"{'used':>8}{'same':>7}")
    contexts = arguments.context or ([1024] if arguments.size == "tiny" else [4096, 131072])
    for context in contexts:
        for batch in arguments.batch:
            case = GpuCase(config, weights, num_rows=batch, context=context, num_drafts=arguments.drafts)
            found = measured(case, flush=flush, rate=rate, seconds=arguments.seconds, skipped=arguments.skip)
            found = {"batch": batch, "context": context, "drafts": arguments.drafts, **found}
            found |= {"size": arguments.size, "copy_gbps": rate, "l2_flushed_bytes": flush.num_bytes}
            found["device"] = torch.cuda.get_device_name(device)
            print(json.dumps(found) if arguments.json else table_row(found), flush=True)
            del case
            torch.cuda.empty_cache()
    return 0


def head_config(size: str) -> DraftConfig:
    """Return the config of the released head, or of a small one."""
    return sized_config("small", torch.bfloat16) if size == "tiny" else released_config()


def measured(
    case: GpuCase, *, flush: Callable[[], None], rate: float, seconds: float, skipped: list[str]
) -> dict[str, Any]:
    """Return medians, spreads and the floor of one case; a variant that fails is named with its reason."""
    derived = DerivedWeights(case.compiled.derived, case.weights).tensors
    launches, graph = case.launches(derived=derived), case.captured(derived=derived)
    failed: dict[str, str] = {}
    if graph.why_uncaptured:
        failed["captured"] = graph.why_uncaptured
    # torch's chain keeps a cache of its own; each is built when its turn comes, for the memory it takes
    made: dict[str, Callable[[], Callable[[], object]]] = {
        "eager": lambda: eager(case),
        "torch_compile": lambda: compiled_by_torch(case, options=torch._inductor.list_mode_options("max-autotune")),
        "launches": lambda: lambda: launches.launch(case.num_drafts),
        "captured": lambda: lambda: graph.replay(case.num_drafts),
        "runner": case.through_the_runner,
    }
    runs: dict[str, Callable[[], object]] = {}
    for name in VARIANTS:
        if name in skipped or name in failed:
            continue
        try:
            runs[name] = made[name]()
            runs[name]()
        except Exception as error:  # whatever a compiler raises: the others are measured all the same
            runs.pop(name, None)
            failed[name] = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    torch.cuda.synchronize()
    timings = time_by_events(runs, flush=flush, seconds=seconds)
    result: dict[str, Any] = {"bytes": case.bytes, "floor_us": case.bytes / rate / 1e3, "failed": failed}
    for name, timing in timings.items():
        result |= {f"{name}_us": timing.median_us, f"{name}_p20_us": timing.p20_us, f"{name}_p80_us": timing.p80_us}
    result["rounds"] = next(iter(timings.values())).num_rounds if timings else 0
    result["same_drafts"] = agreement(runs)
    result["torch_compile_graph_skips"] = torch._dynamo.utils.counters["inductor"]["cudagraph_skips"]
    torch._dynamo.reset()
    return result


def agreement(runs: dict[str, Callable[[], object]]) -> float | None:
    """Return the share of drafts that the runner and the eager head have in common."""
    if not {"eager", "runner"} <= runs.keys():
        return None
    ours, theirs = runs["runner"](), runs["eager"]()
    assert isinstance(ours, torch.Tensor)
    return float((ours == theirs).float().mean())


def table_row(found: dict[str, Any]) -> str:
    """Return a case's line of the table, and a line for each variant that failed."""
    cells = "".join(
        f"{found[f'{name}_us']:>15,.0f}"
        if f"{name}_us" in found
        else f"{'failed' if name in found['failed'] else '-':>15}"
        for name in (*VARIANTS, "floor")
    )
    ours, same = found.get("captured_us"), found["same_drafts"]
    used = f"{found['floor_us'] / ours:>8.0%}" if ours else f"{'-':>8}"
    line = (
        f"{found['batch']:>3} rows, {found['context']:>7,}"
        + cells
        + used
        + (f"{'-':>7}" if same is None else f"{same:>7.0%}")
    )
    return "\n".join([line, *(f"    {name}: {why}" for name, why in found["failed"].items())])


if __name__ == "__main__":
    sys.exit(main())
