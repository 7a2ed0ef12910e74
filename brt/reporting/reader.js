// The reader. Only what is near the visible part of a document is in the page.
"use strict";
(function () {
  const at = (id) => document.getElementById(id);
  const CHUNK = 400, LEVELS = 8, LISTED = 40, BIT = Math.LN2, NO_WORD = 2 ** 32 - 1;
  const data = JSON.parse(at("reader-data").textContent);
  const unpack = (text, Type) =>
    new Type(Uint8Array.from(atob(text), (c) => c.charCodeAt(0)).buffer);
  const shown = (x, decimals) => x.toFixed(decimals).replace("-", "−");
  const sheet = document.styleSheets[0];
  for (let level = 1; level <= LEVELS; level++)
    for (const [prefix, colour] of [["w", "--worse"], ["b", "--better"]])
      sheet.insertRule(`.${prefix}${level} { background: color-mix(in srgb, `
        + `var(${colour}) ${level * 11}%, transparent) }`);
  let doc, own = 0, minus = -1, values, chunks = [], marked = -1;
  const filling = new IntersectionObserver((entries) => {
    for (const entry of entries) (entry.isIntersecting ? fill : empty)(entry.target.chunk);
  }, { root: at("text"), rootMargin: "1200px 0px" });

  function open(number) {
    const started = performance.now();
    doc = data.documents[number];
    if (!doc.ends) {
      doc.ends = new Uint32Array(unpack(doc.lengths, Uint16Array));
      for (let i = 1; i < doc.tokens; i++) doc.ends[i] += doc.ends[i - 1];
      doc.seen = unpack(doc.last_seen, Uint32Array);
      for (const r of doc.recordings) {
        r.bits = unpack(r.nats, Float32Array).map((x) => x / BIT);
        r.entropyBits = unpack(r.entropy, Float32Array).map((x) => x / BIT);
      }
    }
    own = Math.min(own, doc.recordings.length - 1);
    // What the state contributes, if there is a recording without it.
    minus = doc.recordings.findIndex((r, n) => n !== own && r.name.endsWith("cleared"));
    marked = -1;
    choices();
    layOut();
    measure();
    at("text").scrollTop = 0;
    at("text").dataset.milliseconds = Math.round(performance.now() - started);
  }

  // Chunks end at line ends where there are some, else at any token.
  function layOut() {
    filling.disconnect();
    at("text").textContent = "";
    chunks = [];
    for (let first = 0; first < doc.tokens;) {
      let last = Math.min(first + 2 * CHUNK, doc.tokens);
      for (let i = first + CHUNK; i < last; i++)
        if (doc.text[doc.ends[i] - 1] === "\n") last = i + 1;
      const element = document.createElement("div");
      const characters = doc.ends[last - 1] - begin(first);
      element.style.minHeight = Math.ceil(characters / 80) * 1.7 + "rem";
      element.chunk = { element, first, last, full: false };
      chunks.push(element.chunk);
      at("text").append(element);
      filling.observe(element);
      first = last;
    }
  }

  const begin = (i) => (i ? doc.ends[i - 1] : 0);

  function fill(chunk) {
    const parts = document.createDocumentFragment();
    for (let i = chunk.first; i < chunk.last; i++) {
      const span = document.createElement("span");
      span.textContent = doc.text.slice(begin(i), doc.ends[i]);
      span.className = classOf(i);
      span.dataset.i = i;
      parts.append(span);
    }
    chunk.element.replaceChildren(parts);
    chunk.element.style.minHeight = "";
    chunk.full = true;
  }

  function empty(chunk) {
    if (!chunk.full) return;
    chunk.element.style.minHeight = chunk.element.offsetHeight + "px";
    chunk.element.replaceChildren();
    chunk.full = false;
  }

  function classOf(i) {
    const most = Number(at("most").value);
    const level = Math.min(LEVELS, Math.round((Math.abs(values[i]) / most) * LEVELS));
    const border = at("borders").checked && i && i % doc.segment_length === 0;
    return (level ? (values[i] > 0 ? "w" : "b") + level : "") + (border ? " border" : "")
      + (i === marked ? " found" : "");
  }

  function measure() {
    const bits = doc.recordings[own].bits;
    values = minus < 0 ? bits : bits.map((x, i) => x - doc.recordings[minus].bits[i]);
    const mean = values.reduce((sum, x) => sum + x, 0) / Math.max(doc.scored, 1);
    at("mean").textContent = `mean ${minus < 0 ? "" : "difference "}${shown(mean, 4)} bits `
      + `a token, over ${doc.scored.toLocaleString("en")} tokens`;
    at("key").textContent = minus < 0 ? "the deeper, the more surprised"
      : "blue: the first predicts better, orange: the second";
    const sizes = values.map(Math.abs).sort();
    at("most").value = sizes[sizes.length - 1 - Math.floor(0.01 * doc.scored)];
    list(sizes[Math.max(sizes.length - LISTED, 0)]);
    paint();
  }

  function paint() {
    at("most-shown").textContent = at("most").value
      + (minus < 0 ? " bits for a token, or more" : " bits of difference at a token, or more");
    for (const chunk of chunks) if (chunk.full)
      for (const span of chunk.element.children) span.className = classOf(Number(span.dataset.i));
    draw();
  }

  // The whole document in one strip: the mean of each stretch, and what part is on the screen.
  function draw() {
    const canvas = at("map"), height = 48;
    const width = (canvas.width = canvas.clientWidth * devicePixelRatio);
    canvas.height = height;
    const pen = canvas.getContext("2d");
    const colour = (name) => {
      canvas.style.color = `var(${name})`;
      return getComputedStyle(canvas).color;
    };
    const means = [];
    for (let x = 0; x < width; x++) {
      const first = Math.floor((x * doc.tokens) / width);
      const last = Math.max(first + 1, Math.floor(((x + 1) * doc.tokens) / width));
      let sum = 0;
      for (let i = first; i < last; i++) sum += values[i];
      means.push(sum / (last - first));
    }
    const most = Math.max(...means.map(Math.abs), 1e-9), base = minus < 0 ? height : height / 2;
    const [worse, better] = [colour("--worse"), colour("--better")];
    means.forEach((mean, x) => {
      pen.fillStyle = mean > 0 ? worse : better;
      const tall = (Math.abs(mean) / most) * base;
      pen.fillRect(x, mean > 0 ? base - tall : base, 1, tall);
    });
    const { scrollTop, clientHeight } = at("text");
    const [left, right] = [scrollTop, scrollTop + clientHeight].map((y) => {
      const { element, first, last } = chunks.find((c) =>
        c.element.offsetTop + c.element.offsetHeight > y) || chunks[chunks.length - 1];
      const share = Math.min(Math.max((y - element.offsetTop) / element.offsetHeight, 0), 1);
      return ((first + share * (last - first)) / doc.tokens) * width;
    });
    pen.strokeStyle = colour("--ink");
    pen.lineWidth = 2;
    pen.strokeRect(left, 1, Math.max(right - left, 4), height - 2);
  }

  function list(least) {
    const order = [];
    values.forEach((x, i) => { if (x && Math.abs(x) >= least) order.push(i); });
    order.sort((a, b) => Math.abs(values[b]) - Math.abs(values[a]));
    at("largest").replaceChildren(...order.slice(0, LISTED).map((i) => {
      const item = document.createElement("li"), button = document.createElement("button");
      const [bits, context, mark, position] = ["b", "span", "mark", "i"].map((name) =>
        document.createElement(name));
      const plain = (from, to) => doc.text.slice(from, to).replace(/\s/g, " ");
      bits.textContent = shown(values[i], 2);
      mark.className = values[i] > 0 ? "" : "better";
      mark.textContent = plain(begin(i), doc.ends[i]) || "…";
      context.append(plain(Math.max(begin(i) - 14, 0), begin(i)), mark,
        plain(doc.ends[i], doc.ends[i] + 40));
      position.textContent = i.toLocaleString("en");
      button.append(bits, context, position);
      button.onclick = () => scrollToToken(i);
      item.append(button);
      return item;
    }));
  }

  function scrollToToken(i) {
    const chunk = chunks.find((c) => i < c.last);
    marked = i;
    if (!chunk.full) fill(chunk);
    paint();
    chunk.element.children[i - chunk.first].scrollIntoView({ block: "center" });
    // Estimated heights above become true ones while they come into view.
    setTimeout(() => chunk.full &&
      chunk.element.children[i - chunk.first].scrollIntoView({ block: "center" }), 120);
  }

  function choices() {
    at("own").replaceChildren(...doc.recordings.map((recording, number) => {
      const button = document.createElement("button");
      button.textContent = recording.name;
      button.setAttribute("aria-pressed", number === own);
      button.onclick = () => {
        own = number;
        if (minus === own) minus = -1;
        choices();
        measure();
      };
      return button;
    }));
    at("minus").replaceChildren(new Option("nothing", -1), ...doc.recordings
      .map((r, n) => new Option(r.name, n)).filter((option) => Number(option.value) !== own));
    at("minus").value = minus;
  }

  function showTip(event) {
    const i = event.target.dataset && event.target.dataset.i;
    at("tip").hidden = i === undefined;
    if (i === undefined) return;
    const n = Number(i), lines = [JSON.stringify(doc.text.slice(begin(n), doc.ends[n]))
      + "  token " + n.toLocaleString("en")];
    for (const r of doc.recordings)
      lines.push(`${shown(r.bits[n], 3)} bits  (entropy ${shown(r.entropyBits[n], 3)})  ${r.name}`);
    if (minus >= 0) lines.push(`difference ${shown(values[n], 3)} bits`);
    if (doc.seen[n] !== NO_WORD)
      lines.push(doc.seen[n] ? `word last seen ${doc.seen[n].toLocaleString("en")} tokens ago`
        : "word not seen before");
    const tip = at("tip");
    tip.textContent = lines.join("\n");
    tip.style.left = Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8) + "px";
    tip.style.top = (event.clientY + 24 + tip.offsetHeight > innerHeight
      ? event.clientY - tip.offsetHeight - 14 : event.clientY + 20) + "px";
  }

  at("document").replaceChildren(...data.documents.map((d, n) => {
    const cut = d.tokens < d.whole ? ` of ${d.whole.toLocaleString("en")}` : "";
    return new Option(`${d.title} (${d.tokens.toLocaleString("en")}${cut} tokens)`, n);
  }));
  at("document").onchange = () => open(Number(at("document").value));
  at("minus").onchange = () => { minus = Number(at("minus").value); measure(); };
  at("most").oninput = at("borders").onchange = paint;
  at("text").onmousemove = showTip;
  at("text").onscroll = () => requestAnimationFrame(draw);
  at("text").onmouseleave = () => { at("tip").hidden = true; };
  at("map").onclick = (event) =>
    scrollToToken(Math.floor((event.offsetX / at("map").clientWidth) * doc.tokens));
  addEventListener("resize", draw);
  open(0);
})();
