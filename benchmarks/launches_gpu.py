"""Each launch of a draft on a GPU against its floor, at the released sizes with random weights.

    python benchmarks/launches_gpu.py                                # batch 1, context 4096; needs 25 GB
    python benchmarks/launches_gpu.py --batch 16 --context 131072 --json
    python benchmarks/launches_gpu.py --size tiny

Launches run in their order, each on its own with the L2 flushed before it, timed by CUDA events while the host is
ahead, so the time is the device's alone. The floor is the bytes that the nodes declare for the launch, at the rate that
a copy of 1 GiB was measured at. A launch of a few kilobytes takes what starting a kernel takes, some microseconds,
whatever its floor. Exit status 2 where there is no GPU.
"""

import argparse
import json
import sys

import torch

from compiler import DerivedWeights, bind_dims
from compiler.triton.program import run_launch
from drafts.benchmark.on_gpu import GpuCase, L2Flush, copy_gbps, gpu_weights, one_us, released_config
from drafts.benchmark.protocol import Timing, timing_of
from drafts.benchmark.sizes import sized_config
from drafts.planned_launches import planned_launches

NO_GPU = "launches_gpu: there is no CUDA device; run it on a machine with a GPU, nothing was measured"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=("released", "tiny"), default="released")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--context", type=int, help="rows of a sequence; 4096, or 1024 for tiny")
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--json", action="store_true", help="one JSON object a line instead of the table")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        print(NO_GPU, file=sys.stderr)
        return 2
    device = torch.device("cuda", torch.cuda.current_device())
    is_tiny = arguments.size == "tiny"
    config = sized_config("small", torch.bfloat16) if is_tiny else released_config()
    context = arguments.context or (1024 if is_tiny else 4096)
    case = GpuCase(config, gpu_weights(config, device=device), num_rows=arguments.batch, context=context, num_drafts=1)
    flush, rate = L2Flush(device), copy_gbps(device)
    timings, floors = time_launches(case, flush, rounds=arguments.rounds), declared_bytes(case)
    rows = [
        {
            "launch": name,
            "us": timing.median_us,
            "p20_us": timing.p20_us,
            "p80_us": timing.p80_us,
            "bytes": floors[name],
            "floor_us": floors[name] / rate / 1e3,
        }
        for name, timing in timings.items()
    ]
    about = {"batch": arguments.batch, "context": context, "size": arguments.size, "copy_gbps": rate}
    about |= {"device": torch.cuda.get_device_name(device), "rounds": arguments.rounds}
    if arguments.json:
        for row in rows:
            print(json.dumps({**about, **row}))
        return 0
    print(
        f"{about['device']}, torch {torch.__version__}; one draft of {arguments.batch} rows at {context:,}, "
        f"{arguments.size} sizes in bf16; copies at {rate:,.0f} GB/s; L2 flushed before every launch"
    )
    print(f"{'launch':<16}{'us':>9}{'20 to 80 %':>20}{'MB':>10}{'floor us':>10}{'used':>7}")
    for row in rows:
        spread = f"{row['p20_us']:.1f} to {row['p80_us']:.1f}"
        print(
            f"{row['launch']:<16}{row['us']:>9.1f}{spread:>20}{row['bytes'] / 1e6:>10.2f}{row['floor_us']:>10.1f}"
            f"{row['floor_us'] / row['us']:>7.0%}"
        )
    total, floor = sum(row["us"] for row in rows), sum(row["floor_us"] for row in rows)
    print(f"{'all':<16}{total:>9.1f}{'':>20}{sum(floors.values()) / 1e6:>10.2f}{floor:>10.1f}{floor / total:>7.0%}")
    return 0


def time_launches(case: GpuCase, flush: L2Flush, *, rounds: int) -> dict[str, Timing]:
    """Return the time of every launch; in order, since each reads what the one before left in a shared arena."""
    program = case.launches(derived=DerivedWeights(case.compiled.derived, case.weights).tensors)
    for _ in range(3):
        program.launch(1)
    samples: dict[str, list[float]] = {launch.name: [] for launch in case.plan.launches}
    for _ in range(rounds):
        for launch in case.plan.launches:
            samples[launch.name].append(
                one_us(lambda launch=launch: run_launch(launch, program.memory), flush=flush, is_host_ahead=True)
            )
    return {name: timing_of(values) for name, values in samples.items()}


def declared_bytes(case: GpuCase) -> dict[str, int]:
    """Return what each launch reads and writes, as the nodes' costs say."""
    dims = {
        **case.binding.dims,
        "n": case.rows.num_rows,
        "max_blocks": case.rows.block_table.shape[1],
        "num_blocks": case.cache.num_blocks,
        "num_sequences": case.cache.num_sequences,
        "mask_words": -(-case.config.vocab_size // 32),
    }
    step = bind_dims(case.binding.step(is_first=True), dims)
    return {launch.name: launch.bytes for launch in planned_launches(step, dims)}


if __name__ == "__main__":
    sys.exit(main())
