"""The console script `circuit`: its commands, their options, and how a run ends.

A command's body lives in drafts/commands and is imported when the command runs, so that `circuit --help` answers before
torch is loaded; this is the one place where an import stands inside a function.
"""

import gc
import importlib.metadata
import os
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from drafts.commands.draw_entry import draw, trace
from drafts.commands.folders import cache_folder as _cache_folder
from drafts.commands.options import Backend, Precision
from drafts.commands.parity_entry import bisect, parity
from drafts.commands.plan_entry import plan
from drafts.commands.rank_launch import launch_ranks, started_rank
from drafts.commands.screen import Screen

# typer exports only this child of it, and some versions keep the module of both private
UsageError: type[Exception] = typer.BadParameter.__mro__[1]

EXIT_FAILED, EXIT_BAD_INPUT, EXIT_INTERRUPTED = 1, 2, 130
DEFAULT_NUM_DRAFTS = 3
MAX_NUM_DRAFTS = 16
GARBAGE_THRESHOLD = 200_000  # objects between two looks

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
app.command()(parity)
app.command()(bisect)
app.command()(plan)
app.command()(draw)
app.command()(trace)


class CompilerBackend(StrEnum):
    """What a circuit can be compiled by."""

    INDUCTOR = "inductor"
    TRITON = "triton"


Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else on standard output.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show where an error was raised.")]
Checkpoint = Annotated[
    Path, typer.Argument(metavar="CHECKPOINT", help="A folder with config.json, safetensors and tokenizer.json.")
]
Drafts = Annotated[int, typer.Option(min=1, max=MAX_NUM_DRAFTS, metavar="K", help="Tokens to draft per round.")]
MaxTokens = Annotated[int, typer.Option(min=1, metavar="N", help="Tokens to generate.")]
Dtype = Annotated[Precision, typer.Option(help="What weights and activations are held in.")]
# what a checkpoint or an artifact is run with: where nothing is said, an artifact knows
CheckpointOrArtifact = Annotated[
    Path, typer.Argument(metavar="CHECKPOINT|DIR", help="A checkpoint folder, or what `circuit compile` made of one.")
]
MaybeDrafts = Annotated[
    int | None,
    typer.Option(
        min=1, max=MAX_NUM_DRAFTS, metavar="K", help=f"Tokens to draft per round; {DEFAULT_NUM_DRAFTS}, or as compiled."
    ),
]
MaybeDtype = Annotated[
    Precision | None, typer.Option(help="What weights and activations are held in; f32, or as compiled.")
]
MaybeBackend = Annotated[Backend | None, typer.Option(help="What runs the circuit; see docs/compiling.md.")]


MAX_RANKS = 64
NumProcesses = Annotated[
    int | None, typer.Option("--nproc", min=1, max=MAX_RANKS, metavar="N", help="Ranks on this machine that share it.")
]
TensorRanks = Annotated[
    int | None, typer.Option("--tp", min=1, max=MAX_RANKS, metavar="N", help="Ranks that share heads and lm_head.")
]
ExpertRanks = Annotated[
    int | None, typer.Option("--ep", min=1, max=MAX_RANKS, metavar="N", help="Ranks that share the experts.")
]


def _prepare(backend: Backend | None, screen: Screen) -> None:
    """Settle how triton makes kernels before torch's compiler imports it, and say so where that is slow."""
    if backend is not Backend.TRITON:
        return
    from drafts.commands.interpreting import interpret_without_device

    if interpret_without_device():
        screen.note("no CUDA device: Triton's interpreter runs the kernels on the CPU, which is slow")


def _print_version(is_asked: bool) -> None:
    if is_asked:
        print(f"circuit {importlib.metadata.version('draft-circuit')}")  # noqa: T201
        raise typer.Exit


@app.callback(invoke_without_command=True)
def options(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", callback=_print_version, help="Print the version.")] = False,
) -> None:
    """Declare, check and run speculative drafters as circuits."""
    if context.invoked_subcommand is None:
        print(context.get_help())  # noqa: T201


