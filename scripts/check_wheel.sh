#!/usr/bin/env bash
# Uses an installed brt as a new user would, in an empty folder: generates with a model that comes
# with it, trains on .jsonl.zst and on Parquet, lists the runs of a sweep, exports, and generates the
# same text twice.
#   python -m venv fresh && fresh/bin/pip install "$(echo dist/*.whl)[tables]"
#   bash scripts/check_wheel.sh fresh/bin/python
set -euo pipefail
python=$(realpath -s "$1")
brt=$(dirname "$python")/brt
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
unset PYTHONPATH

started=$SECONDS
"$brt" generate --model=trained/text --prompt="def main():" --max_tokens=40
echo "First text after $((SECONDS - started)) s."

"$python" - <<'END'
import json, pathlib
import pyarrow, pyarrow.parquet

texts = [f"Document {i}: " + "the quick brown fox jumps. " * 20 for i in range(40)]
with pyarrow.CompressedOutputStream("lines.jsonl.zst", "zstd") as file:
    file.writelines(json.dumps({"text": text}).encode() + b"\n" for text in texts)
pathlib.Path("tables").mkdir()
for part in range(2):
    pyarrow.parquet.write_table(pyarrow.table({"text": texts[part::2]}), f"tables/{part}.parquet")
END
small=(--gin.Trainer.{steps=3,eval_every=0,tokens_per_step=1024,segment_length=128}
    --gin.cosine.warmup_steps=1 --gin.RecurrentCell.num_states=16
    --gin.BlockRecurrentTransformer.{width=32,head_size=8,feed_forward_size=32})
for data in lines.jsonl.zst tables; do
    "$brt" train --gin_file=small/rec_fixed_skip.gin --text=$data --workdir="runs/$data" "${small[@]}"
done
"$brt" sweep --workdir=sweep --sweep=configs/sweeps/table_1.txt --scale=tiny --text=tables --tokens=1e4 \
    --print_commands >commands.txt
test "$(wc -l <commands.txt)" = 14
"$brt" export --workdir=runs/tables --output=exported
for source in workdir=runs/tables model=exported; do
    "$brt" generate --$source --prompt="Document 7" --max_tokens=30 --seed=1 >"${source%%=*}.txt"
done
cmp workdir.txt model.txt
echo "The exported model generates the text of its run."
