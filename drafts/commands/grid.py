"""A table as data: printed on a terminal of any width, or as Markdown."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.table import Table
from rich.text import Text

from drafts.commands.screen import Screen


@dataclass(frozen=True, slots=True)
class Grid:
    """Columns by name and rows of texts; columns named in `texts` are words, which wrap, all others numbers."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    texts: tuple[str, ...] = ()
    title: str = ""

    def rich(self) -> Table:
        """Return it for a terminal."""
        table = Table(box=None, padding=(0, 1), pad_edge=False, header_style="dim")
        for column in self.columns:
            is_text = column in self.texts
            table.add_column(
                column,
                justify="left" if is_text else "right",
                overflow="fold",
                no_wrap=not is_text,
            )
        for row in self.rows:
            table.add_row(*(Text(cell) for cell in row))
        return table

    def markdown(self) -> str:
        """Return it as a Markdown table, lines ended."""
        rules = ("---" if column in self.texts else "---:" for column in self.columns)
        lines = [self.columns, tuple(rules), *self.rows]
        return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)


def show(screen: Screen, parts: Sequence[Grid | str], *, as_markdown: bool) -> None:
    """Print tables and lines in order; nothing where the command prints JSON."""
    if screen.as_json:
        return
    for part in parts:
        if isinstance(part, str):
            # Markdown keeps a paragraph on one line, a terminal wraps it
            screen.out.print(Text(part), soft_wrap=as_markdown)
            if as_markdown:
                screen.out.print()
            continue
        if part.title:
            heading = f"### {part.title}\n" if as_markdown else f"\n{part.title}"
            screen.out.print(Text(heading, style="" if as_markdown else "bold"), soft_wrap=as_markdown)
        if as_markdown:
            screen.out.out(part.markdown(), highlight=False)
        else:
            screen.out.print(part.rich())
