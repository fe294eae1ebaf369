"""`circuit show`: a circuit's text form, and the catalogue of nodes."""

import difflib
import inspect
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

import nodes  # noqa: F401 - importing them declares them
from circuit import CircuitError, Node, load_document, node_types, to_text
from circuit.draw import draw_circuit, to_terminal
from compiler import CIRCUIT
from drafts.cache import DEFAULT_MAX_NUM_DRAFTS
from drafts.commands.screen import Screen
from drafts.commands.subject import checkpoint_folder, kind_of
from drafts.config import read_config
from drafts.decisions import default_decisions
from drafts.glm5_next import mtp_head


def show_circuit(path: Path, screen: Screen, *, is_drawn: bool = False) -> None:
    """Print the text form of the circuit at `path`: a document's own, an artifact's, or the head of a checkpoint.

    Drawn, it is as wide as the terminal.
    """
    kind = kind_of(path)
    if kind != "checkpoint":
        circuit = load_document(path / CIRCUIT if kind == "artifact" else path)
    else:
        config = read_config(checkpoint_folder(path))
        circuit = mtp_head(
            config,
            default_decisions(config),
            block_size=config.index_kpool,
            max_num_drafts=DEFAULT_MAX_NUM_DRAFTS,
        )
    text = to_terminal(draw_circuit(circuit), width=screen.out.width) if is_drawn else to_text(circuit)
    screen.emit({"circuit": circuit.name, "text": text})
    # one value a line, whatever the width: the text form is read by programs too
    screen.out.out(text, end="")


def show_nodes(name: str | None, screen: Screen) -> None:
    """List every node, or print the whole declaration of the node `name`; CircuitError lists close names."""
    catalogue = node_types()
    if name is None:
        screen.emit({"nodes": [node_record(node) for node in catalogue.values()]})
        screen.out.print(_catalogue_table(catalogue))
        return
    if name not in catalogue:
        close = difflib.get_close_matches(name, catalogue, n=3, cutoff=0.4) or list(catalogue)
        raise CircuitError(f"show --nodes: no node {name!r}; the closest are {', '.join(close)}")
    node = catalogue[name]
    screen.emit(node_record(node))
    screen.out.print(Text(_signature(node), style="bold"), soft_wrap=True)
    screen.out.print()
    screen.out.print(Text(inspect.cleandoc(node.__doc__ or "")), soft_wrap=True)


def node_record(node: type[Node]) -> dict[str, Any]:
    """Return a node's name, first sentence, ports, results, attributes and the ports that are state."""
    return {
        "name": node.__name__,
        "summary": _summary(node),
        "ports": node.ports,
        "results": node.results,
        "reads": node.reads,
        "writes": node.writes,
        "attributes": {name: _type_name(field.annotation) for name, field in node.model_fields.items()},
        "doc": inspect.cleandoc(node.__doc__ or ""),
    }


def _catalogue_table(catalogue: dict[str, type[Node]]) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    for node in catalogue.values():
        table.add_row(node.__name__, _summary(node))
        table.add_row("", Text(_signature(node), style="dim"))
    return table


def _signature(node: type[Node]) -> str:
    """Return `RmsNorm(eps: float)(x, weight)`, written states with a leading `!`."""
    attributes = ", ".join(f"{name}: {_type_name(field.annotation)}" for name, field in node.model_fields.items())
    ports = ", ".join(f"!{port}" if port in node.writes else port for port in node.ports)
    return f"{node.__name__}({attributes})({ports}) -> {', '.join(node.results)}"


def _summary(node: type[Node]) -> str:
    return inspect.cleandoc(node.__doc__ or "").split("\n\n")[0].replace("\n", " ").strip()


def _type_name(annotation: Any) -> str:
    return annotation.__name__ if isinstance(annotation, type) else str(annotation).replace("typing.", "")
