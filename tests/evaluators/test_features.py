"""Features of frozen models: of which examples they are."""

from tests.evaluators.settings import make_setting, write_folder


def test_what_training_leaves_out_is_measured_all_the_same(tmp_path):
    """Of one split, what a protocol fits to and what it measures on are apart."""
    write_folder(tmp_path / "data/val", {"a": [0, 20], "b": [40, 60]})
    (tmp_path / "list").write_text("val/a/0000.png\n")
    source = f"folder:{tmp_path}/data"
    setting, params = make_setting(source, "ab", exclude=str(tmp_path / "list"))
    fitted, measured = (
        setting.features.open("", "val", training=training)(params).features
        for training in (True, False)
    )
    assert sorted(zip(fitted.values[:, 0], fitted.labels, strict=True)) == [(1, 0), (2, 1), (3, 1)]
    assert sorted(measured.values[:, 0]) == [0, 1, 2, 3]
