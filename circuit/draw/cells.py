"""Text on a grid of terminal cells: how wide it is, and how it is cut to a width."""

import unicodedata


def cell_width(text: str) -> int:
    """Return the cells that `text` takes: two for a wide East Asian character, none for a combining one."""
    return sum(_char_width(char) for char in text)


def fitted(text: str, width: int) -> str:
    """Return `text` cut to `width` cells, the last one an ellipsis where something was cut."""
    if cell_width(text) <= width:
        return text
    kept, used = [], 0
    for char in text:
        used += _char_width(char)
        if used > width - 1:
            break
        kept.append(char)
    return "".join(kept) + ("…" if width > 0 else "")


def padded(text: str, width: int, fill: str = " ") -> str:
    """Return `text` cut or filled to exactly `width` cells."""
    cut = fitted(text, width)
    return cut + fill * (width - cell_width(cut))


def _char_width(char: str) -> int:
    if unicodedata.combining(char):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1
