"""The kernels and rules that a drawn plan shows at its calls."""

import re
from pathlib import Path

import pytest

from compiler.inductor import has_cxx_compiler
from drafts.commands.draw_kernels import generated_kernels, kernel_source
from tests.drafts.command_line import circuit
from tests.drafts.drawn_pages import views
from tests.drafts.tiny_checkpoint import write_tiny_checkpoint


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_checkpoint(tmp_path_factory.mktemp("tiny"))


def test_triton_plan_shows_the_kernels_of_each_launch_and_of_the_calls_in_it(checkpoint: Path, tmp_path: Path) -> None:
    circuit("draw", checkpoint, "-o", tmp_path / "x.html", "--program", "step", "--plan", "triton")
    drawing = views(tmp_path / "x.html")[0]["drawing"]
    sources = dict(drawing["kernels"])
    launches = [group for group in drawing["groups"] if group["kind"] == "launch"]
    assert all(launch["note"]["kernels"] for launch in launches)
    for node in drawing["nodes"]:
        if node["kind"] == "call":
            assert all(f"def {kernel.split('.')[1]}(" in sources[kernel] for kernel in node["note"]["kernels"])
    attend = next(node for node in drawing["nodes"] if node["title"] == "SparseMlaAttention")
    assert attend["note"]["kernels"] == ["mla_split.mla_split", "combine_values.combine_values"]


def test_source_of_a_kernel_comes_before_the_functions_it_calls() -> None:
    source = kernel_source("experts.experts_up")
    names = re.findall(r"^def (\w+)", source, re.MULTILINE)
    # from its own file, and from another that it imports from
    assert names[0] == "experts_up"
    assert {"list_chosen", "clamped_swiglu"} <= set(names[1:])
    assert len(names) == len(set(names))
    assert source.startswith("@triton.jit")


@pytest.mark.skipif(not has_cxx_compiler(), reason="no C++ compiler")
def test_generated_kernels_of_inductor_are_shown_at_the_calls_they_run(checkpoint: Path, tmp_path: Path) -> None:
    arguments = ("--program", "context", "--plan", "inductor", "--source")
    outcome = circuit("draw", checkpoint, "-o", tmp_path / "x.html", *arguments)
    assert outcome.code == 0, outcome.err
    drawing = views(tmp_path / "x.html")[0]["drawing"]
    sources = dict(drawing["kernels"])
    notes = {node["name"]: node["note"] for node in drawing["nodes"] if node["kind"] == "call"}
    generated = [name for name in notes["attn_in"]["kernels"] if f"{name}(" in sources[name]]
    assert generated
    assert sources[generated[0]].startswith('extern "C"')
    assert sources[generated[0]].endswith("}")
    assert all(name in sources for note in notes.values() for name in note["kernels"])
    assert sum(bool(note["kernels"]) for note in notes.values()) > len(notes) // 2


CODE = """extern "C" void cpp_fused_add_0(float* in_ptr0);
    // [Provenance debug handles] cpp_fused_add_0:1
    cpp_fused_add_0(a);
    // [Provenance debug handles] mm_out:2
    // a comment
    mm_out(b, c);
    // [Provenance debug handles] cpp_fused_add_0:3
    cpp_fused_add_0(d);
extern "C"  void cpp_fused_add_0(float* in_ptr0)
{
    {
        in_ptr0[0] += 1;
    }
}
extern "C" void cpp_fused_add_01(float* x)
{
}
"""


def test_generated_code_is_parted_by_kernel_and_by_call() -> None:
    told = {
        "cpp_fused_add_0:1": {"pre_grad_nodes": ["add", "add_1", "unmarked"]},
        "mm_out:2": {"pre_grad_nodes": ["mm"]},
        "cpp_fused_add_0:3": {"pre_grad_nodes": ["add_1"]},
    }
    kernels = generated_kernels(CODE, told, {"add": "x", "add_1": "y", "mm": "z"})
    assert kernels.by_call == {"x": ("cpp_fused_add_0",), "y": ("cpp_fused_add_0",), "z": ("mm_out, call 2",)}
    assert kernels.sources["cpp_fused_add_0"].endswith("in_ptr0[0] += 1;\n    }\n}")
    assert kernels.sources["mm_out, call 2"].splitlines()[1:] == ["mm_out(b, c);"]


def test_a_call_shows_only_the_unfired_rules_that_take_its_type(checkpoint: Path, tmp_path: Path) -> None:
    held = {}
    for backend in ("triton", "inductor"):
        circuit("draw", checkpoint, "-o", tmp_path / "x.html", "--program", "step", "--plan", backend)
        drawing = views(tmp_path / "x.html")[0]["drawing"]
        calls = [node for node in drawing["nodes"] if node["kind"] == "call"]
        held[backend] = {node["title"]: [name for name, _ in node["note"]["unfired"]] for node in calls}
        assert all(why == dict(drawing["unfired"])[name] for node in calls for name, why in node["note"]["unfired"])
    assert held["triton"]["KeyPool"] == ["context_writes"]
    # the other forms of the head, which this one does not have
    assert held["triton"]["Argmax"] == ["lm_head_certified", "lm_head_int8"]
    assert held["triton"]["Embedding"] == []
    assert held["inductor"]["Linear"] == ["fold_projections"]
    assert held["inductor"]["AbsorbQuery"] == ["split_kv_b"]
    assert held["inductor"]["Embedding"] == []
