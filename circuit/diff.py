"""What a pass changed: two circuits compared call by call, calls found by the name of their first result."""

from collections.abc import Mapping
from dataclasses import dataclass

from circuit.graph import Circuit, Value
from circuit.text import call_lines, quoted, value_text


@dataclass(frozen=True, slots=True)
class Change:
    """A declaration, call or output that both circuits have, spelled as before and as after."""

    name: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class Difference:
    """Entries that only the second circuit has, that only the first has, and that both have but not alike.

    An entry is named `input x`, `weight gain`, `state latent`, `call y`, `output y`, `state output latent`; added and
    removed ones are given as they are spelled in the text form. Order of calls is no difference; wiring is.
    """

    added: tuple[str, ...]
    removed: tuple[str, ...]
    changed: tuple[Change, ...]

    def __bool__(self) -> bool:
        """True when anything differs."""
        return bool(self.added or self.removed or self.changed)

    def __str__(self) -> str:
        """Return the difference as lines that start with `-`, `+`; a changed entry has both; empty when none."""
        lines = [f"- {spelled}" for spelled in self.removed]
        lines += [f"+ {spelled}" for spelled in self.added]
        for change in self.changed:
            lines += [f"- {change.before}", f"+ {change.after}"]
        return "\n".join(lines)


def diff(before: Circuit, after: Circuit) -> Difference:
    """Compare two circuits by the names of their values; block names count, the circuits' own names do not."""
    old, new = _entries(before), _entries(after)
    return Difference(
        added=tuple(spelled for name, spelled in new.items() if name not in old),
        removed=tuple(spelled for name, spelled in old.items() if name not in new),
        changed=tuple(
            Change(name, spelled, new[name]) for name, spelled in old.items() if name in new and new[name] != spelled
        ),
    )


def _entries(circuit: Circuit) -> dict[str, str]:
    entries: dict[str, str] = {}
    for kind, sources in (("input", circuit.inputs), ("weight", circuit.weights), ("state", circuit.states)):
        for name, value in sources.items():
            entries[f"{kind} {name}"] = f"{kind} {value_text(value)}: {value.type}"
    for call in circuit.calls:
        block = f"  [{call.block}]" if call.block else ""
        first, *inner = call_lines(call)
        entries[f"call {call.results[0].name}"] = "\n".join([first + block, *inner])
    return entries | _outputs("output", circuit.outputs) | _outputs("state output", circuit.state_outputs)


def _outputs(kind: str, outputs: Mapping[str, Value]) -> dict[str, str]:
    return {f"{kind} {name}": f"{kind} {quoted(name)} = {value_text(value)}" for name, value in outputs.items()}
