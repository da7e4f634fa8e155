"use strict";
// Interactive charts: values under the pointer, zoom, smoothing, a logarithmic scale, other runs for
// comparison. A figure has its numbers in data-chart. A notebook's panel contains this script in each
// of its updates; the first one serves them all.
window.temperCharts ??= (() => {
  const figures = new Map(); // figure → its chart
  let smoothing = null; // as the user has set it; null: depends on the number of points
  let others = []; // {name, charts: key → numbers}: runs that are overlaid

  const LOG_SCALE_FROM_RATIO = 30;
  const colourOf = (position) => `--run${(position % 6) + 1}`;
  const own = (tag, className, text) => {
    const made = document.createElement(tag);
    made.isOwn = true; // not from the server, so it stays when a part is updated
    if (className) made.className = className;
    if (text) made.textContent = text;
    return made;
  };

  const round = (value, digits) => Number(value.toPrecision(digits));
  const format = (value, data, digits = 3) => {
    const scaled = value * data.scale;
    const size = Math.abs(scaled);
    const whole = digits === 3 ? Math.round(scaled) : round(scaled, digits);
    const text = size && (size < 1e-3 || size >= 1e6) ? round(scaled, digits).toExponential()
      : size >= 1000 ? whole.toLocaleString("en", { maximumFractionDigits: digits })
        : String(round(scaled, digits));
    return `${text.replace("e+", "e")}${data.unit}`;
  };
  // Labels of an axis, with enough digits to show the distances of ticks; uPlot passes null for no label.
  const tickLabels = (ticks, data) => {
    const shown = ticks.filter((tick) => tick !== null);
    let digits = 3;
    const least = Math.min(...shown.slice(1).map((tick, i) => tick - shown[i])) / 100;
    while (digits < 12 && shown.some((tick) => Math.abs(round(tick * data.scale, digits) / data.scale - tick) > least)) digits++;
    return ticks.map((tick) => (tick === null ? "" : format(tick, data, digits)));
  };
  const formatPlace = (x, data) => (data.axis === "step"
    ? `step ${Math.round(x).toLocaleString("en")}` : `${Number(x.toPrecision(3))} ${data.axis}`);

  const movingAverage = (values, weight) => {
    let average = 0, total = 0;
    return values.map((value) => {
      if (value !== null) {
        average = weight * average + (1 - weight) * value;
        total = weight * total + (1 - weight);
      }
      return value === null || !total ? null : average / total;
    });
  };
  // Average from both ends, because an average only from the start lags behind a falling curve.
  const smooth = (values, weight) => {
    if (!weight) return values;
    const forward = movingAverage(values, weight);
    const backward = movingAverage([...values].reverse(), weight).reverse();
    return forward.map((value, i) => (value === null ? null : (value + backward[i]) / 2));
  };
  const weightOf = (data) => {
    if (!data.noisy || data.y.length < 3) return 0;
    return smoothing === null ? Math.max(0, 1 - 100 / Math.max(1, data.y.length)) : smoothing;
  };

  const nearest = (values, index) => {
    for (let far = 0; far < values.length; far++) {
      if (values[index - far] != null) return index - far;
      if (values[index + far] != null) return index + far;
    }
    return null;
  };

  const valueRange = (low, high, fromZero) => {
    if (fromZero) return [Math.min(0, low ?? 0), (high ?? 0) * 1.08 || 1];
    if (low == null || (low === 0 && high === 0)) return [0, 1]; // the library would end the axis at 100
    return uPlot.rangeNum(low, high, 0.1, true);
  };

  class Live {
    constructor(figure) {
      this.figure = figure;
      this.data = JSON.parse(figure.dataset.chart);
      this.isLog = this.data.log && this.range.high / this.range.low > LOG_SCALE_FROM_RATIO;
      this.box = own("div", "plot");
      this.probe = own("i");
      this.box.tabIndex = 0;
      this.box.setAttribute("role", "application");
      this.box.setAttribute("aria-label", `${figure.querySelector("h3").firstChild.textContent}, a`
        + " chart: arrow keys tell the values, plus and minus zoom, Escape shows all of it");
      this.keys = own("div", "run-keys");
      this.buttons = own("span", "chart-buttons");
      figure.querySelector("h3").append(this.buttons);
      figure.querySelector("h3").after(this.box, this.keys);
      this.make();
      this.listen();
      new ResizeObserver(() => this.plot.setSize(this.size())).observe(this.box);
    }

    // The finite range of the values, or {} if it does not allow a logarithmic scale.
    get range() {
      const values = [...this.data.y, ...this.data.marks_y].filter((value) => value !== null);
      const low = Math.min(...values);
      return values.length && low > 0 && !this.data.zero ? { low, high: Math.max(...values) } : {};
    }

    // A colour of the surroundings, in which it may be computed from that of the text.
    colour(name) {
      if (!this.probe.isConnected) this.box.append(this.probe);
      this.probe.style.color = `var(${name})`;
      return getComputedStyle(this.probe).color;
    }

    get laid() { return others.filter((run) => run.charts[this.figure.dataset.key]); }

    size() {
      const height = this.figure.classList.contains("wide") ? 300 : 200;
      return { width: Math.max(200, this.box.clientWidth), height };
    }

    joined() {
      const table = (data) => {
        const times = (values, unit) => {
          const factor = data[unit] / this.data[unit]; // another run may use minutes, or GiB
          return factor === 1 ? values : values.map((value) => (value === null ? null : value * factor));
        };
        const y = times(data.y, "y_unit");
        return [[times(data.x, "x_unit"), y, smooth(y, weightOf(data))],
          [times(data.marks_x, "x_unit"), times(data.marks_y, "y_unit")]];
      };
      const tables = table(this.data);
      for (const run of this.laid) {
        const data = run.charts[this.figure.dataset.key];
        const [line, marks] = table(data);
        tables.push([line[0], line[2]], marks);
      }
      return uPlot.join(tables);
    }

    make() {
      const zoom = this.isZoomed ? { ...this.plot.scales.x } : null;
      this.plot?.destroy();
      const { data } = this;
      const colour = (name) => this.colour(name);
      const line = (name, width, more) => ({ stroke: () => colour(name), width, points: { show: false }, ...more });
      const marks = (name) => ({ ...line(name, 1.4), points: { show: true, size: 6, fill: () => colour(name) } });
      const series = [{}, line("--faint", 1), line("--main", 1.8, { points: { show: data.y.length === 1, size: 6 } }), marks("--mark")];
      this.laid.forEach((run) => {
        const name = colourOf(others.indexOf(run));
        series.push(line(name, 1.8), { ...marks(name), dash: [4, 3] });
      });
      const axis = { stroke: () => colour("--soft"), ticks: { show: false }, font: "11px system-ui, sans-serif" };
      const range = this.isLog ? undefined : (_, low, high) => valueRange(low, high, data.zero);
      this.plot = new uPlot({
        ...this.size(),
        padding: [8, 38, 0, 0],
        series,
        legend: { show: false },
        cursor: {
          drag: { x: true, y: false },
          dataIdx: (plot, i, index) => nearest(plot.data[i], index) ?? index,
          points: { size: 7, show: (plot, i) => i > 1 },
          sync: { key: data.axis, filters: { pub: (kind) => ["mousemove", "mouseleave"].includes(kind) } },
        },
        scales: { x: { time: false }, y: { distr: this.isLog ? 3 : 1, range } },
        axes: [
          { ...axis, grid: { show: false }, space: 70, size: 30,
            values: (_, ticks) => ticks.map((tick, i) => (tick === Math.round(tick) ? tick.toLocaleString("en")
              : data.axis === "step" ? "" : String(round(tick, 10))) + (i === ticks.length - 1 ? ` ${data.axis}` : "")) },
          { ...axis, grid: { stroke: () => colour("--grid"), width: 1 }, size: 62,
            values: (_, ticks) => tickLabels(ticks, data) },
        ],
        hooks: {
          drawClear: [(plot) => this.shadeGaps(plot)],
          setCursor: [(plot) => this.tell(plot.cursor.idx)],
          setScale: [(plot, name) => { if (name === "x") this.tellButtons(); }],
        },
      }, this.joined(), this.box);
      if (zoom) this.plot.setScale("x", { min: zoom.min, max: zoom.max });
      this.tellButtons();
      this.tell(null);
    }

    get isZoomed() {
      const { plot } = this;
      if (!plot?.data[0].length) return false;
      const [first, last] = [plot.data[0][0], plot.data[0].at(-1)];
      return plot.scales.x.min > first || plot.scales.x.max < last;
    }

    showAll() {
      const x = this.plot.data[0];
      this.plot.setScale("x", { min: x[0], max: x.at(-1) });
    }

    shadeGaps(plot) {
      plot.ctx.save();
      plot.ctx.fillStyle = this.colour("--bad-soft");
      for (const [first, last] of this.data.gaps) {
        const left = plot.valToPos(first, "x", true) - 2;
        const right = plot.valToPos(last, "x", true) + 2;
        plot.ctx.fillRect(left, plot.bbox.top, right - left, plot.bbox.height);
      }
      plot.ctx.restore();
    }

    // Show the value under the pointer, in place of the last value.
    tell(index) {
      const now = this.figure.querySelector("h3 .now");
      if (now) {
        this.last ??= now.textContent;
        now.textContent = index == null ? this.last : this.words(index);
      }
      this.keys.replaceChildren(...(this.laid.length ? [this.keyOf("this run", "--main", 2, index)] : []),
        ...this.laid.map((run, i) => this.keyOf(run.name, colourOf(others.indexOf(run)), 4 + 2 * i, index)));
    }

    words(index) {
      const { data, plot } = this;
      const parts = [formatPlace(plot.data[0][index], data)];
      [["", 1], ["held out ", 3]].forEach(([name, i]) => {
        const found = nearest(plot.data[i], index);
        if (found !== null) parts.push(name + format(plot.data[i][found], data));
      });
      return parts.join(" · ");
    }

    keyOf(name, colourName, i, index) {
      const key = own("span", "run-key");
      const swatch = own("i", "swatch");
      swatch.style.background = `var(${colourName})`;
      const values = this.plot?.data[i] ?? [];
      const found = nearest(values, index ?? values.length - 1);
      key.append(swatch, found === null ? name : `${name} ${format(values[found], this.data)}`);
      return key;
    }

    tellButtons() {
      const zoom = own("button", "", "show all");
      zoom.hidden = !this.isZoomed;
      zoom.onclick = () => this.showAll();
      const log = own("button", "", "log");
      log.setAttribute("aria-pressed", String(this.isLog));
      log.title = "logarithmic scale";
      log.hidden = this.range.low === undefined;
      log.onclick = () => {
        this.isLog = !this.isLog;
        this.make();
        this.buttons.lastChild.focus();
      };
      for (const button of [zoom, log]) button.type = "button";
      if (this.buttons.childElementCount && this.buttons.firstChild.hidden === zoom.hidden
        && this.buttons.lastChild.getAttribute("aria-pressed") === String(this.isLog)) return;
      this.buttons.replaceChildren(zoom, log);
    }

    listen() {
      this.box.addEventListener("pointermove", (event) => {
        if (event.pointerType === "mouse") return; // uPlot itself follows only the mouse
        const over = this.plot.over.getBoundingClientRect();
        this.plot.setCursor({ left: event.clientX - over.left, top: event.clientY - over.top });
      }, { passive: true });
      this.box.addEventListener("keydown", (event) => {
        const { plot } = this;
        const x = plot.data[0];
        const { min, max } = plot.scales.x;
        const index = plot.cursor.idx ?? x.length - 1;
        const zoomBy = (factor) => {
          const centre = x[index], low = centre - (centre - min) * factor;
          plot.setScale("x", { min: Math.max(x[0], low), max: Math.min(x.at(-1), low + (max - min) * factor) });
        };
        const move = (by) => {
          const to = Math.min(x.length - 1, Math.max(0, index + by));
          plot.setCursor({ left: plot.valToPos(x[to], "x"), top: plot.over.clientHeight / 2 });
        };
        const does = {
          ArrowLeft: () => move(-1), ArrowRight: () => move(1), "+": () => zoomBy(0.5),
          "-": () => zoomBy(2), Escape: () => this.showAll(),
        }[event.key];
        if (!does) return;
        event.preventDefault();
        does();
      });
    }

    // Put new numbers into the same chart; a zoom stays.
    refresh() {
      const wasZoomed = this.isZoomed;
      this.data = JSON.parse(this.figure.dataset.chart);
      this.last = undefined;
      this.plot.setData(this.joined(), !wasZoomed);
      if (wasZoomed) this.plot.redraw();
      this.tell(this.plot.cursor.idx);
    }
  }

  const addSmoothing = () => {
    const noisy = [...figures.values()].find((chart) => chart.data.noisy && chart.data.y.length > 2);
    const heading = noisy?.figure.closest("section")?.querySelector("h2");
    if (!heading || document.querySelector(".chart-tools")) return;
    const tools = own("div", "chart-tools");
    const label = own("label", "", "Smoothing ");
    const slider = own("input");
    Object.assign(slider, { type: "range", min: 0, max: 0.99, step: 0.01, value: weightOf(noisy.data) });
    slider.addEventListener("input", () => {
      smoothing = Number(slider.value);
      for (const chart of figures.values()) chart.plot.setData(chart.joined(), !chart.isZoomed);
    });
    label.append(slider);
    tools.append(label, own("span", "soft", "drag over a chart to zoom, double click for all of it"));
    heading.after(tools);
  };

  // Make the figures below `root` interactive, and put new numbers into those that already are.
  const draw = (root) => {
    for (const [figure, chart] of figures) {
      if (figure.isConnected) continue;
      chart.plot.destroy();
      figures.delete(figure);
    }
    for (const figure of root.querySelectorAll("figure[data-chart]")) {
      const chart = figures.get(figure);
      if (!chart) {
        figures.set(figure, new Live(figure));
      } else if (chart.text !== figure.dataset.chart) {
        chart.refresh();
      }
      figures.get(figure).text = figure.dataset.chart;
    }
    addSmoothing();
  };

  const lay = (runs) => {
    others = runs;
    for (const chart of figures.values()) chart.make();
  };

  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    for (const chart of figures.values()) chart.plot.redraw();
  });
  return { draw, lay, colourOf, own, tickLabels, valueRange };
})();
