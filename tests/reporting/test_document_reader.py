"""The reader of a report, which shows documents with the losses of recordings."""

import base64
import re

import numpy as np
import pytest
from browser import open_page
from fabricated_recordings import make_store
from fabricated_runs import add_recording, make_run

pytest.importorskip("altair", reason='the report needs pip install -e ".[report]"')

from brt.data.sources.base import Document
from brt.data.stores.store_writer import write_store
from brt.data.stores.token_store import TokenStore
from brt.data.vocabularies.base import ByteVocabulary
from brt.report import report
from brt.reporting.reader import reader_documents
from brt.reporting.runs import open_runs


def test_the_reader_shows_no_loss_for_tokens_that_are_not_scored(tmp_path):
    run = make_run(tmp_path / "run", "small/rec_fixed_skip+corpora/text")
    scored_T = np.array([0, 0, 1, 0], np.float32)
    document = Document("", tokens=np.array([97, 98, 99, 100]), weights=scored_T)
    write_store(tmp_path / "store", [document], ByteVocabulary(), {}, quiet=True)
    nats_T = np.array([np.nan, np.inf, 2, 3], np.float32)
    add_recording(run, TokenStore(tmp_path / "store"), "kept", nats_T)
    ((shown,), _) = reader_documents(open_runs([run]))
    nats_T = np.frombuffer(base64.b64decode(shown["recordings"][0]["nats"]), np.float32)
    np.testing.assert_array_equal(nats_T, 2 * scored_T)
    assert shown["scored"] == 1


@pytest.mark.parametrize("name", ["tokens.bin", "documents.jsonl"])
def test_a_damaged_store_is_named_and_not_shown(tmp_path, name):
    run = make_run(tmp_path / "run", "small/rec_fixed_skip+corpora/text")
    store = make_store(tmp_path / "store", ["one two"])
    add_recording(run, store, "kept", np.ones(store.num_tokens, np.float32))
    path = next(store.folder.rglob(name))
    path.write_bytes(bytes([path.read_bytes()[0] ^ 1]) + path.read_bytes()[1:])
    shown, problems = reader_documents(open_runs([run]))
    assert not shown and f"{name} is damaged" in problems[0]


PRESS = """<script>
addEventListener("load", () => {
  const minus = document.getElementById("minus");
  minus.value = "1"; minus.dispatchEvent(new Event("change"));
  document.body.dataset.difference = document.getElementById("mean").textContent;
  document.querySelector("#largest button").click();
  const text = document.getElementById("text"), found = text.querySelector(".found");
  const place = found.getBoundingClientRect(), box = text.getBoundingClientRect();
  document.body.dataset.found = found.dataset.i;
  document.body.dataset.visible = place.top >= box.top && place.bottom <= box.bottom;
  found.dispatchEvent(new MouseEvent("mousemove", {bubbles: true, clientX: 300, clientY: 300}));
  document.body.dataset.tip = document.getElementById("tip").textContent;
});
</script>"""


def test_in_a_browser_a_long_book_opens_and_its_buttons_work(tmp_path):
    book = "".join(f"Chapter {n}. Darcy said nothing of it to her.\n" for n in range(2200))
    store = make_store(tmp_path / "store" / "validation", [book])
    assert store.num_tokens > 100_000
    run = make_run(tmp_path / "run", "small/rec_fixed_skip+corpora/text")
    nats_T = np.full(store.num_tokens, 0.5, np.float32)
    add_recording(run, store, "cleared", nats_T)
    nats_T += np.float32(np.log(2))
    nats_T[77_777] = 6.0
    add_recording(run, store, "kept", nats_T)
    report(open_runs([run]), tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    (tmp_path / "pressed.html").write_text(page.replace("</body>", PRESS + "</body>"))
    open_page(f"file://{tmp_path}/report.html#reader", tmp_path / "opened")
    dom = open_page(f"file://{tmp_path}/pressed.html", tmp_path / "pressed")
    body = dict(re.findall(r'data-(\w+)="([^"]*)"', re.search("<body[^>]*>", dom)[0]))
    counted = f"mean difference 1.0001 bits a token, over {store.num_tokens:,} tokens"
    assert body["difference"] == counted
    assert body["found"] == "77777" and body["visible"] == "true"
    assert "bits  (entropy" in body["tip"] and "token" in body["tip"]
    assert 0 < dom.count('data-i="') < 20_000  # of more than 100,000
    assert int(re.search(r'data-milliseconds="(\d+)"', dom)[1]) < 5_000

    from PyQt6.QtGui import QImage

    shown = QImage(str(tmp_path / "opened/page.png"))
    shown = shown.convertToFormat(QImage.Format.Format_RGBA8888)
    flat = np.frombuffer(shown.constBits().asstring(shown.sizeInBytes()), np.uint8)
    pixels = flat.reshape(-1, 4)[:, :3].astype(int)
    red, green, blue = (pixels[..., i] for i in range(3))
    assert ((red > 200) & (green < 240) & (blue < 220) & (red - blue > 20)).sum() > 5_000
    assert len(np.unique(pixels, axis=0)) > 50
