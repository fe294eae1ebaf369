"""The console script on documents, checkpoints and the catalogue, and on whatever else people type."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

import nodes
from circuit import Circuit, CircuitError, f32, save_document
from drafts import DraftConfig, default_decisions, mtp_head, read_config
from drafts.cli import main
from tests.drafts.command_line import circuit
from tests.drafts.tiny_head import tiny_config, tiny_weights, write_checkpoint

COMMANDS = ("demo", "check", "show", "run", "parity", "compile", "inspect", "diff", "bench")


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A checkpoint folder with the head's tensors alone: enough for check and show."""
    config = tiny_config()
    return write_checkpoint(tmp_path / "checkpoint", config, tiny_weights(config))


@pytest.fixture
def document(tmp_path: Path) -> Path:
    c = Circuit("tiny")
    y = nodes.RmsNorm(eps=1e-5)(c.input("x", f32("n", 8)), c.weight("gain", f32(8)))
    c.output("y", nodes.Add()(y, y))
    save_document(c, tmp_path / "tiny.yaml")
    return tmp_path / "tiny.yaml"


# in a process of its own, for this one has torch loaded
def test_help_answers_without_torch() -> None:
    code = (
        "import sys; sys.argv = ['circuit', '--help']\n"
        "from drafts.cli import main\n"
        "try:\n    main()\n"
        "finally:\n    print({'torch', 'transformers', 'sympy', 'networkx'} & set(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == "set()\n"
    assert all(f"\n  {command} " in done.stdout for command in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_each_command_names_json(command: str) -> None:
    outcome = circuit(command, "--help")
    assert outcome.code == 0
    assert "--json" in outcome.out


def test_no_command_prints_help() -> None:
    outcome = circuit()
    assert outcome.code == 0
    assert "Commands:" in outcome.out


def test_version_is_the_distributions() -> None:
    assert circuit("--version").out.startswith("circuit 0.")


@pytest.mark.parametrize("suffix", [".yaml", ".json"])
def test_check_document_counts_what_it_holds(document: Path, suffix: str) -> None:
    path = document.with_suffix(suffix)
    c = Circuit("tiny")
    c.output("y", nodes.RmsNorm(eps=1e-5)(c.input("x", f32("n", 8)), c.weight("gain", f32(8))))
    save_document(c, path)
    record = circuit("check", path, "--json").record
    assert record["ok"] is True
    assert record["kind"] == "document"
    assert (record["inputs"], record["weights"], record["states"], record["calls"]) == (1, 1, 0, 1)
    assert record["nodes"] == {"RmsNorm": 1}
    assert circuit("check", path).out.endswith("ok\n")


def test_check_checkpoint_names_decisions_and_strangers(checkpoint: Path) -> None:
    config = json.loads((checkpoint / "config.json").read_text())
    config["text_config"]["flux_capacitor"] = 1
    (checkpoint / "config.json").write_text(json.dumps(config))
    record = circuit("check", checkpoint, "--json").record
    assert record["kind"] == "checkpoint"
    assert record["unknown_keys"] == ["text_config.flux_capacitor"]
    assert record["decisions"]["recycle"] == "post_norm"
    assert record["not_modelled"] == []
    text = circuit("check", checkpoint).out
    assert "flux_capacitor" in text
    assert "hidden_source" in text


def test_show_checkpoint_prints_the_heads_text_form(checkpoint: Path) -> None:
    config: DraftConfig = read_config(checkpoint)
    text = circuit("show", checkpoint).out
    assert text.startswith("circuit glm5_next_mtp\n")
    assert "%eh_out" in text
    assert circuit("show", checkpoint, "--json").record["text"] == text
    names = mtp_head(config, default_decisions(config), block_size=4, max_num_drafts=3).weights
    assert all(f"%{name}" in text for name in names)


def test_show_document_is_not_wrapped(tmp_path: Path) -> None:
    c = Circuit("wide")
    name = "x" * 200
    c.output("y", nodes.Add()(c.input(name, f32("n", 8)), c.value(name)))
    save_document(c, tmp_path / "wide.json")
    assert f"%{name}, %{name})" in circuit("show", tmp_path / "wide.json").out


def test_show_nodes_lists_every_node_with_its_sentence() -> None:
    record = circuit("show", "--nodes", "--json").record
    listed = {node["name"]: node for node in record["nodes"]}
    assert set(nodes.__all__) <= set(listed)
    assert listed["RmsNorm"]["ports"] == ["x", "weight"]
    assert listed["RmsNorm"]["attributes"] == {"eps": "float"}
    assert listed["AppendCache"]["writes"] == ["cache"]
    text = circuit("show", "--nodes").out
    assert all(name in text for name in listed)


def test_show_one_node_prints_its_whole_docstring() -> None:
    text = circuit("show", "--nodes", "KeyPool").out
    assert text.startswith("KeyPool(pool: int)(tail, keys, ")
    assert "Numerics:" in text


BAD_USAGE = {
    "unknown command": (["chekc"], "chekc"),
    "unknown option": (["check", "x", "--fast"], "--fast"),
    "nothing to check": (["check"], "X"),
    "nothing to show": (["show"], "X"),
    "no prompt": (["run", "x"], "--prompt"),
    "negative drafts": (["run", "x", "--prompt", "a", "--drafts", "-1"], "--drafts"),
    "no drafts": (["run", "x", "--prompt", "a", "--drafts", "0"], "--drafts"),
    "drafts in words": (["parity", "x", "--drafts", "three"], "--drafts"),
    "too many drafts": (["parity", "x", "--drafts", "17"], "--drafts"),
    "no tokens": (["run", "x", "--prompt", "a", "--max-tokens", "0"], "--max-tokens"),
    "no prompts": (["demo", "--prompts", "0"], "--prompts"),
    "cold temperature": (["run", "x", "--prompt", "a", "--temperature", "-1"], "--temperature"),
    "no such temperature": (["run", "x", "--prompt", "a", "--temperature", "nan"], "temperature"),
    "no mass": (["run", "x", "--prompt", "a", "--top-p", "0"], "top_p"),
    "huge seed": (["run", "x", "--prompt", "a", "--seed", str(2**70)], "--seed"),
    "unknown dtype": (["run", "x", "--prompt", "a", "--dtype", "f8"], "--dtype"),
    "unknown node": (["show", "--nodes", "RmsNrm"], "RmsNorm"),
    "missing document": (["check", "nowhere.yaml"], "nowhere.yaml"),
    "missing checkpoint": (["run", "nowhere", "--prompt", "a"], "nowhere"),
    "empty prompt": (["run", "nowhere", "--prompt", ""], "--prompt"),
    "a zero byte": (["check", "a\0b"], "null"),
}


@pytest.mark.parametrize(("arguments", "named"), BAD_USAGE.values(), ids=BAD_USAGE)
def test_bad_usage_is_one_line_and_exit_2(arguments: list[str], named: str) -> None:
    outcome = circuit(*arguments)
    assert outcome.code == 2
    assert outcome.out == ""
    assert named in outcome.error


def test_error_with_json_is_an_object_too() -> None:
    outcome = circuit("check", "nowhere.yaml", "--json")
    assert outcome.code == 2
    assert outcome.record == {"ok": False, "error": outcome.error}


BAD_DOCUMENTS = {
    "empty": ("", ":1"),
    "no mapping": ("- a\n- b\n", ":1"),
    "broken": ("circuit: a\nformat: 1\ninputs: {x: [\n", ":"),
    "unknown key": ("circuit: a\nformat: 1\nspeed: 9\n", ":3"),
    "a tag": ("circuit: !!python/object/apply:os.system [ls]\nformat: 1\n", ":1"),
    "control characters": ('{"circuit": "a\\u001b[31m", "format": 1, "x": 1}', ":"),
}


@pytest.mark.parametrize(("text", "place"), BAD_DOCUMENTS.values(), ids=BAD_DOCUMENTS)
def test_bad_document_is_one_line_with_its_place(tmp_path: Path, text: str, place: str) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    for command in ("check", "show"):
        outcome = circuit(command, path)
        assert outcome.code == 2
        assert f"bad.yaml{place}" in outcome.error
        assert outcome.err.isascii() or "\x1b" not in outcome.err


def test_type_error_of_a_document_names_node_file_and_line(document: Path) -> None:
    document.write_text(document.read_text().replace("gain: f32[8]", "gain: f32[9]"))
    error = circuit("check", document).error
    assert "RmsNorm.weight" in error
    assert "tiny.yaml:" in error


@pytest.mark.parametrize("damage", ["directory.yaml", "no config", "config.json", "text.txt"])
def test_what_is_neither_document_nor_checkpoint_is_refused(tmp_path: Path, checkpoint: Path, damage: str) -> None:
    path = tmp_path / damage
    if damage == "config.json":
        path = checkpoint / damage
    elif damage == "text.txt":
        path.write_text("x")
    else:
        path.mkdir()
    outcome = circuit("check", path)
    assert outcome.code == 2
    assert path.name in outcome.error


@pytest.mark.parametrize("damage", ["broken config", "no tensors", "truncated", "missing tensor", "wrong shape"])
def test_damaged_checkpoint_is_one_line_that_names_the_file(checkpoint: Path, damage: str) -> None:
    weights = checkpoint / "model.safetensors"
    named = "model.safetensors"
    match damage:
        case "broken config":
            (checkpoint / "config.json").write_text('{"text_config": ')
            named = "config.json"
        case "no tensors":
            weights.unlink()
        case "truncated":
            weights.write_bytes(weights.read_bytes()[:2000])
        case "missing tensor" | "wrong shape":
            tensors = load_file(weights)
            name = next(name for name in tensors if name.endswith("eh_proj.weight"))
            tensors[name] = tensors[name][:, 1:].contiguous()
            if damage == "missing tensor":
                del tensors[name]
            save_file(tensors, weights)
            named = "eh_proj"
    for command in (["check", checkpoint], ["run", checkpoint, "--prompt", "a"], ["parity", checkpoint]):
        outcome = circuit(*command)
        assert outcome.code == 2
        assert named in outcome.error


def test_unreadable_document_is_one_line(document: Path) -> None:
    document.chmod(0)
    try:
        document.read_bytes()
    except PermissionError:
        outcome = circuit("check", document)
        assert outcome.code == 2
        assert "tiny.yaml" in outcome.error
    else:
        pytest.skip("this user may read every file")


def test_missing_extra_says_how_to_install_it(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith(("drafts.commands.", "drafts.targets."))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "transformers", None)
    outcome = circuit("run", checkpoint, "--prompt", "a")
    assert outcome.code == 2
    assert "pip install 'draft-circuit[hf]'" in outcome.error


@pytest.mark.parametrize("module", ["triton", "triton.language"])
def test_missing_triton_says_where_there_is_one(document: Path, monkeypatch: pytest.MonkeyPatch, module: str) -> None:
    def fail(*_: object) -> None:
        raise ModuleNotFoundError(f"No module named {module!r}", name=module)

    monkeypatch.setattr("drafts.commands.check.verify", fail)
    outcome = circuit("check", document)
    assert outcome.code == 2
    assert "expected the package triton, got none; the launches for a GPU are Triton's" in outcome.error


def test_fault_of_ours_is_one_line_and_exit_1(document: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise KeyError("x\nsecond line")

    circuit("check", document)  # so that the module is there to patch
    monkeypatch.setattr("drafts.commands.check.load_document", fail)
    outcome = circuit("check", document)
    assert outcome.code == 1
    assert "--debug" in outcome.error


def test_debug_lets_the_traceback_through(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["circuit", "check", "nowhere.yaml", "--debug"])
    with pytest.raises(CircuitError, match=r"nowhere\.yaml"):
        main()


def test_reader_that_went_away_is_no_traceback() -> None:
    argv = [sys.executable, "-m", "drafts", "show", "--nodes"]
    root = Path(__file__).parents[2]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=root) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == 1


def test_console_script_is_installed() -> None:
    assert shutil.which("circuit", path=str(Path(sys.executable).parent))
