"""Reports as one HTML file: pictures inside, no script, and nothing that a browser would fetch."""

from __future__ import annotations

import base64
import dataclasses
import html
from collections.abc import Sequence

from vit_jax.escaping import printable
from vit_jax.figures import Picture

# A browser that obeys this asks nobody for anything, whatever the page says.
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
CSS = """
:root { color-scheme: light; }
body { font: 16px/1.5 system-ui, sans-serif; color: #1a1a1a; background: #fff;
  margin: 0 auto; padding: 1rem; max-width: 60rem; overflow-wrap: anywhere; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.2rem; margin: 2.5rem 0 .5rem; }
nav a { margin-right: .8rem; white-space: nowrap; } a { color: #0059a0; }
figure { margin: 1rem 0; } figure img { max-width: 100%; height: auto; }
figcaption, .note { color: #444; max-width: 44rem; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; font-size: .9rem; }
th, td { text-align: left; padding: .2rem .8rem .2rem 0; border-bottom: 1px solid #ddd;
  vertical-align: top; overflow-wrap: normal; }
"""


@dataclasses.dataclass(frozen=True)
class Section:
    """A part of a page: a heading, what there is to see, and how to read it.

    Attributes:
      title: the heading.
      text: what is computed, and how to read it.
      pictures: one below the other; plots as SVG.
      table: rows of cells, the first with the columns' names; empty: none.
    """

    title: str
    text: str = ""
    pictures: tuple[Picture, ...] = ()
    table: Sequence[Sequence[object]] = ()


def render(title: str, summary: str, sections: Sequence[Section]) -> bytes:
    """The page, UTF-8; texts stand as they are, whatever characters they have."""
    links = "".join(
        f'<a href="#s{number}">{escaped(section.title)}</a> '
        for number, section in enumerate(sections)
    )
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f'<link rel="icon" href="data:,"><title>{escaped(title)}</title>',
        f"<style>{CSS}</style></head><body><h1>{escaped(title)}</h1>",
        f'<p class="note">{escaped(summary)}</p><nav>{links}</nav>',
        *(_section(f"s{number}", section) for number, section in enumerate(sections)),
        "</body></html>\n",
    ]
    return "\n".join(parts).encode("utf-8", "backslashreplace")


def escaped(text: object) -> str:
    """A text as HTML shows it, control characters as escapes."""
    return html.escape(printable(str(text)))


def _section(anchor: str, section: Section) -> str:
    pictures = "".join(_image(picture, section.title) for picture in section.pictures)
    text = f"<figcaption>{escaped(section.text)}</figcaption>" if section.text else ""
    return (
        f'<section id="{anchor}"><h2>{escaped(section.title)}</h2>'
        f"<figure>{pictures}{text}</figure>{_table(section.table)}</section>"
    )


def _image(picture: Picture, title: str) -> str:
    kind, content = ("svg+xml", picture.svg) if picture.svg else ("png", picture.png)
    data = base64.b64encode(content).decode()
    return f'<img alt="{escaped(title)}" src="data:image/{kind};base64,{data}">'


def _table(rows: Sequence[Sequence[object]]) -> str:
    if not rows:
        return ""
    head, *body = (
        "".join(f"<{tag}>{escaped(cell)}</{tag}>" for cell in row)
        for row, tag in zip(rows, ["th", *["td"] * (len(rows) - 1)], strict=True)
    )
    lines = "".join(f"<tr>{line}</tr>" for line in body)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table></div>'
