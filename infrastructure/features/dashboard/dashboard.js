"use strict";
// Polls for the page's parts, changes what is new in them, counts ages up, and overlays other runs on
// this one. It polls because the proxies of notebooks buffer streams.
(() => {
  const query = new URLSearchParams(location.search);
  const main = document.querySelector("main");
  const lost = temperCharts.own("div");
  const compared = temperCharts.own("div");
  let clockAhead = 0;
  let version = "";
  let timer = 0;
  let failures = 0;

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
    for (const box of document.querySelectorAll("input[data-with]")) {
      box.checked = others.has(box.dataset.with);
    }
  };

  // Make `live` equal to `wanted`, without touching what already is: focus, zoom and open parts stay.
  // Parts that a script has added are marked `isOwn`.
  const morph = (live, wanted) => {
    for (const { name } of [...live.attributes]) {
      if (!wanted.hasAttribute(name) && name !== "open") live.removeAttribute(name);
    }
    for (const { name, value } of wanted.attributes) {
      if (live.getAttribute(name) !== value) live.setAttribute(name, value);
    }
    const there = [...live.childNodes].filter((node) => !node.isOwn);
    const next = [...wanted.childNodes];
    next.forEach((node, i) => {
      const old = there[i];
      if (!old) live.append(node);
      else if (old.nodeName !== node.nodeName || old.dataset?.key !== node.dataset?.key) old.replaceWith(node);
      else if (old.nodeType === Node.TEXT_NODE) {
        if (old.nodeValue !== node.nodeValue) old.nodeValue = node.nodeValue;
      } else morph(old, node);
    });
    there.slice(next.length).forEach((node) => node.remove());
  };

  // The `main` in an answer of the server.
  const mainOf = async (answer) => {
    const parts = document.createElement("template");
    parts.innerHTML = await answer.text();
    return parts.content.firstElementChild;
  };

  const put = (wanted) => {
    document.title = wanted.dataset.title;
    morph(main, wanted);
    linkRuns();
    tellAges();
    temperCharts.draw(document);
  };

  const look = async () => {
    clearTimeout(timer);
    try {
      const headers = version ? { "If-None-Match": version } : {};
      const answer = await fetch(`look${location.search}`, { headers, cache: "no-store" });
      const now = Number(answer.headers.get("X-Now"));
      if (now) clockAhead = Date.now() / 1000 - now;
      if (answer.status === 200) {
        version = answer.headers.get("ETag") || "";
        put(await mainOf(answer));
      } else if (answer.status !== 304) {
        throw new Error(String(answer.status));
      }
      if ([...others.values()].some((known) => known)) await layOver();
      failures = 0;
      lost.textContent = "";
    } catch (error) {
      failures += 1;
      if (failures > 1) lost.textContent = "The dashboard does not answer. The training goes on"
        + " without it; this page tries again.";
    }
    const wait = failures ? Math.min(30, 2 ** failures) : Number(main.dataset.next);
    if (!document.hidden) timer = setTimeout(look, 1000 * wait);
  };

  // Other runs for comparison: their charts, their state, and the settings that differ.
  const others = new Map(); // name → {charts, settings, next}; null until it is fetched
  for (const name of query.getAll("with")) others.set(name, null);

  const partsOf = (root) => {
    const charts = {}, settings = {};
    for (const figure of root.querySelectorAll("figure[data-chart]")) {
      charts[figure.dataset.key] = JSON.parse(figure.dataset.chart);
    }
    for (const row of root.querySelectorAll("table.config tbody tr")) {
      settings[row.cells[0].textContent] = row.cells[1].textContent;
    }
    return { charts, settings };
  };

  const lookAtOthers = async () => {
    const now = Date.now() / 1000;
    await Promise.all([...others].map(async ([name, known]) => {
      if (known && now < known.next) return;
      const asked = new URLSearchParams(query);
      asked.set("run", name);
      const answer = await fetch(`look?${asked}`, { cache: "no-store" });
      if (!answer.ok) { others.delete(name); return; }
      const other = await mainOf(answer);
      if (others.has(name)) others.set(name, { ...partsOf(other), next: now + Number(other.dataset.next) });
    }));
  };

  const OF_ONE_RUN = new Set(["new_run", "run_name", "output_dir"]); // these do not affect training
  const wordsOf = (key) => key.replace(/^training\./, "").replace(/[._]/g, " ");
  const shortValue = (key, value) => {
    if (value === undefined || value === "null") return "–";
    return /(path|name)$/.test(key) ? value.split(/[\\/]/).pop() : value;
  };
  const rowOf = (name) => [...document.querySelectorAll("#runs a[data-run]")]
    .find((link) => link.dataset.run === name)?.closest("tr");

  const tellCompared = () => {
    compared.replaceChildren();
    const shown = [...others].filter(([, known]) => known);
    if (!shown.length) return;
    const here = document.querySelector("#runs a[aria-current]")?.dataset.run || "this run";
    const runs = [[here, partsOf(main)], ...shown];
    const all = new Set(runs.flatMap(([, run]) => Object.keys(run.settings)));
    // a setting that an older run does not have is not a difference
    const valuesOf = (key) => runs.map(([, run]) => run.settings[key]).filter((value) => value !== undefined);
    const differing = [...all].filter((key) => !OF_ONE_RUN.has(key) && new Set(valuesOf(key)).size > 1);
    const { own, colourOf } = temperCharts;
    const section = own("section"), scroll = own("div", "scroll"), table = own("table", "numbers compare");
    const line = (heading, cells) => {
      const row = own("tr");
      row.append(own("th", "", heading), ...cells.map((text) => own("td", "", text)));
      table.append(row);
      return row;
    };
    const names = line("", runs.map(([name]) => rowOf(name)?.querySelector("a").textContent || name));
    runs.forEach((_, i) => {
      const swatch = own("i", "swatch");
      swatch.style.background = `var(${i ? colourOf([...others.keys()].indexOf(runs[i][0])) : "--main"})`;
      names.cells[i + 1].prepend(swatch);
    });
    ["state", "step", "loss", "held-out loss"].forEach((what, i) => {
      line(what, runs.map(([name]) => rowOf(name)?.cells[i + 1]?.textContent || "–"));
    });
    for (const key of differing) line(wordsOf(key), runs.map(([, run]) => shortValue(key, run.settings[key])));
    if (!differing.length) line("settings", runs.map(() => "the same"));
    scroll.append(table);
    section.append(own("h2", "", "Compared"), scroll);
    compared.append(section);
  };

  const layOver = async () => {
    await lookAtOthers();
    temperCharts.lay([...others].filter(([, known]) => known)
      .map(([name, { charts }]) => ({ name: rowOf(name)?.querySelector("a").textContent || name, charts })));
    tellCompared();
  };

  document.addEventListener("change", (event) => {
    const name = event.target.dataset?.with;
    if (!name) return;
    if (event.target.checked) others.set(name, null);
    else others.delete(name);
    query.delete("with");
    for (const other of others.keys()) query.append("with", other);
    history.replaceState(null, "", query.size ? `?${query}` : location.pathname);
    linkRuns();
    layOver().catch(() => {});
  });

  document.addEventListener("visibilitychange", () => { if (!document.hidden) look(); });
  document.body.classList.add("alive");
  lost.id = "lost";
  lost.setAttribute("role", "status");
  compared.id = "compared";
  main.prepend(lost);
  document.getElementById("runs").after(compared);
  linkRuns();
  temperCharts.draw(document);
  layOver().catch(() => {});
  setInterval(tellAges, 1000);
  look();
})();
