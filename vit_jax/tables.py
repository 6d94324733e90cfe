"""Tables for the console."""

from collections.abc import Sequence


def format_table(rows: Sequence[Sequence[str]], indent: str = "") -> str:
    """Rows of cells as lines of aligned columns, two spaces apart."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = (
        indent + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        for row in rows
    )
    return "\n".join(line.rstrip() for line in lines)
