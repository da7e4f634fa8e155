"use strict";
// Asks for the page's parts again and again, puts in place those that changed, counts ages up, and
// tells the value under the pointer. Polling, because the proxies of notebooks hold streams back.
(() => {
  const query = new URLSearchParams(location.search);
  const page = document.body;
  const lost = document.getElementById("lost");
  let clockAhead = Date.now() / 1000 - Number(page.dataset.now);
  let nextSeconds = Number(page.dataset.next);
  let version = `"${page.dataset.version}"`;
  let timer = 0;
  let failures = 0;
  let pointer = null;

  const duration = (seconds) => {
    const whole = Math.max(0, Math.round(seconds));
    const units = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];
    for (let i = 0; i < 3; i++) {
      const [name, size] = units[i], [nextName, nextSize] = units[i + 1];
      if (whole >= size) {
        const rest = Math.floor((whole % size) / nextSize);
        return `${Math.floor(whole / size)} ${name}${rest ? ` ${rest} ${nextName}` : ""}`;
      }
    }
    return `${whole} s`;
  };

  const tellAges = () => {
    const now = Date.now() / 1000 - clockAhead;
    for (const time of document.querySelectorAll("time[data-at]")) {
      const age = duration(now - Number(time.dataset.at));
      time.textContent = time.dataset.form === "age" ? age : `${age} ago`;
    }
  };

  const linkRuns = () => {
    for (const link of document.querySelectorAll("a[data-run]")) {
      const to = new URLSearchParams(query);
      to.set("run", link.dataset.run);
      link.href = `?${to}`;
    }
  };

  const put = (sections) => {
    for (const [id, html] of Object.entries(sections)) {
      const part = document.getElementById(id);
      if (!part || part.received === html) continue;
      const open = [...part.querySelectorAll("details")].map((details) => details.open);
      part.innerHTML = html;
      part.received = html;
      part.querySelectorAll("details").forEach((details, i) => { details.open = !!open[i]; });
    }
    linkRuns();
    tellAges();
    if (pointer) showValue(pointer);
  };

  const look = async () => {
    clearTimeout(timer);
    try {
      const headers = version ? { "If-None-Match": version } : {};
      const answer = await fetch(`look${location.search}`, { headers, cache: "no-store" });
      if (answer.status === 200) {
        const told = await answer.json();
        version = answer.headers.get("ETag") || "";
        document.title = told.title;
        nextSeconds = told.next_seconds;
        put(told.sections);
      } else if (answer.status !== 304) {
        throw new Error(String(answer.status));
      }
      const now = Number(answer.headers.get("X-Now"));
      if (now) clockAhead = Date.now() / 1000 - now;
      failures = 0;
      lost.textContent = "";
    } catch (error) {
      failures += 1;
      if (failures > 1) lost.textContent = "The dashboard does not answer. The training goes on"
        + " without it; this page tries again.";
    }
    const wait = failures ? Math.min(30, 2 ** failures) : nextSeconds;
    if (!document.hidden) timer = setTimeout(look, 1000 * wait);
  };

  const numbers = (text) => (text || "").trim().split(/[\s,]+/).map(Number);

  const nearest = (svg, x) => {
    let best = null;
    const take = (px, py) => {
      if (!best || Math.abs(px - x) < Math.abs(best[0] - x)) best = [px, py];
    };
    const lines = svg.querySelectorAll("polyline.main");
    for (const line of lines.length ? lines : svg.querySelectorAll("polyline.mark-line")) {
      const flat = numbers(line.getAttribute("points"));
      for (let i = 0; i + 1 < flat.length; i += 2) take(flat[i], flat[i + 1]);
    }
    return best;
  };

  const draw = (svg, name, attributes, text) => {
    const drawn = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) drawn.setAttribute(key, value);
    if (text) drawn.textContent = text;
    svg.append(drawn);
  };

  const valueAt = (data, y) => {
    const [, , top, bottom] = numbers(data.box);
    let [low, high] = numbers(data.values);
    if (data.log) [low, high] = [Math.log10(low), Math.log10(high)];
    const value = low + ((bottom - y) / (bottom - top)) * (high - low);
    const scaled = (data.log ? 10 ** value : value) * Number(data.scale);
    const size = Math.abs(scaled);
    const told = size && (size < 1e-3 || size >= 1e6) ? scaled.toExponential(2)
      : size >= 1000 ? Math.round(scaled).toLocaleString("en") : Number(scaled.toPrecision(3));
    return `${told}${data.unit || ""}`;
  };

  const showValue = (event) => {
    document.querySelectorAll(".hover").forEach((drawn) => drawn.remove());
    const under = document.elementFromPoint(event.clientX, event.clientY);
    const svg = under && under.closest("svg.chart[data-box]");
    pointer = svg ? event : null;
    if (!svg) return;
    const at = new DOMPoint(event.clientX, event.clientY)
      .matrixTransform(svg.getScreenCTM().inverse());
    const [left, right, top, bottom] = numbers(svg.dataset.box);
    const found = nearest(svg, at.x);
    if (!found || at.x < left - 8 || at.x > right + 8) return;
    const [x, y] = found;
    const [first, last] = numbers(svg.dataset.steps);
    const step = first + ((x - left) / (right - left)) * (last - first);
    const where = svg.dataset.axis === "step" ? `step ${Math.round(step).toLocaleString("en")}`
      : `${Number(step.toPrecision(3))} ${svg.dataset.axis}`;
    const isLate = x > (left + right) / 2;
    draw(svg, "line", { class: "hover", x1: x, x2: x, y1: top, y2: bottom });
    draw(svg, "circle", { class: "hover", cx: x, cy: y, r: 3.5 });
    draw(svg, "text", {
      class: "hover", x: x + (isLate ? -8 : 8), y: top + 10,
      "text-anchor": isLate ? "end" : "start",
    }, `${valueAt(svg.dataset, y)} · ${where}`);
  };

  document.addEventListener("pointermove", showValue, { passive: true });
  document.addEventListener("pointerdown", showValue, { passive: true });
  document.addEventListener("visibilitychange", () => { if (!document.hidden) look(); });
  linkRuns();
  tellAges();
  setInterval(tellAges, 1000);
  timer = setTimeout(look, 1000 * nextSeconds);
})();
