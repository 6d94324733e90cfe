"""Tables for the console."""

from vit_jax.tables import format_table


def test_columns_are_aligned_and_lines_end_without_blanks():
    table = format_table([("name", "size", ""), ("a", "1,000", "note"), ("longer", "", "")], "  ")
    assert table == "  name    size\n  a       1,000  note\n  longer"