@app.command()
def demo(
    model: Annotated[
        Path | None, typer.Option(metavar="CHECKPOINT", help="Another checkpoint than the one that is shipped.")
    ] = None,
    prompt: Annotated[str | None, typer.Option(help="Your own prompt instead of the shipped ones.")] = None,
    prompts: Annotated[int, typer.Option(min=1, metavar="N", help="How many of the shipped prompts to run.")] = 3,
    drafts: Drafts = DEFAULT_NUM_DRAFTS,
    max_tokens: MaxTokens = 96,
    backend: MaybeBackend = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Draft for a trained checkpoint, eager and as a circuit.

    Decodes each prompt plainly, with the eager drafter and with the circuit, and compares texts and times.
    """
    screen = Screen(as_json=as_json)
    with screen.step("loading torch and transformers"):
        _prepare(backend, screen)
        from drafts.commands.artifacts import BackendChoice
        from drafts.commands.demo import demo as body
    is_same = body(
        model,
        screen,
        prompt=prompt,
        num_prompts=prompts,
        num_drafts=drafts,
        max_tokens=max_tokens,
        backend=BackendChoice(None if backend is None else backend.value, _cache_folder()),
    )
    if not is_same:
        raise typer.Exit(EXIT_FAILED)


@app.command()
def bench(
    size: Annotated[str, typer.Option(metavar="SIZE", help="small, large, demo, or a checkpoint folder.")] = "small",
    batch: Annotated[int, typer.Option(min=1, max=16, help="Sequences that draft side by side.")] = 1,
    dtype: Dtype = Precision.BF16,
    drafts: Drafts = DEFAULT_NUM_DRAFTS,
    context: Annotated[int | None, typer.Option(min=64, metavar="ROWS", help="Cache rows of a sequence.")] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads; by default by the bytes touched.")] = None,
    seconds: Annotated[float, typer.Option(min=0.1, help="How long to time.")] = 5.0,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Time a chain of drafts: eager, by torch.compile, compiled.

    All variants run interleaved in this process; medians, beside the floor that reading the weights sets.
    """
    screen = Screen(as_json=as_json)
    with screen.step("loading torch"):
        from drafts.commands.bench import bench as body
    body(
        size,
        screen,
        batch=batch,
        dtype=dtype.value,
        num_drafts=drafts,
        context=context,
        num_threads=threads,
        seconds=seconds,
    )


@app.command()
def check(
    x: Annotated[Path, typer.Argument(metavar="X", help="A document, a checkpoint folder or an artifact.")],
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Check a circuit document, a checkpoint or an artifact.

    A document: its types, its state, its order. A checkpoint: every key of its config and every tensor of the drafter.
    """
    screen = Screen(as_json=as_json)
    with screen.step("loading torch"):
        from drafts.commands.check import check as body
    body(x, screen)


@app.command()
def show(
    x: Annotated[
        str | None,
        typer.Argument(metavar="[X]", help="A document or a checkpoint folder; with --nodes, a node's name."),
    ] = None,
    nodes: Annotated[bool, typer.Option("--nodes", help="List the nodes, or show the whole of one.")] = False,
    is_drawn: Annotated[
        bool, typer.Option("--draw", help="Draw it, wires and boxes, as wide as the terminal.")
    ] = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Print a circuit's text form, or the catalogue of nodes."""
    screen = Screen(as_json=as_json)
    with screen.step("loading torch"):
        from drafts.commands import show as body
    if nodes and is_drawn:
        raise typer.BadParameter("expected one of --nodes and --draw, got both")
    if nodes:
        body.show_nodes(x, screen)
    elif x is None:
        raise typer.BadParameter("expected a document, a checkpoint folder, or --nodes", param_hint="X")
    else:
        body.show_circuit(Path(x), screen, is_drawn=is_drawn)


@app.command()
def run(
    model: CheckpointOrArtifact,
    prompt: Annotated[str, typer.Option(help="The text to continue.")],
    drafts: MaybeDrafts = None,
    max_tokens: MaxTokens = 64,
    is_circuit: Annotated[bool, typer.Option("--circuit/--eager", help="Which form of the drafter to run.")] = True,
    temperature: Annotated[float, typer.Option(min=0.0, metavar="T", help="0 decodes greedily.")] = 0.0,
    top_p: Annotated[
        float, typer.Option(min=0.0, max=1.0, metavar="P", help="Sample from the likeliest tokens of this mass.")
    ] = 1.0,
    seed: Annotated[int, typer.Option(min=0, max=2**31 - 1, metavar="S", help="Seed of the sampling.")] = 0,
    dtype: MaybeDtype = None,
    backend: MaybeBackend = None,
    checkpoint: Annotated[
        Path | None, typer.Option(metavar="CHECKPOINT", help="Where an artifact's weights lie, if they were moved.")
    ] = None,
    nproc: NumProcesses = None,
    tp: TensorRanks = None,
    ep: ExpertRanks = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Continue a prompt: the drafter guesses, the target decides.

    A checkpoint's circuit is compiled into a cache folder the first time; without a C++ compiler it is interpreted. On
    several ranks, of torchrun or --nproc, they share the drafter.
    """
    started = started_rank()
    if started.num_ranks == 1 and nproc is not None and nproc > 1:
        raise typer.Exit(launch_ranks(nproc, sys.argv[1:]))
    if nproc is not None and nproc != started.num_ranks:
        raise typer.BadParameter(f"expected the {started.num_ranks} ranks that were started, got {nproc}; leave it out")
    screen = Screen(as_json=as_json, is_silent=started.rank > 0)
    with screen.step("loading torch and transformers"):
        _prepare(backend, screen)
        from drafts.commands.artifacts import BackendChoice
        from drafts.commands.rank_options import RankOptions
        from drafts.commands.run import RunOptions
        from drafts.commands.run import run as body
    options = RunOptions(
        prompt=prompt,
        num_drafts=drafts,
        max_tokens=max_tokens,
        is_circuit=is_circuit,
        temperature=temperature,
        top_p=top_p,
        seed=seed,
        dtype_name=None if dtype is None else dtype.value,
        backend=BackendChoice(None if backend is None else backend.value, _cache_folder()),
        checkpoint=checkpoint,
        ranks=RankOptions(started, tp, ep),
    )
    body(model, options, screen=screen)


@app.command(name="compile")
def compile_(
    subject: Annotated[
        Path, typer.Argument(metavar="CHECKPOINT", help="A checkpoint folder; for triton a config.json too.")
    ],
    output: Annotated[Path, typer.Option("-o", "--output", metavar="DIR", help="The folder to write.")],
    drafts: Drafts = DEFAULT_NUM_DRAFTS,
    batch: Annotated[str, typer.Option(metavar="N,...", help="Sequences side by side, one program each.")] = "1,2,4",
    context: Annotated[
        str | None, typer.Option(metavar="ROWS,...", help="Longest sequences, one program each; 1024 by default.")
    ] = None,
    backend: Annotated[CompilerBackend, typer.Option(help="What compiles.")] = CompilerBackend.INDUCTOR,
    target: Annotated[
        str | None, typer.Option(metavar="ARCH", help="triton: the GPU's architecture, sm_90 by default.")
    ] = None,
    random_weights: Annotated[
        bool, typer.Option("--random-weights", help="triton: compile for a config's sizes, without weights.")
    ] = False,
    dtype: Annotated[Precision | None, typer.Option(help="f32 by default; for triton as the config says.")] = None,
    jobs: Annotated[int | None, typer.Option(min=1, metavar="N", help="Builds side by side; one a core.")] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Compile a drafter: to native programs, or to launches and kernels for a GPU.

    inductor needs a C++ compiler; what it makes runs without one, on this kind of CPU and this version of torch. triton
    needs no GPU; what it makes shows what will run there.
    """
    screen = Screen(as_json=as_json)
    if backend is CompilerBackend.INDUCTOR and (target is not None or random_weights):
        given = "--target" if target is not None else "--random-weights"
        raise ValueError(f"{given}: expected --backend triton beside it, got inductor; leave it out")
    with screen.step("loading torch"):
        from drafts.commands.compile import CompileOptions, compile_checkpoint
        from drafts.commands.compile_launches import DEFAULT_TARGET, LaunchOptions, compile_for_gpu
    if backend is CompilerBackend.TRITON:
        name = None if dtype is None else dtype.value
        compile_for_gpu(
            subject,
            output,
            LaunchOptions(drafts, batch, context, name, target or DEFAULT_TARGET, random_weights, jobs),
            screen,
        )
        return
    options = CompileOptions(drafts, batch, context, (dtype or Precision.F32).value, jobs)
    compile_checkpoint(subject, output, options, screen)


@app.command()
def inspect(
    artifact: Annotated[Path, typer.Argument(metavar="DIR", help="A folder that `circuit compile` wrote.")],
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Show what an artifact holds.

    Its programs, sizes and digests, where it can run, and how each node was lowered.
    """
    screen = Screen(as_json=as_json)
    with screen.step("loading torch"):
        from drafts.commands.describe import describe
        from drafts.commands.describe_launches import describe_launches, is_for_gpu
    if is_for_gpu(artifact):
        describe_launches(artifact, screen)
    else:
        describe(artifact, screen)


@app.command()
def diff(
    a: Annotated[Path, typer.Argument(metavar="A", help="A document, a checkpoint folder or an artifact.")],
    b: Annotated[Path, typer.Argument(metavar="B", help="Another one.")],
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Compare two circuits, or what was compiled of them; exits with 1 when they differ."""
    screen = Screen(as_json=as_json)
    with screen.step("loading torch"):
        from drafts.commands.diff import diff as body
    if not body(a, b, screen):
        raise typer.Exit(EXIT_FAILED)


def main() -> None:
    """Run the console script and exit: 0 done, 1 a comparison missed or a bug of ours, 2 bad input, 130 interrupted."""
    arguments = sys.argv[1:]
    # what torch's import makes stays for good, and looking through it for garbage takes a fifth of that time
    gc.set_threshold(GARBAGE_THRESHOLD, 30, 30)
    try:
        code = app(arguments, prog_name="circuit", standalone_mode=False) or 0
        sys.stdout.flush()
    # typer returns the code of an interrupt within a command; one before it comes through as an exception
    except (KeyboardInterrupt, typer.Abort):
        code = EXIT_INTERRUPTED
    except BrokenPipeError:
        # the reader went away, as with `| head`; without this the interpreter's last flush would complain
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = EXIT_FAILED
    except Exception as error:
        if "--debug" in arguments:
            raise
        code = _report(error, as_json="--json" in arguments)
    if code == EXIT_INTERRUPTED:
        _say("interrupted")
    sys.exit(code)


def _report(error: Exception, *, as_json: bool) -> int:
    """Print the error as one line, with --json as an object too; return the exit code."""
    if isinstance(error, UsageError):
        message: str = error.format_message()  # type: ignore[attr-defined]
        line, code = f"{message.replace('Value error, ', '').rstrip('.')}; see `circuit --help`", EXIT_BAD_INPUT
    else:
        from drafts.commands.faults import explain

        line, is_bad_input = explain(error)
        code = EXIT_BAD_INPUT if is_bad_input else EXIT_FAILED
    rank = os.environ.get("RANK", "0")
    Screen(as_json=as_json, is_silent=rank != "0").emit({"ok": False, "error": line})
    _say(f"error: {line}" if rank == "0" else f"rank {rank}: error: {line}")
    return code


def _say(line: str) -> None:
    print(line, file=sys.stderr)  # noqa: T201
