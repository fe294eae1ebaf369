"""What folding weights would gain on the CPU: a compiled step as declared, and with projections of one input joined.

    python benchmarks/fold_cpu.py                 # SMALL bf16, three minutes on two quiet cores
    python benchmarks/fold_cpu.py --dtype f32

Both are compiled, take turns in one process, and are printed with their medians, the time of their compile, and the
bytes that the derived weights hold beside those they are made of. compiler/target.py quotes the outcome.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

import torch

from compiler.derived_weights import DerivedWeights
from compiler.inductor import PackagedProgram, build_driver, build_package
from compiler.passes.fold_weights import fold_weights
from drafts.benchmark.protocol import time_interleaved
from drafts.benchmark.sizes import random_weights, sized_config
from drafts.benchmark.variants import Prepared
from drafts.compile_drafter import OPEN_SIZES
from drafts.programs import program_dims, program_step
from drafts.runner import row_inputs, state_tensors


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", choices=("bf16", "f32"), default="bf16")
    parser.add_argument("--seconds", type=float, default=6.0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    config = sized_config("small", {"bf16": torch.bfloat16, "f32": torch.float32}[arguments.dtype])
    prepared = Prepared(config, random_weights(config), num_rows=1, context=1024, drafts=3)
    declared, feedback = program_step(prepared.binding, prepared.key)
    folded, derived, _ = fold_weights(declared, why_not={})
    store = DerivedWeights(derived, prepared.weights)
    dims = program_dims(prepared.binding, prepared.key)
    runs, seconds = {}, {}
    with tempfile.TemporaryDirectory() as folder:
        build_driver(Path(folder))
        for name, circuit in (("as declared", declared), ("folded", folded)):
            path, began = Path(folder) / f"{name.replace(' ', '_')}.so", time.perf_counter()
            build_package(circuit, {**dims, **OPEN_SIZES}, path, num_threads=1)
            seconds[name] = time.perf_counter() - began
            program = PackagedProgram(circuit, dims, path, feedback=feedback)
            runs[name] = _run(program, prepared, {**prepared.weights, **store.tensors})
        times = time_interleaved(runs, seconds=arguments.seconds)
    held = sum(tensor.nbytes for tensor in store.tensors.values())
    print(f"{'step':<14}{'median us':>11}{'20 to 80 %':>18}{'compile s':>11}{'more bytes':>12}")
    for name, timing in times.items():
        spread = f"{timing.p20_us:,.0f} to {timing.p80_us:,.0f}"
        more = held if name == "folded" else 0
        print(f"{name:<14}{timing.median_us:>11,.0f}{spread:>18}{seconds[name]:>11.1f}{more:>12,}")
    return 0


def _run(program: PackagedProgram, prepared: Prepared, weights):  # type: ignore[no-untyped-def]
    states = {name: tensor.clone() for name, tensor in state_tensors(prepared.cache).items()}
    inputs = row_inputs(prepared.rows)
    return lambda: program.run(inputs=inputs, states=states, weights=weights, num_steps=3, outputs=("token",))


if __name__ == "__main__":
    sys.exit(main())
