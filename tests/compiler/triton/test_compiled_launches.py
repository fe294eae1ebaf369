"""Every launch at the released sizes, compiled for GPUs that need not be there: what the machine code must be."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).parent / "compile_launches.py"
SHARED_LIMIT = 227 * 1024  # bytes that one program may have on sm_90 and sm_100
# launches whose time is the reading of weights
READS_WEIGHTS = {"entry", "in_proj", "q_up", "absorb_index", "combine_values", "o_proj", "router_shared"} | {
    "experts_up",
    "experts_down",
    "lm_head",
}


def compiled(*options: str) -> list[dict[str, Any]]:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *options], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


CASES = {
    "one chain": ("--batch", "1"),
    "four chains": ("--batch", "4"),
    "sixteen chains": ("--batch", "16"),
    "pools of sixteen": ("--batch", "1", "--kpool", "16"),
    "mask and confidence": ("--batch", "1", "--confidence", "--only", "lm_head"),
    "eight bits": ("--batch", "4", "--draft-head", "int8", "--only", "lm_head"),
    "eight bits, certified": ("--batch", "4", "--draft-head", "int8_certified", "--only", "lm_head"),
    "context rows": ("--batch", "256", "--context-rows"),
}


# the second architecture where tiles are largest, and where kernels are fewest
ON_BOTH = {"sixteen chains", "eight bits, certified", "context rows"}


@pytest.mark.parametrize(
    "case, arch", [*((case, 90) for case in CASES), *((case, 100) for case in CASES if case in ON_BOTH)]
)
def test_launches_at_the_released_sizes_are_sound_machine_code(case: str, arch: int) -> None:
    found = compiled(*CASES[case], "--arch", str(arch))
    assert found
    faults = [fault for code in found for fault in _faults(code)]
    assert not faults, "\n".join(faults)


def _faults(code: dict[str, Any]) -> list[str]:
    where = f"{code['launch']} ({code['kernel']})"
    faults = []
    if code["spilled_bytes"]:
        faults.append(f"{where}: spills {code['spilled_bytes']} bytes a thread")
    if code["shared_bytes"] > SHARED_LIMIT:
        faults.append(f"{where}: takes {code['shared_bytes']} bytes of shared memory")
    if code["has_dot"] and not code["tensor_core_products"]:
        faults.append(f"{where}: a matrix product without tensor cores")
    if code["launch"] in READS_WEIGHTS and not code["wide_loads"]:
        faults.append(f"{where}: no load of 16 bytes")
    if code["blocks"] * code["warps"] < 4:
        faults.append(f"{where}: {code['blocks']} programs of {code['warps']} warps fill no multiprocessor")
    return faults
