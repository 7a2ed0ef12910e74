"""Opens a page in Qt's Chromium, and writes what became of it; run by `browser.py`.

    python tests/support/browse.py URL FOLDER WIDTH HEIGHT

FOLDER/page.html is the document after its scripts ran, FOLDER/page.png an image of a window of that
size.
"""

import os
import sys
from pathlib import Path

os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")
os.environ.setdefault("QTWEBENGINE_CHROMIUM_FLAGS", "--no-sandbox --disable-gpu")

from PyQt6.QtCore import QTimer, QUrl
from PyQt6.QtWebEngineWidgets import QWebEngineView
from PyQt6.QtWidgets import QApplication

DRAWN = 1500
"""Milliseconds after loading in which the page's scripts run and the window is drawn."""


def main(url, folder, width, height):
    application = QApplication(sys.argv[:1])
    view = QWebEngineView()
    view.resize(int(width), int(height))

    def written(html):
        Path(folder, "page.html").write_text(html, encoding="utf-8")
        application.exit(0 if view.grab().save(str(Path(folder, "page.png"))) else 1)

    def loaded(succeeded):
        if not succeeded:
            return application.exit(1)
        QTimer.singleShot(DRAWN, lambda: view.page().toHtml(written))

    view.loadFinished.connect(loaded)
    view.load(QUrl(url))
    view.show()
    return application.exec()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
