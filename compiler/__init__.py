"""Circuit in, program out: the passes, the plan of a program, artifacts, and the proof of parity.

A backend is a package of its own, imported by its module: `compiler.inductor` loads torch's compiler.
"""

from compiler.artifact import (
    CIRCUIT,
    FORMAT,
    MANIFEST,
    PACKAGES,
    PLAN,
    Manifest,
    ProgramRecord,
    digest_of,
    file_digest,
    machine_fields,
    read_manifest,
    why_foreign,
    write_manifest,
)
from compiler.artifact_folder import check_output, replacing
from compiler.parity import Bound, EdgeDifference, bound_for, compare_edges, worst_edge
from compiler.passes import Feedback, bind_dims, chain, context, remove_dead_code, step
from compiler.plan import Plan, ProgramPlan, plan_program, read_plan, sources_digest
from compiler.registry import Numerics, lowered_nodes, lowering_of

__all__ = [
    "CIRCUIT",
    "FORMAT",
    "MANIFEST",
    "PACKAGES",
    "PLAN",
    "Bound",
    "EdgeDifference",
    "Feedback",
    "Manifest",
    "Numerics",
    "Plan",
    "ProgramPlan",
    "ProgramRecord",
    "bind_dims",
    "bound_for",
    "chain",
    "check_output",
    "compare_edges",
    "context",
    "digest_of",
    "file_digest",
    "lowered_nodes",
    "lowering_of",
    "machine_fields",
    "plan_program",
    "read_manifest",
    "read_plan",
    "remove_dead_code",
    "replacing",
    "sources_digest",
    "step",
    "why_foreign",
    "worst_edge",
    "write_manifest",
]
