"""Files of records: what is read of a damaged one, and what a kill leaves."""

import pytest

from vit_jax import records
from vit_jax.records import append_record, read_records, write_records


def test_records_come_back(tmp_path):
    path = str(tmp_path / "a.jsonl")
    assert read_records(path) == []
    write_records(path, [{"step": 1, "a": float("nan")}, {"name": "é"}])
    append_record(path, {"step": 3})
    assert read_records(path) == [{"step": 1, "a": None}, {"name": "é"}, {"step": 3}]


def test_lines_that_are_no_records_are_left_out_and_said(tmp_path, caplog):
    path = tmp_path / "a.jsonl"
    path.write_text('{"step": 1}\n{"step": "2"}\n[3]\n{"st\n\n{"step": null}\n{"step": 5}\n')
    assert [record.get("step") for record in read_records(str(path))] == [1, None, 5]
    assert len(caplog.messages) == 4
    assert all(message.startswith(f"Left out of {path} a line") for message in caplog.messages)


@pytest.mark.parametrize(("before", "between"), [("", ""), ("x\n", ""), ("x", "\n"), ("\n", "")])
def test_a_line_that_was_cut_is_ended_first(before, between, tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text(before)
    append_record(str(path), {"a": 1})
    assert path.read_text() == f'{before}{between}{{"a": 1}}\n'


def test_a_record_is_on_the_disk_before_anybody_goes_on(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(records.os, "fsync", synced.append)
    append_record(str(tmp_path / "a.jsonl"), {"a": 1})
    assert len(synced) == 1


def test_stores_get_the_whole_file_anew():
    path = "memory://records/a.jsonl"
    for number in (1, 2, 3):
        append_record(path, {"step": number})
    assert read_records(path) == [{"step": 1}, {"step": 2}, {"step": 3}]
