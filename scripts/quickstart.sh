#!/usr/bin/env bash
# From nothing to two trained Block-Recurrent Transformers, two to eight minutes after installation on two
# quiet cores. One is trained on the source code of Python's standard library, which is on this machine
# already; the other on a task of recall. Run again, it continues where it stopped, or says that it is done.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/environment.sh "[report]"
source scripts/malloc.sh
text=runs/quickstart
recall=runs/quickstart_recall
started=$SECONDS
echo "1 of 4: a recurrent model learns to write Python, from the standard library's source code."
python -m brt.train --gin_file=configs/quickstart.gin --workdir=$text
echo
echo "2 of 4: a smaller one learns to remember. A fact stated once is asked for up to 110 tokens later."
python -m brt.train --gin_file=configs/task_models/recall_rec_fixed_skip.gin \
    --gin_file=configs/tasks/recall_minute.gin --workdir=$recall
echo
echo "3 of 4: the second is tested on unseen facts, with the state kept, and cleared before every segment."
[ -f $recall/evaluation_validation.json ] || python -m brt.evaluate --workdir=$recall --record
echo
echo "4 of 4: the first continues a prompt, and both become a page."
python -m brt.generate --workdir=$text --prompt=$'class Reader:\n    """Reads a file."""\n\n    def __init__(self' \
    --max_tokens=240 --stop="                        " --temperature=0.7 --top_p=0.9 --repetition_penalty=1.1 \
    --save_text=$text/samples.jsonl  # until a line of nothing but indentation
python -m brt.report $recall $text -o quickstart.html
python - $text $recall <<'END'
import json, sys

text, recall = sys.argv[1:]
records = [json.loads(line) for line in open(f"{text}/metrics.jsonl")]
last = [record for record in records if "eval/cleared_bits_per_token" in record][-1]
kept, cleared = (last[f"eval/{state}bits_per_token"] for state in ("", "cleared_"))
answers = json.load(open(f"{recall}/evaluation_validation.json"))
right, without = (100 * answers[f"{state}recall_accuracy"] for state in ("", "cleared_"))
print(f"""
With and without the state, on text and facts that neither model has seen:
  Python source    {kept:.3f} bits per token (a byte) with the state kept, {cleared:.3f} with it cleared every 64 bytes
  facts recalled   {right:.1f} % with the state kept, {without:.1f} % with it cleared; chance is 6.2 %
Clearing the state costs the text model {(cleared - kept) / kept:.1%} more bits, and recall {right - without:.1f} points.
""")
END
echo "Trained, evaluated and written in $((SECONDS - started)) s. Files:"
echo "  quickstart.html          results, recalled facts coloured by the effect of the state, curves: open it in a browser"
echo "  $text/checkpoints        parameters, optimizer, caches"
echo "  $text/metrics.jsonl      every logged number; the TensorBoard files lie next to it"
echo "  $text/operative_config.gin   every setting in force"
echo "Next: colour unseen code by the effect of the state on each byte (two minutes), or change a setting:"
echo "  source $venv/bin/activate"
echo "  python -m brt.evaluate --workdir=$text --record --documents=2 && python -m brt.report $text -o reader.html"
echo "  python -m brt.train --gin_file=configs/quickstart.gin --workdir=runs/fixed \\"
echo "      --gin.RecurrentCell.gate='\"fixed\"'"
