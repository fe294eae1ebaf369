"""`circuit inspect` of an artifact for a GPU: its programs' launches, and what each kernel takes."""

import json
from pathlib import Path

from rich.text import Text

from compiler import MANIFEST
from compiler.triton import read_launch_manifest
from drafts.commands.compile_launches import print_launches
from drafts.commands.screen import Screen, facts


def is_for_gpu(folder: Path) -> bool:
    """Whether a folder's manifest says that its programs are launches for a GPU; False for what cannot be read."""
    try:
        document = json.loads((folder / MANIFEST).read_bytes())
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(document, dict) and document.get("backend") == "triton"


def describe_launches(folder: Path, screen: Screen) -> None:
    """Check the artifact and print it."""
    manifest = read_launch_manifest(folder)
    screen.out.print(Text.assemble((str(folder), "bold"), f"  {manifest.backend}, {manifest.target}\n"), soft_wrap=True)
    code_bytes = sum((folder / kernel.file).stat().st_size for kernel in manifest.kernels)
    screen.out.print(
        facts(
            {
                "digest": manifest.digest,
                "circuit": manifest.circuit_digest,
                "compiler": f"{manifest.compiler_digest}  sources of the backend",
                "versions": f"torch {manifest.torch_version}, triton {manifest.triton_version}",
                "compiled for": f"{manifest.target}, from {manifest.subject}",
                "binding": "\n".join(f"{name:<16} {value}" for name, value in manifest.binding.items()),
                "files": f"{code_bytes:,} bytes of machine code; it is read, never run: `circuit run CHECKPOINT "
                "--backend triton` makes the same launches",
            }
        )
    )
    screen.out.print()
    print_launches(screen, manifest)
    screen.emit({"ok": True, "artifact": str(folder), **manifest.model_dump(mode="json")})
