"""Reports as one file: what they ask for, and texts of others in them."""

import base64
import html.parser
import io

import numpy as np
from PIL import Image

from vit_jax.escaping import printable
from vit_jax.figures import Picture, picture, plot
from vit_jax.pages import Section, render


class Reader(html.parser.HTMLParser):
    def __init__(self, page):
        super().__init__()
        self.tags, self.texts = [], []
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def handle_data(self, data):
        self.texts.append(data)


def test_a_page_has_its_pictures_inside_and_nothing_else_to_fetch():
    pixels = picture(np.zeros((2, 3, 3), np.uint8))
    drawn = plot(lambda axes: axes.plot([0, 1], [1, 2]))
    table = [("name", "size"), ("a", 1), ("b", 2)]
    sections = [Section("One", "text", (pixels, drawn)), Section("Two", table=table)]
    page = Reader(render("T", "S", sections).decode())
    assert {"T", "S", "One", "text", "Two"} <= set(page.texts)
    cells = [tag for tag, _ in page.tags if tag in ("th", "td", "tr")]
    assert cells == ["tr", "th", "th", "tr", "td", "td", "tr", "td", "td"]
    anchors = [f"#{a['id']}" for tag, a in page.tags if tag == "section"]
    assert anchors == [a["href"] for tag, a in page.tags if tag == "a"]
    assert [tag for tag, _ in page.tags].count("figcaption") == 1
    images = [attributes["src"] for tag, attributes in page.tags if tag == "img"]
    assert [image.partition(";")[0] for image in images] == ["data:image/png", "data:image/svg+xml"]
    assert base64.b64decode(images[0].partition(",")[2]) == pixels.png
    assert not [tag for tag, _ in page.tags if tag == "script"]
    links = [a.get("href", "") for tag, a in page.tags if tag in ("a", "link")]
    assert all(link.startswith(("#", "data:")) for link in links)
    policy = next(a["content"] for tag, a in page.tags if "http-equiv" in a)
    assert policy.startswith("default-src 'none'")
    assert [a["alt"] for tag, a in page.tags if tag == "img"] == ["One", "One"]


def test_texts_of_others_are_no_markup():
    wicked = '"<script>alert(1)</script>\x1b[2J & \udcff'
    section = Section(wicked, wicked, (Picture(b"png"),), [(wicked,), (wicked,)])
    page = Reader(render(wicked, wicked, [section]).decode())
    (alt,) = (a["alt"] for tag, a in page.tags if tag == "img")
    assert alt == printable(wicked).replace("\udcff", "\\udcff")
    assert "script" not in {tag for tag, _ in page.tags}
    shown = [text for text in page.texts if "alert" in text]
    assert len(shown) == 8  # Two titles, summary, link, heading, caption and two cells.
    assert all("\\u001b[2J" in text for text in shown)


def test_a_plot_is_the_same_file_each_time():
    first, second = (plot(lambda axes: axes.plot([0, 1], [1, 2])) for _ in range(2))
    assert first == second
    assert first.svg.startswith(b"<?xml")
    assert b"<dc:date>" not in first.svg
    assert Image.open(io.BytesIO(first.png)).size == (1000, 720), "two dots for each of the plot's"
