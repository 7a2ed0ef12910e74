"""Archives of run folders."""

import bz2
import tracemalloc
from pathlib import Path

from fabricated_runs import make_run

from brt.reporting.archive import pack, unpack


def test_an_archive_has_all_records_and_is_reproducible(tmp_path):
    run = make_run(
        tmp_path / "run",
        "small/map_rec+corpora/text",
        evaluations={"validation": 2.0},
        records=[{"step": 100, "train/bits_per_token": 9.0}],
        config="small/map_rec.gin",
    )
    (run / "studies").mkdir()
    (run / "studies" / "reach.json").write_text('{"study": "reach"}')
    long = f"compare-{'w' * 200}.json"
    (run / "studies" / long).write_text('{"study": "compare"}')
    (run / "checkpoints").mkdir()
    (run / "checkpoints" / "params").write_bytes(b"learned")
    whole = (run / "metrics.jsonl").read_bytes()
    cut_off = b'{"step": 9, "train/lo'
    (run / "metrics.jsonl").write_bytes(
        whole + b'{"step": 8, "train/loss": 12.345678901234567, "x": NaN}\n' + cut_off
    )
    pack(run, tmp_path / "one.tar.bz2")
    (run / "checkpoints" / "params").write_bytes(b"learned more")
    (run / "metrics.jsonl").touch()
    pack(run, tmp_path / "two.tar.bz2")
    assert (tmp_path / "one.tar.bz2").read_bytes() == (tmp_path / "two.tar.bz2").read_bytes()
    again = unpack(tmp_path / "one.tar.bz2", tmp_path / "out")
    kept = {path.relative_to(again): path for path in again.rglob("*") if path.is_file()}
    assert {str(name) for name in kept} == {
        "config.gin", "operative_config.gin", "metrics.jsonl", "stands_for.json",
        "evaluation_validation.json", "studies/reach.json", f"studies/{long}",
    }  # fmt: skip
    metrics = kept.pop(Path("metrics.jsonl")).read_bytes()
    rounded = b'{"step": 8, "train/loss": 12.34568, "x": NaN}\n'
    assert metrics == whole + rounded + cut_off
    assert all(path.read_bytes() == (run / name).read_bytes() for name, path in kept.items())


def test_zeros_after_an_archives_end_need_no_memory(tmp_path):
    run = make_run(tmp_path / "run", "small/map_rec+corpora/text")
    pack(run, tmp_path / "long.tar.bz2")
    content = bz2.decompress((tmp_path / "long.tar.bz2").read_bytes())
    (tmp_path / "long.tar.bz2").write_bytes(bz2.compress(content + bytes(2**26)))
    tracemalloc.start()
    unpack(tmp_path / "long.tar.bz2", tmp_path / "out")
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 2**24
