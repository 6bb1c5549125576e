"""Files of every kind give the same rows, and a broken one is named by its line."""

import csv
import json
import random
import re
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from nemo_specrl.config.data import DataConfig
from nemo_specrl.data.files import read_file
from nemo_specrl.data.identity import identify
from nemo_specrl.data.rows import load_rows

COLUMNS = {"prompt": "question", "answer": "gold"}
ROWS = [
    {"question": 'What is "1, 2"?\nSay so.', "gold": "007"},
    {"question": "größer?", "gold": "1,5"},
    {"question": "empty?", "gold": "None"},
    {"question": "a;b\tc", "gold": "nan"},
]


def write(path: Path, rows: list[dict[str, str]]) -> Path:
    match path.suffix:
        case ".jsonl" | ".txt":
            path.write_text("\n".join(map(json.dumps, rows)))
        case ".json":
            path.write_text(json.dumps(rows, indent=2))
        case ".csv" | ".tsv":
            with path.open("w", newline="", encoding="utf-8") as file:
                writer = csv.DictWriter(file, list(rows[0]), delimiter="\t" if path.suffix == ".tsv" else ",")
                writer.writeheader()
                writer.writerows(rows)
        case ".parquet":
            pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return path


@pytest.mark.parametrize("name", ["r.jsonl", "r.txt", "r.json", "r.csv", "r.tsv", "r.parquet", "R.CSV"])
def test_every_format_gives_the_same_rows(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / name.lower(), ROWS).rename(tmp_path / name)
    rows = load_rows(DataConfig(source=str(path), columns=COLUMNS))
    assert [(row.prompt, row.answer) for row in rows] == [(row["question"], row["gold"]) for row in ROWS]
    same = load_rows(DataConfig(source=str(write(tmp_path / "x.jsonl", ROWS)), columns=COLUMNS))
    assert identify(rows, [], "") == identify(same, [], "")
    assert len(load_rows(DataConfig(source=str(path), columns=COLUMNS, limit=2))) == 2


def test_numbers_keep_their_type_and_decimals_are_numbers(tmp_path: Path) -> None:
    from decimal import Decimal

    (tmp_path / "a.json").write_text('\ufeff [{"question": "a", "gold": 7}, {"question": "b", "gold": "x = 3"}]')
    rows = load_rows(DataConfig(source=str(tmp_path / "a.json"), columns=COLUMNS))
    assert [row.answer for row in rows] == ["7", "x = 3"]
    table = pyarrow.Table.from_pylist([{"question": "a", "gold": Decimal("1.50")}])
    pyarrow.parquet.write_table(table, tmp_path / "d.parquet")
    (row,) = load_rows(DataConfig(source=str(tmp_path / "d.parquet"), columns=COLUMNS))
    assert row.answer == "1.50"


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("ending", ["parquet", "json", "jsonl"])
def test_a_number_that_is_none_is_refused_with_its_row(tmp_path: Path, value: float, ending: str) -> None:
    path = tmp_path / f"n.{ending}"
    rows = [{"question": "a", "gold": 1.0}, {"question": "b", "gold": value}]
    if ending == "parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    else:
        path.write_text(json.dumps(rows) if ending == "json" else "\n".join(map(json.dumps, rows)))
    with pytest.raises(ValueError, match=rf"n\.{ending}: 1 of 2 rows .*row 1 has the answer {value}"):
        load_rows(DataConfig(source=str(path), columns=COLUMNS))


LONG = "9" * 5000
DEEP = "[" * 100_000
BROKEN = [
    ("a.jsonl", b'{"a": 1}\n\n{broken', "line 3: not JSON"),
    ("a.jsonl", b"[1]", "line 1: not an object"),
    ("a.jsonl", f'{{"a": 1}}\n{{"a": {LONG}}}'.encode(), "line 2: a number of more than 4300 digits.*in quotes"),
    ("a.jsonl", f'{{"a": 1}}\n{{"a": {DEEP}'.encode(), "line 2: nested too deeply"),
    ("a.jsonl", '{"a": 1}\n{"a": "é"}'.encode("latin-1"), "line 2: not UTF-8.*0xe9.*iconv"),
    ("a.jsonl", '{"a": 1}'.encode("utf-16"), "line 1: not UTF-8"),
    ("a.jsonl", b"\x1f\x8b\x08\x00", "line 1: not UTF-8.*compressed"),
    ("a.json", b'[{"a": 1},\n {"a": }]', "line 2: not JSON.*array of objects"),
    ("a.json", b'[{"a": 1}, 3]', "row 1: not an object"),
    ("a.json", f'[{{"a": 1}},\n{{"a": {LONG}}}]'.encode(), "line 2: a number of more than 4300 digits"),
    ("a.json", DEEP.encode(), "line 1: nested too deeply"),
    ("a.json", b'{"rows":\n [{"a": 1}]}', "line 1: not JSON"),
    ("a.json", '[{"a":\n "é"}]'.encode("latin-1"), "line 2: not UTF-8"),
    ("a.csv", b"a,b\n1,2\n3\n", "line 3: fewer fields than the header's 2"),
    ("a.csv", b"a,b\n1,2,3\n", "line 2: more fields than the header's 2"),
    ("a.csv", b'a,b\n1,"2\n', "line 2: not CSV"),
    ("a.csv", "a,b\n1,2\né,3".encode("latin-1"), "line 3: not UTF-8"),
    ("a.parquet", b"not parquet", "not a readable Parquet file"),
    ("a.parquet", b"PAR1PAR1", "not a readable Parquet file"),
    ("a.parquet", b"", "not a readable Parquet file"),
]


@pytest.mark.parametrize(("name", "content", "message"), BROKEN)
def test_a_broken_file_is_named_by_its_line(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=f"(?s){re.escape(str(tmp_path / name))}.*{message}"):
        list(read_file(tmp_path / name))


def test_a_parquet_file_damaged_anywhere_is_a_value_error_or_read(tmp_path: Path) -> None:
    """Sixty files with eight bytes flipped at random places: pyarrow raises errors of many kinds."""
    rows = [{"question": f"{i}?" * 20, "gold": str(i)} for i in range(300)]
    good = write(tmp_path / "good.parquet", rows).read_bytes()
    random_ = random.Random(0)
    refused = []
    for _ in range(60):
        bad = bytearray(good)
        for _ in range(8):
            bad[random_.randrange(len(bad))] ^= 0xFF
        (tmp_path / "bad.parquet").write_bytes(bad)
        try:
            list(read_file(tmp_path / "bad.parquet"))
        except ValueError as error:
            refused.append(str(error))
    assert len(refused) > 30
    assert all("bad.parquet is not a readable Parquet file" in message for message in refused)


def test_a_folder_in_place_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").mkdir()
    with pytest.raises(ValueError, match="there is no file"):
        load_rows(DataConfig(source=str(tmp_path / "a.jsonl"), columns=COLUMNS))
