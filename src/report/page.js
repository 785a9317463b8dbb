// Owns: drawing the report from the data that stands in the page.
// Keeps: nothing is computed here but places and spellings; every string of a record is set as text, never as markup;
// null is "not measured".
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const records = data.records;
  const root = document.documentElement;
  const NOTHING = "not measured";
  const REPORT_COLOURS = 6;

  // ---- words and numbers

  const JOINED = "\u00a0";  // the blank at which no line breaks: between a number and its unit

  const isNumber = (v) => typeof v === "number" && Number.isFinite(v);

  function decimal(v) {
    const size = Math.abs(v);
    if (v === 0) return "0";
    if (size >= 1e6) return Math.round(v).toLocaleString("en");
    if (size >= 100) return String(Math.round(v));
    if (size >= 10) return v.toFixed(1);
    if (size >= 1) return v.toFixed(2);
    return String(Number(v.toPrecision(3)));
  }

  function bytes(v) {
    const units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let unit = 0;
    while (v >= 1024 && unit + 1 < units.length) {
      v /= 1024;
      ++unit;
    }
    return (unit === 0 ? Math.round(v) : v.toFixed(unit > 2 ? 2 : 1)) + JOINED + units[unit];
  }

  // On axes, where round numbers stay short.
  const tick = (v) => v.toLocaleString("en", {maximumFractionDigits: 6});

  const percent = (v) => (v !== 0 && Math.abs(v) < .0005 ? "<0.1" : (v * 100).toFixed(1)) + JOINED + "%";

  function seconds(v) {
    if (v < 120) return decimal(v) + JOINED + "s";
    return Math.floor(v / 60) + " min " + Math.round(v % 60) + " s";
  }

  const isFraction = (name) => name.endsWith("_fraction") || name.endsWith("_rate");

  function figureText(name, v) {
    if (!isNumber(v)) return NOTHING;
    const unit = data.figures[name].unit;
    if (isFraction(name)) return percent(v);
    if (unit === "bytes") return bytes(v);
    if (unit === "bytes/s") return bytes(v) + "/s";
    return unit === "1" ? decimal(v) : decimal(v) + JOINED + unit;
  }

  function totalText(name, v) {
    if (!isNumber(v)) return NOTHING;
    if (name.endsWith("_ns")) return v >= 1e9 ? seconds(v / 1e9) : decimal(v / 1e6) + JOINED + "ms";
    if (name.endsWith("_bytes")) return bytes(v);
    return v.toLocaleString("en");
  }

  const words = (name) => name.replaceAll("_", " ");
  const label = (r) => records.length > 1 ? r.letter + ": " + r.name : r.name;

  // ---- elements

  // make("div.card", "text" or [children], {attributes})
  function make(kind, content, attributes) {
    const [tag, ...classes] = kind.split(".");
    const e = document.createElement(tag);
    if (classes.length > 0) e.className = classes.join(" ");
    if (Array.isArray(content)) e.append(...content.filter((c) => c !== null));
    else if (content !== undefined && content !== null) e.textContent = content;
    for (const [name, value] of Object.entries(attributes || {})) e.setAttribute(name, value);
    return e;
  }

  function swatch(colour, kind) {
    const e = make("span.swatch" + (kind ? "." + kind : ""));
    e.style.setProperty("--of", "var(--" + colour + ")");
    return e;
  }

  function letterMark(i) {
    const e = make("span.letter", records[i].letter);
    e.style.setProperty("--of", "var(--" + recordColour(i) + ")");
    return e;
  }

  const recordColour = (i) => "r" + (i % REPORT_COLOURS);

  // ---- colours, as the style sheet has them now

  let colours = {};
  function readColours() {
    const style = getComputedStyle(root);
    const cache = {};
    colours = new Proxy({}, {
      get: (_, name) => cache[name] ??= style.getPropertyValue("--" + name).trim() || "#888",
    });
  }

  function withAlpha(colour, alpha) {
    return echarts.color.modifyAlpha(colour, alpha);
  }

  // ---- what can be chosen

  const state = {
    phase: records.some((r) => r.decode) || records.length === 0 ? "decode" : "prefill",
    record: 0,
    table: "uses",
    experts: 0,
  };

  function choice(what, options, current, choose) {
    const buttons = options.map(([value, text]) => {
      const b = make("button.pick", text, {type: "button", "aria-pressed": String(value === current)});
      b.addEventListener("click", () => {
        for (const other of buttons) other.setAttribute("aria-pressed", String(other === b));
        choose(value);
        drawAll();
      });
      return b;
    });
    return make("div.choice", [make("span.what", what), ...buttons], {role: "group", "aria-label": what});
  }

  // ---- one plot

  const plots = [];

  // A card with a title, a legend, a plot and a sentence. `build` returns {option, legend, how, height}, or a text that
  // says why there is nothing to draw.
  function plotCard(id, title, wide, build, extra) {
    const head = make("div.head", [make("h2", title)]);
    if (extra) head.append(extra);
    const legend = make("div.legend");
    const body = make("div.body");
    const how = make("p.how");
    const card = make("section.card" + (wide ? ".wide" : ""), [head, legend, body, how], {id, "aria-label": title});
    const plot = {id, title, build, legend, body, how, chart: null, hidden: new Set()};
    plots.push(plot);
    return card;
  }

  function clearPlot(plot) {
    if (plot.chart) plot.chart.dispose();
    plot.chart = null;
    plot.body.replaceChildren();
    plot.legend.replaceChildren();
  }

  function draw(plot) {
    clearPlot(plot);
    const made = plot.build();
    if (typeof made === "string") {
      plot.body.append(make("p.absent-plot", made));
      plot.how.textContent = "";
      return;
    }
    const box = make("div.plot", null, {role: "img", "aria-label": plot.title + ". " + made.how});
    if (made.height) box.style.height = made.height + "px";
    plot.body.append(box);
    plot.how.textContent = made.how;
    plot.chart = echarts.init(box, null, {renderer: "canvas"});
    const base = {
      animation: false,
      textStyle: {fontFamily: getComputedStyle(document.body).fontFamily, color: colours.ink},
      legend: {show: false},
    };
    plot.chart.setOption(Object.assign(base, made.option));
    for (const entry of made.legend || []) {
      const key = entry.series.join();  // the text may hold numbers of a phase
      const b = make("button", [swatch(entry.colour, entry.kind), make("span", entry.text)],
                     {type: "button", "aria-pressed": "true", title: entry.help || "show or hide"});
      const show = () => {
        const off = plot.hidden.has(key);
        b.setAttribute("aria-pressed", String(!off));
        for (const name of entry.series)
          plot.chart.dispatchAction({type: off ? "legendUnSelect" : "legendSelect", name});
      };
      b.addEventListener("click", () => {
        if (!plot.hidden.delete(key)) plot.hidden.add(key);
        show();
      });
      if (plot.hidden.has(key)) show();
      plot.legend.append(b);
    }
  }

  function drawAll() {
    readColours();
    for (const plot of plots) draw(plot);
    root.dataset.height = String(Math.ceil(root.getBoundingClientRect().height));
  }

  // ---- what plots have in common

  const narrow = () => window.innerWidth < 560;

  function grid(more) {
    return Object.assign({left: 6, right: 26, top: 34, bottom: 26, containLabel: true}, more);
  }

  function axis(name, more) {
    return Object.assign({
      name,
      nameTextStyle: {color: colours.soft, fontSize: 12},
      axisLabel: {color: colours.soft, fontSize: 12, hideOverlap: true},
      axisLine: {show: false},
      axisTick: {show: false},
      splitLine: {lineStyle: {color: colours.grid}},
    }, more);
  }

  function xAxis(name, more) {
    return axis(name, Object.assign({
      type: "value", nameLocation: "middle", nameGap: 28, axisLine: {show: true, lineStyle: {color: colours.line}},
      splitLine: {show: false}, min: "dataMin", max: "dataMax",
    }, more));
  }

  function yAxis(name, more) {
    return axis(name, Object.assign(
      {type: "value", nameLocation: "end", nameGap: 12, min: 0,
       nameTextStyle: {color: colours.soft, fontSize: 12, align: "left"}}, more));
  }

  // Tooltips are elements, not markup.
  function tip(title, lines) {
    return make("div.tip", [
      make("div.title", title),
      ...lines.map(([colour, what, value]) => make("div.line", [
        make("span", [colour ? swatch(colour) : null, make("span", what)]), make("span", value)])),
    ]);
  }

  function tooltip(formatter, more) {
    return Object.assign({
      trigger: "axis", confine: true, formatter, backgroundColor: colours.card, borderColor: colours.line,
      textStyle: {color: colours.ink}, axisPointer: {type: "line", lineStyle: {color: colours.soft, type: "dashed"}},
      appendTo: undefined,
    }, more);
  }

  const line = (name, points, colour, more) => Object.assign({
    name, type: "line", data: points, showSymbol: points.length < 2, symbolSize: 7, connectNulls: false,
    lineStyle: {width: 2, color: colour}, itemStyle: {color: colour}, emphasis: {disabled: true},
  }, more);

  // The band between two lists, as two stacked lines of which only the upper is filled.
  function band(name, xs, low, high, colour, alpha) {
    const both = {type: "line", stack: name, symbol: "none", lineStyle: {width: 0}, emphasis: {disabled: true},
                  silent: true, tooltip: {show: false}};
    return [
      {...both, name: name, data: xs.map((x, i) => [x, low[i]])},
      {...both, name: name, data: xs.map((x, i) => [x, isNumber(high[i]) && isNumber(low[i]) ? high[i] - low[i] : null]),
       areaStyle: {color: withAlpha(colour, alpha)}},
    ];
  }

  // What the record calls a phase; what all of them do, where it is one for all.
  const phaseOf = (r, phase) => r.phases[phase];
  const phaseOfAll = (phase) => records.length > 0 && records.every((r) => r.phases[phase] === records[0].phases[phase])
    ? records[0].phases[phase] : phase;
  const axisOf = (phase) => phase === "decode" ? (phaseOfAll(phase) === phase ? "decoded token" : "token")
    : (phaseOfAll(phase) === phase ? "prefill batch" : "batch");

  const unitOfRow = (phase) => phase === "decode" ? "token" : "batch";

  function rowText(series, i, phase) {
    const first = series.first_row[i];
    const last = Math.min(series.rows, first + series.rows_per_bin - 1);
    return unitOfRow(phase) + (last > first ? "s " + first + " to " + last : " " + first);
  }

  function binSentence(list, phase) {
    const binned = list.filter((s) => s.rows_per_bin > 1);
    if (binned.length === 0) return "";
    return " The run is long: each point is what " + binned[0].rows_per_bin + " " + unitOfRow(phase) +
      "s in a row come to together.";
  }

  // Records with rows in the chosen phase: [[number, record, phase]].
  const chosen = () => records.map((r, i) => [i, r, r[state.phase]]).filter(([, , p]) => p);
  const noRows = () => "No " + phaseOfAll(state.phase) + " rows in " + (records.length > 1 ? "these records." : "this record.");

  // The place in a list of ordered numbers that is nearest to a value.
  function nearest(list, value) {
    let best = 0;
    for (let i = 1; i < list.length; ++i) {
      if (Math.abs(list[i] - value) < Math.abs(list[best] - value)) best = i;
    }
    return best;
  }

  // ---- the plots

  function speedPlot() {
    const list = chosen();
    if (list.length === 0) return noRows();
    const known = list.filter(([, , p]) => p.series && p.series.tokens_per_second);
    if (known.length === 0) return "The time of " + phaseOfAll(state.phase) + " rows was not measured.";
    const series = [];
    const legend = [];
    const alone = known.length === 1;
    for (const [i, r, p] of known) {
      const s = p.series;
      const colour = colours[recordColour(i)];
      const xs = s.first_row;
      const each = r.letter + " each";
      const median = r.letter + " median";
      if (s.tokens_per_second_low)
        series.push(...band(r.letter + " band", xs, s.tokens_per_second_low, s.tokens_per_second_high, colour,
                            alone ? .16 : .08));
      series.push(line(each, xs.map((x, k) => [x, s.tokens_per_second[k]]), withAlpha(colour, alone ? .5 : .3),
                       {lineStyle: {width: 1, color: withAlpha(colour, alone ? .55 : .3)}, z: 2}));
      series.push(line(median, xs.map((x, k) => [x, s.speed_median[k]]), colour,
                       {lineStyle: {width: 2.5, color: colour}, z: 3}));
      const prefix = alone ? "" : r.letter + ": ";
      if (alone) {
        legend.push({text: s.rows_per_bin > 1 ? s.rows_per_bin + " " + unitOfRow(state.phase) + "s each" : "each " + unitOfRow(state.phase), colour: recordColour(i),
                     series: [each]});
        if (s.tokens_per_second_low)
          legend.push({text: "slowest to fastest", colour: recordColour(i), series: [r.letter + " band"]});
        legend.push({text: "moving median", colour: recordColour(i), kind: "line", series: [median]});
      } else {
        legend.push({text: prefix + r.name, colour: recordColour(i), series: [each, median, r.letter + " band"]});
      }
    }
    const windows = [...new Set(known.map(([, , p]) => p.series.median_window))].join(" or ");
    return {
      legend,
      how: "Higher is faster. The bold line is the moving median of " + windows + " " + unitOfRow(state.phase) +
        "s, the thin one " + (known.some(([, , p]) => p.series.rows_per_bin > 1) ? "the measured points" : "each " +
        unitOfRow(state.phase)) + "." + binSentence(known.map(([, , p]) => p.series), state.phase) +
        (known.some(([, , p]) => p.series.tokens_per_second_low) ? " The shade reaches from the slowest to the fastest in it." : ""),
      option: {
        grid: grid(),
        xAxis: xAxis(axisOf(state.phase), {minInterval: 1}),
        yAxis: yAxis("tok/s"),
        series,
        tooltip: tooltip((at) => {
          const x = at[0].axisValue;
          const lines = [];
          let title = "";
          for (const [i, r, p] of known) {
            const s = p.series;
            if (x > s.rows) continue;
            const k = nearest(s.first_row, x);
            title = title || rowText(s, k, state.phase);
            const prefix = alone ? "" : r.letter + ", ";
            lines.push([recordColour(i), prefix + "speed", isNumber(s.tokens_per_second[k]) ? decimal(s.tokens_per_second[k]) + " tok/s" : NOTHING]);
            if (s.tokens_per_second_low && isNumber(s.tokens_per_second_low[k]))
              lines.push([null, prefix + "slowest to fastest", decimal(s.tokens_per_second_low[k]) + " to " + decimal(s.tokens_per_second_high[k])]);
            lines.push([null, prefix + "moving median", isNumber(s.speed_median[k]) ? decimal(s.speed_median[k]) + " tok/s" : NOTHING]);
            if (alone && s.start_ns && isNumber(s.start_ns[k])) lines.push([null, "began after", seconds(s.start_ns[k] / 1e9)]);
          }
          return tip(title, lines);
        }),
      },
    };
  }

  function partsOf(p) {
    return p.parts.filter((part) => isNumber(part.ms_per_token));
  }

  function partHelp(name) {
    const c = data.columns[name + "_ns"];
    return c ? c.help : "";
  }

  // Computing first, then standing still, then the rest: neighbours in the picture belong together.
  const partLabel = {};
  for (const r of records) {
    for (const phase of ["prefill", "decode"]) {
      for (const part of r[phase] ? r[phase].parts : []) partLabel[part.name] = part.label;
    }
  }
  const PART_ORDER = ["dense", "router", "shared", "routed", "wait_read", "wait_join", "wait_late", "wait_lock", "convert",
                      "manage", "sample", "detokenise", "output", "draft", "record", "overhead"];

  const partLegend = (names) => names.map((name) =>
    ({text: partLabel[name], colour: "p-" + name, series: [name], help: partHelp(name)}));

  function partsPlot() {
    const r = records[state.record];
    const p = r[state.phase];
    if (!p) return noRows();
    const s = p.series;
    const names = PART_ORDER.filter((name) => s && s.parts_ms[name]);
    if (names.length === 0) return "Where the time goes was not measured.";
    const xs = s.first_row;
    return {
      height: 320,
      legend: partLegend(names),
      how: "The height is the time of one token; each colour is where it went. Red and orange is standing still for reads, "
        + "which a larger cache or a faster drive would shorten; blue is arithmetic." + binSentence([s], state.phase),
      option: {
        grid: grid(),
        xAxis: xAxis(axisOf(state.phase), {minInterval: 1}),
        yAxis: yAxis("ms per token"),
        series: names.map((name) => line(name, xs.map((x, k) => [x, s.parts_ms[name][k]]), colours["p-" + name], {
          stack: "parts", step: xs.length < 60 ? "middle" : false, symbol: xs.length < 2 ? "circle" : "none",
          lineStyle: {width: 0}, areaStyle: {color: colours["p-" + name], opacity: 1},
        })),
        tooltip: tooltip((at) => {
          const k = nearest(xs, at[0].axisValue);
          const lines = names.filter((name) => isNumber(s.parts_ms[name][k]))
            .map((name) => ["p-" + name, partLabel[name], decimal(s.parts_ms[name][k]) + " ms"]);
          lines.push([null, "token", isNumber(s.ms_per_token && s.ms_per_token[k]) ? decimal(s.ms_per_token[k]) + " ms" : NOTHING]);
          return tip(rowText(s, k, state.phase), lines);
        }),
      },
    };
  }

  function totalPlot() {
    const list = chosen().filter(([, , p]) => partsOf(p).length > 0);
    if (list.length === 0) return chosen().length === 0 ? noRows() : "Where the time goes was not measured.";
    const names = PART_ORDER.filter((name) => list.some(([, , p]) => partsOf(p).some((part) => part.name === name)));
    const value = (p, name) => {
      const part = p.parts.find((x) => x.name === name);
      return part ? part.ms_per_token : null;
    };
    return {
      height: 96 + 46 * list.length,
      legend: partLegend(names),
      how: "One average token of all rows (" + phaseOfAll(state.phase) + "), cut into its parts. " + sharesText(list[0], names),
      option: {
        grid: grid({top: 12, bottom: 30}),
        xAxis: xAxis("ms per token", {min: 0, max: undefined, splitLine: {lineStyle: {color: colours.grid}}}),
        yAxis: {type: "category", inverse: true, data: list.map(([, r]) => records.length > 1 ? r.letter : ""),
                axisLine: {show: false}, axisTick: {show: false}, axisLabel: {color: colours.ink, fontWeight: 600}},
        series: names.map((name) => ({
          name, type: "bar", stack: "token", barMaxWidth: 34, data: list.map(([, , p]) => value(p, name)),
          itemStyle: {color: colours["p-" + name]}, emphasis: {disabled: true},
        })),
        tooltip: tooltip((at) => {
          const [, r, p] = list[at[0].dataIndex];
          const lines = PART_ORDER.map((name) => p.parts.find((x) => x.name === name))
            .filter((part) => part && isNumber(part.ms_per_token))
            .map((part) => ["p-" + part.name, part.label, decimal(part.ms_per_token) + " ms, " + percent(part.share)]);
          return tip(label(r), lines);
        }, {axisPointer: {type: "shadow", shadowStyle: {color: withAlpha(colours.soft, .1)}}}),
      },
    };
  }

  // "routed 42 %, wait read 31 %": the largest parts, in words.
  function sharesText([, r, p], names) {
    const parts = partsOf(p).filter((x) => isNumber(x.share)).sort((a, b) => b.share - a.share).slice(0, 3);
    if (parts.length === 0) return "";
    return "Most of it" + (records.length > 1 ? " in " + r.letter : "") + ": " +
      parts.map((x) => x.label + " " + percent(x.share)).join(", ") + ".";
  }

  function layerName(r, i) {
    return r.layer_numbers && i < r.layer_numbers.length ? String(r.layer_numbers[i]) : String(i);
  }

  function layersPlot() {
    const list = chosen();
    if (list.length === 0) return noRows();
    const known = list.filter(([, , p]) => p.layers);
    if (known.length === 0) return "Nothing was recorded by layer.";
    const most = known.reduce((a, b) => b[2].layers.wait_ms.length > a[2].layers.wait_ms.length ? b : a);
    const names = most[2].layers.wait_ms.map((_, i) => layerName(most[1], i));
    return {
      legend: known.length > 1
        ? known.map(([i, r]) => ({text: label(r), colour: recordColour(i), series: [r.letter]})) : [],
      how: "How long a token stands still in each layer until its experts are there. A few high bars are layers whose "
        + "experts the cache does not hold; equal bars are a cache that is too small, or a slow drive.",
      option: {
        grid: grid(),
        xAxis: xAxis("layer", {type: "category", data: names, min: undefined, max: undefined}),
        yAxis: yAxis("ms per token"),
        series: known.map(([i, r, p]) => ({
          name: r.letter, type: "bar", data: p.layers.wait_ms, itemStyle: {color: colours[recordColour(i)]},
          emphasis: {disabled: true}, barMaxWidth: 28, large: false,
        })),
        tooltip: tooltip((at) => {
          const k = at[0].dataIndex;
          const lines = [];
          for (const [i, r, p] of known) {
            const l = p.layers;
            if (k >= l.wait_ms.length) continue;
            const prefix = known.length > 1 ? r.letter + ", " : "";
            lines.push([recordColour(i), prefix + "wait", isNumber(l.wait_ms[k]) ? decimal(l.wait_ms[k]) + " ms" : NOTHING]);
            lines.push([null, prefix + "experts' arithmetic", isNumber(l.routed_ms[k]) ? decimal(l.routed_ms[k]) + " ms" : NOTHING]);
            lines.push([null, prefix + "hits", isNumber(l.hit_rate[k]) ? percent(l.hit_rate[k]) : NOTHING]);
          }
          return tip("layer " + names[k], lines);
        }, {axisPointer: {type: "shadow", shadowStyle: {color: withAlpha(colours.soft, .1)}}}),
      },
    };
  }

  function cachePlot() {
    const list = chosen().filter(([, , p]) => p.series && (p.series.hit_rate || p.series.cache_resident));
    if (list.length === 0) return chosen().length === 0 ? noRows() : "What the cache held was not measured.";
    const series = [];
    const legend = [];
    let resident = false;
    for (const [i, r, p] of list) {
      const s = p.series;
      const xs = s.first_row;
      const colour = colours[recordColour(i)];
      const prefix = list.length > 1 ? r.letter + ": " : "";
      if (s.hit_rate_low) series.push(...band(r.letter + " hits", xs, s.hit_rate_low, s.hit_rate_high, colour, .12));
      if (s.hit_rate) {
        series.push(line(r.letter + " hits", xs.map((x, k) => [x, s.hit_rate[k]]), colour));
        legend.push({text: prefix + "hit rate", colour: recordColour(i), kind: "line", series: [r.letter + " hits"]});
      }
      if (s.cache_resident) {
        resident = true;
        series.push(line(r.letter + " resident", xs.map((x, k) => [x, s.cache_resident[k]]), colour,
                         {yAxisIndex: 1, lineStyle: {width: 2, type: "dashed", color: colour}}));
        legend.push({text: prefix + "experts held", colour: recordColour(i), kind: "line.dashed",
                     series: [r.letter + " resident"]});
      }
    }
    const counts = list.flatMap(([, , p]) => p.series.cache_slots || p.series.cache_resident || []).filter(isNumber);
    return {
      legend,
      how: "The hit rate is the share of experts that were there when a token needed them. It climbs while the cache fills "
        + "(dashed) and then shows what this size is worth." + binSentence(list.map(([, , p]) => p.series), state.phase),
      option: {
        grid: grid(),
        xAxis: xAxis(axisOf(state.phase), {minInterval: 1}),
        yAxis: [
          yAxis("hit rate", {max: 1, axisLabel: {color: colours.soft, fontSize: 12, formatter: (v) => Math.round(v * 100) + " %"}}),
          yAxis("experts", {show: resident, max: counts.length > 0 ? counts.reduce((a, b) => Math.max(a, b)) : undefined,
                splitLine: {show: false}, minInterval: 1,
                nameTextStyle: {color: colours.soft, fontSize: 12, align: "right"}}),
        ],
        series,
        tooltip: tooltip((at) => {
          const x = at[0].axisValue;
          const lines = [];
          let title = "";
          for (const [i, r, p] of list) {
            const s = p.series;
            if (x > s.rows) continue;
            const k = nearest(s.first_row, x);
            title = title || rowText(s, k, state.phase);
            const prefix = list.length > 1 ? r.letter + ", " : "";
            lines.push([recordColour(i), prefix + "hit rate", s.hit_rate && isNumber(s.hit_rate[k]) ? percent(s.hit_rate[k]) : NOTHING]);
            if (s.cache_resident && isNumber(s.cache_resident[k]))
              lines.push([null, prefix + "experts held", s.cache_resident[k].toLocaleString("en") +
                          (s.cache_slots && isNumber(s.cache_slots[k]) ? " of " + s.cache_slots[k].toLocaleString("en") + " slots" : "")]);
            if (s.cache_bytes && isNumber(s.cache_bytes[k])) lines.push([null, prefix + "memory of the slots", bytes(s.cache_bytes[k])]);
          }
          return tip(title, lines);
        }),
      },
    };
  }

  function latencyPlot() {
    const list = chosen().filter(([, , p]) => p.latency);
    if (list.length === 0) return chosen().length === 0 ? noRows() : "The latency of reads was not measured (or nothing was read).";
    const marks = [["read_p50_ms", "p50", "right", [4, 4]], ["read_p95_ms", "p95", "right", [4, 10]],
                   ["read_p99_ms", "p99", "top", [0, 0]]];
    return {
      legend: list.map(([i, r, p]) => ({text: label(r) + " (" + p.latency.reads.toLocaleString("en") + " reads)",
                                        colour: recordColour(i), kind: "line", series: [r.letter]})),
      how: "For every time, the share of reads that were ready by then, from issue to ready. Steep is a steady drive; a long "
        + "shoulder on the right is the few slow reads that tokens wait for. Percentiles may lie up to a sixteenth too high.",
      option: {
        grid: grid({right: 26}),
        xAxis: xAxis("ms (each step is ten times the one before)", {type: "log", min: undefined, max: undefined,
                     splitLine: {show: true, lineStyle: {color: colours.grid}},
                     axisLabel: {color: colours.soft, fontSize: 12, hideOverlap: true, formatter: tick}}),
        yAxis: yAxis("share of reads", {max: 1, axisLabel: {color: colours.soft, fontSize: 12, formatter: (v) => Math.round(v * 100) + " %"}}),
        series: list.map(([i, r, p]) => line(r.letter, p.latency.curve.map(([ms, share]) => [Math.max(ms, 1e-6), share]),
          colours[recordColour(i)], {
            markPoint: {
              symbol: "circle", symbolSize: 9, silent: true, itemStyle: {color: colours.card, borderColor: colours[recordColour(i)], borderWidth: 2},
              label: {color: colours.ink, fontSize: 12, formatter: (m) => m.name},
              data: marks.filter(([name]) => isNumber(p.figures[name])).map(([name, short, position, offset]) => ({
                name: short + "  " + figureText(name, p.figures[name]),
                label: {show: list.length === 1, position, offset},
                coord: [Math.max(p.figures[name], 1e-6), Number(short.slice(1)) / 100],
              })),
            },
          })),
        tooltip: tooltip((at) => {
          const lines = [];
          for (const [i, r, p] of list) {
            const here = at.find((point) => point.seriesName === r.letter);
            const prefix = list.length > 1 ? r.letter + ", " : "";
            if (here) lines.push([recordColour(i), prefix + "ready by then", percent(here.value[1])]);
            for (const [name, short] of marks) lines.push([null, prefix + short, figureText(name, p.figures[name])]);
            lines.push([null, prefix + "longest", decimal(p.latency.largest_ms) + " ms"]);
          }
          return tip("within " + decimal(at[0].axisValue) + " ms", lines);
        }),
      },
    };
  }

  function heatPlot() {
    const r = records[state.record];
    if (r.experts.length === 0) return "How often each expert ran was not recorded.";
    const e = r.experts[Math.min(state.experts, r.experts.length - 1)];
    if (e.too_many) return "There are too many experts to draw.";
    const table = e[state.table];
    if (!table) return "The " + state.table + " of experts were not recorded.";
    const cells = [];
    let most = 0;
    let wide = 0;
    table.forEach((row, layer) => {
      wide = Math.max(wide, row.length);
      row.forEach((n, expert) => {
        most = Math.max(most, n);
        cells.push([expert, layer, n]);
      });
    });
    const names = table.map((_, i) => layerName(r, i));
    const what = state.table === "uses" ? "times run" : "times read";
    return {
      height: Math.min(760, Math.max(200, 110 + table.length * (table.length > 24 ? 12 : 18))),
      how: (state.table === "uses"
        ? "Each cell is one expert; the darker in light mode, or brighter in dark mode, the more often the router chose it. "
          + "Uneven rows are good for a cache: few experts do most of the work. "
        : "Each cell is one expert; the stronger, the more often it had to be read because it was not in the cache. ")
        + "Most: " + most.toLocaleString("en") + " " + what + ".",
      option: {
        grid: grid({top: 30, bottom: 66}),
        xAxis: xAxis("expert", {type: "category", data: Array.from({length: wide}, (_, i) => String(i)), min: undefined, max: undefined}),
        yAxis: {type: "category", inverse: true, data: names, name: "layer", nameLocation: "start", nameGap: 8,
                nameTextStyle: {color: colours.soft, fontSize: 12, align: "left", padding: [0, 0, 0, -16]},
                axisLine: {show: false}, axisTick: {show: false}, axisLabel: {color: colours.soft, fontSize: 11}},
        visualMap: {min: 0, max: Math.max(most, 1), calculable: false, orient: "horizontal", left: "center", bottom: 0,
                    itemWidth: 12, itemHeight: narrow() ? 120 : 200, text: [most.toLocaleString("en"), "0"],
                    textStyle: {color: colours.soft}, inRange: {color: [colours.h0, colours.h1, colours.h2, colours.h3, colours.h4]}},
        series: [{name: what, type: "heatmap", data: cells, progressive: 20000,
                  itemStyle: {borderWidth: wide > 96 || narrow() ? 0 : 1, borderColor: colours.card},
                  emphasis: {itemStyle: {borderColor: colours.ink, borderWidth: 1}}}],
        tooltip: tooltip((at) => {
          const [expert, layer] = at.value;
          const lines = [];
          for (const [name, text] of [["uses", "times run"], ["misses", "times read"]]) {
            const n = e[name] && e[name][layer] ? e[name][layer][expert] : null;
            lines.push([null, text, isNumber(n) ? n.toLocaleString("en") : NOTHING]);
          }
          return tip("layer " + names[layer] + ", expert " + expert, lines);
        }, {trigger: "item"}),
      },
    };
  }

  const MEMORY = [["rss_bytes", "resident", "r0"], ["anon_bytes", "anonymous", "r2"], ["file_bytes", "of files", "r1"],
                  ["swap_bytes", "swapped out", "r4"]];

  // Steps of a memory axis that are whole in binary units.
  function byteSteps(most) {
    let step = 1;
    while (most / step > 5) step *= 2;
    return step;
  }

  function memoryPlot() {
    const r = records[state.record];
    const m = r.memory;
    if (!m) return "The memory of the process was not measured.";
    const xs = m.start_ns.map((t) => t / 1e9);
    const shown = MEMORY.filter(([name]) => m[name]);
    const most = shown.reduce((a, [name]) => m[name].reduce((b, v) => Math.max(b, v || 0), a), 1);
    const step = byteSteps(most);
    return {
      legend: shown.map(([name, text, colour]) => ({text, colour, kind: "line", series: [text], help: data.columns[name].help})),
      how: "The process over the whole run. Anonymous is the cache, dense weights of our own and llama.cpp's buffers; of files "
        + "is the page cache, which memory pressure may drop." +
        (m.samples_per_bin > 1 ? " Each point is the largest of " + m.samples_per_bin + " samples." : ""),
      option: {
        grid: grid(),
        xAxis: xAxis("seconds since the record began", {min: 0, axisLabel: {color: colours.soft, fontSize: 12, hideOverlap: true, formatter: tick}}),
        yAxis: yAxis("memory", {interval: step, max: Math.ceil(most / step) * step, axisLabel: {color: colours.soft, fontSize: 12, formatter: (v) => bytes(v)}}),
        series: shown.map(([name, text, colour]) => line(text, xs.map((x, k) => [x, m[name][k]]), colours[colour], {connectNulls: true})),
        tooltip: tooltip((at) => {
          const k = nearest(xs, at[0].axisValue);
          const lines = shown.map(([name, text, colour]) => [colour, text, isNumber(m[name][k]) ? bytes(m[name][k]) : NOTHING]);
          if (m.mem_available_bytes && isNumber(m.mem_available_bytes[k]))
            lines.push([null, "available on the machine", bytes(m.mem_available_bytes[k])]);
          return tip("after " + seconds(xs[k]), lines);
        }),
      },
    };
  }

  // Dots with whiskers, one per record; used for speeds and for ratios.
  function whiskers(entries, unit, zero) {
    const ends = entries.flatMap((e) => [e.low, e.median, e.high, zero]).filter(isNumber);
    const [least, most] = [Math.min(...ends), Math.max(...ends)];
    const room = (most - least) * .08 || most * .05;
    return {
      grid: grid({left: 10, top: 8, bottom: 30, right: 20}),
      xAxis: xAxis(unit, {min: least - room, max: most + room,
             axisLabel: {color: colours.soft, fontSize: 12, hideOverlap: true, showMinLabel: false, showMaxLabel: false, formatter: tick},
             splitLine: {show: true, lineStyle: {color: colours.grid}}}),
      yAxis: {type: "category", inverse: true, data: entries.map((e) => e.name), axisLine: {show: false}, axisTick: {show: false},
              axisLabel: {color: colours.ink, fontWeight: 600}},
      series: [
        {
          type: "custom", silent: true, clip: true, z: 3,
          data: entries.map((e, k) => [e.low, e.high, k]).filter(([low]) => isNumber(low)),
          encode: {x: [0, 1], y: 2},
          renderItem: (_, api) => {
            const colour = colours[entries[api.value(2)].colour];
            const [x1, y] = api.coord([api.value(0), api.value(2)]);
            const [x2] = api.coord([api.value(1), api.value(2)]);
            const stroke = (shape) => ({type: "line", shape, style: {stroke: colour, lineWidth: 2.5}});
            return {type: "group", children: [
              stroke({x1, y1: y, x2, y2: y}), stroke({x1, y1: y - 7, x2: x1, y2: y + 7}), stroke({x1: x2, y1: y - 7, x2, y2: y + 7})]};
          },
        },
        {
          type: "scatter", symbolSize: 13, z: 4,
          data: entries.map((e, k) => ({value: [e.median, k], itemStyle: {color: colours[e.colour], opacity: 1}})),
          markLine: zero === undefined ? undefined : {
            silent: true, symbol: "none", data: [{xAxis: zero}], lineStyle: {color: colours.ink, type: "dashed"},
            label: {show: false}},
        },
      ],
      tooltip: tooltip((at) => {
        const e = entries[at.value[1]];
        return tip(e.title, [[e.colour, "median", decimal(e.median) + e.unit],
                             [null, "95 % interval", isNumber(e.low) ? decimal(e.low) + " to " + decimal(e.high) + e.unit : "too few tokens"]]);
      }, {trigger: "item"}),
    };
  }

  function bootstrapSentence() {
    const blocks = [...new Set(records.map((r) => r.speed.block).filter((b) => b > 0))];
    return "Neighbouring tokens are alike, so blocks of " + (blocks.join(" or ") || "a few") + " tokens are drawn "
      + data.resamples.toLocaleString("en") + " times (moving-block bootstrap). The interval knows the spread within a run, "
      + "not what changes from run to run.";
  }

  function speedsPlot() {
    const entries = records.map((r, i) => ({r, i})).filter(({r}) => r.speed.tokens_per_second).map(({r, i}) => ({
      name: r.letter, title: label(r), unit: " tok/s", colour: recordColour(i), ...r.speed.tokens_per_second}));
    if (entries.length === 0) return "No record has decoded tokens with a known time.";
    return {
      height: 70 + 44 * entries.length,
      legend: records.map((r, i) => ({text: label(r), colour: recordColour(i), series: []})),
      how: "Median speed of a decoded token, with its 95\u00a0% interval. " + bootstrapSentence(),
      option: whiskers(entries, "tok/s"),
    };
  }

  function ratioPlot() {
    const entries = data.comparison.ratios.filter((r) => r.tokens_per_second).map((r) => ({
      name: records[r.of].letter + " / " + records[r.over].letter,
      title: "speed of " + records[r.of].letter + " over that of " + records[r.over].letter,
      unit: "", colour: recordColour(r.of), ...r.tokens_per_second}));
    if (entries.length === 0) return "There is nothing to compare: no decoded tokens with a known time.";
    return {
      height: 70 + 44 * entries.length,
      how: "How many times as fast as " + records[0].letter + " the others are (their median speed over that of "
        + records[0].letter + "). Right of the dashed line is faster; an interval that crosses the line shows no difference.",
      option: whiskers(entries, "times as fast as " + records[0].letter, 1),
    };
  }

  // ---- a race: arms against a baseline, in cells of memory

  // One group of bars per cell, one bar per arm, with the interval of its median.
  function racePlot(race) {
    const phase = state.phase;
    const most = race.cells.flatMap((c) => c.entries.map((e) => e[phase].median)).filter(isNumber);
    if (most.length === 0) return "No speed of " + phase + " was measured in this race.";
    const cells = race.cells.map((c) => c.ram_bytes === null ? c.name : bytes(c.ram_bytes));
    const entry = (c, arm) => c.entries.find((e) => e.arm === arm);
    const bars = race.arms.map((a, arm) => ({
      name: String(arm), type: "bar", barMaxWidth: 40, emphasis: {disabled: true},
      itemStyle: {color: colours[recordColour(arm)]},
      data: race.cells.map((c) => {
        const m = entry(c, arm) ? entry(c, arm)[phase] : null;
        return {value: m ? m.median : null, itemStyle: m && m.counts ? {} : {opacity: .3}};
      }),
    }));
    // An error bar stands in the middle of its bar, which is found by drawing it into the same layout.
    const whisker = (a, arm) => ({
      name: String(arm), type: "custom", silent: true, z: 5, encode: {x: 0, y: [1, 2]},
      data: race.cells.map((c, k) => [k, ...(entry(c, arm) && entry(c, arm)[phase].interval || [null, null])]).filter((d) => isNumber(d[1])),
      renderItem: (parameters, api) => {
        const layout = api.barLayout({barMaxWidth: 40, count: race.arms.length})[arm];
        const x = api.coord([api.value(0), 0])[0] + layout.offsetCenter;
        const [low, high] = [api.coord([0, api.value(1)])[1], api.coord([0, api.value(2)])[1]];
        const stroke = (shape) => ({type: "line", shape, style: {stroke: colours.ink, lineWidth: 1.5}});
        return {type: "group", children: [stroke({x1: x, y1: low, x2: x, y2: high}),
          stroke({x1: x - 5, y1: low, x2: x + 5, y2: low}), stroke({x1: x - 5, y1: high, x2: x + 5, y2: high})]};
      },
    });
    return {
      height: 340,
      legend: race.arms.map((a, arm) => ({text: a.name + (a.baseline ? " (baseline)" : ""), colour: recordColour(arm), series: [String(arm)], help: a.command})),
      how: "Median speed of each arm in each cell of memory, with its 95\u00a0% interval. A pale bar does not count, a "
        + "missing one was not measured or failed; the table says why. Only bars of one cell may be compared.",
      option: {
        grid: grid(),
        xAxis: xAxis("memory", {type: "category", data: cells, min: undefined, max: undefined}),
        yAxis: yAxis("tok/s"),
        series: [...bars, ...race.arms.map(whisker)],
        tooltip: tooltip((at) => {
          const c = race.cells[at[0].dataIndex];
          return tip(cells[at[0].dataIndex] + " (" + c.name + ")", c.entries.map((e) => {
            const m = e[phase];
            return [recordColour(e.arm), race.arms[e.arm].name, isNumber(m.median)
              ? decimal(m.median) + (m.interval ? " (" + decimal(m.interval[0]) + " to " + decimal(m.interval[1]) + ")" : "") + " tok/s" + (m.counts ? "" : ", " + m.verdict) : m.verdict];
          }));
        }, {axisPointer: {type: "shadow", shadowStyle: {color: withAlpha(colours.soft, .1)}}}),
      },
    };
  }

  function raceCards(race, number) {
    const range = (i) => i === null ? "" : " (" + decimal(i[0]) + " to " + decimal(i[1]) + ")";
    const rows = race.cells.flatMap((c) => [
      make("tr.group", [make("th", c.ram_bytes === null ? c.name : bytes(c.ram_bytes) + " (" + c.name + ")", {colspan: "6", scope: "colgroup"})]),
      ...c.entries.flatMap((e) => ["decode", "prefill"].map((phase) => {
        const m = e[phase];
        const faster = m.verdict === "faster" || m.verdict === "slower";
        return make("tr", [
          make("th", [race.arms[e.arm].name + ", " + phase, phase === "decode" && (e.left_out || e.error)
            ? make("span.help", e.left_out || e.error) : null], {scope: "row"}),
          isNumber(m.median) ? make("td", decimal(m.median) + range(m.interval)) : make("td.absent", NOTHING),
          isNumber(m.ratio) ? make("td", decimal(m.ratio) + range(m.ratio_interval)) : make("td.absent", "none"),
          make("td" + (m.verdict === "faster" ? ".faster" : ""), m.verdict),
          valueCell(isNumber(e.read_bytes) ? bytes(e.read_bytes) : NOTHING),
          valueCell(isNumber(e.peak_bytes) ? bytes(e.peak_bytes) : NOTHING)]);
      }))]);
    const about = race.arms.map((a) => make("tr", [
      make("th", a.name + (a.baseline ? " (baseline)" : ""), {scope: "row"}),
      make("td", [a.command, a.version ? make("span.help", a.version) : null, a.includes ? make("span.help", a.includes) : null])]));
    const baseline = race.arms.find((a) => a.baseline);
    return [
      plotCard("race" + number, records.length > 0 || data.races.length > 1 ? "Race: " + race.name : "Speed of the arms", true, () => racePlot(race)),
      card("race" + number + "-table", "Ratios to " + (baseline ? baseline.name : "the baseline"), true, [
        tableOf(["", "tok/s", "ratio", "says", "read per run", "peak of memory"], rows),
        ...race.remarks.map((r) => make("p.note", r)),
        make("details", [make("summary", "The arms"), tableOf(["arm", "command"], about, "words")])],
        [race.machine, race.model].filter((t) => t).join("; ")),
    ];
  }

  function raceLine(race) {
    return make("div.run", [
      make("strong", race.name), make("span.badge." + race.state, race.state === "ok" ? "ok" : "did not end"),
      make("span.soft", "race" + (race.time ? ", " + race.time : ""))]);
  }

  // ---- tables

  function tableOf(head, rows, kind) {
    const top = make("tr", head.map((h) => h instanceof Node ? make("th", [h], {scope: "col"}) : make("th", h, {scope: "col"})));
    return make("div.scroll", [make("table" + (kind ? "." + kind : ""), [make("thead", [top]), make("tbody", rows)])],
                {tabindex: "0", role: "region", "aria-label": "table"});
  }

  function card(id, title, wide, content, how) {
    return make("section.card" + (wide ? ".wide" : ""), [
      make("div.head", [make("h2", title)]), ...content, how ? make("p.how", how) : null], {id, "aria-label": title});
  }

  const valueCell = (text) => text === NOTHING ? make("td.absent", text) : make("td", text);

  function summaryCard() {
    // Of each phase all records beside each other: on a phone the first are seen, and are to be the ones that are compared.
    const columns = ["decode", "prefill"].flatMap((phase) => records.map((r, i) => ({i, r, phase}))).filter(({r, phase}) => r[phase]);
    if (columns.length === 0)
      return card("summary", "Figures", true, [make("p.absent-plot", "No rows: nothing was computed, or the run ended before its first row.")]);
    const head = () => ["", ...columns.map(({i, r, phase}) => records.length > 1
      ? make("span", [letterMark(i), " " + phaseOf(r, phase)]) : phaseOf(r, phase))];
    const figureRow = ([name, about]) => make("tr", [
      make("th", [words(name), make("span.help", about.help)], {scope: "row"}),
      ...columns.map(({r, phase}) => valueCell(figureText(name, r[phase].figures[name])))]);
    const rows = [
      make("tr", [make("th", "rows", {scope: "row"}), ...columns.map(({r, phase}) => make("td", r[phase].rows.toLocaleString("en")))]),
      ...Object.entries(data.figures).map(figureRow),
      make("tr", [make("th", ["binds", make("span.help", "what bounds the run if all waiting could be hidden")], {scope: "row"}),
                  ...columns.map(({r, phase}) => valueCell(r[phase].binds === null ? NOTHING : r[phase].binds))]),
    ];
    const totals = Object.entries(data.columns).map(([name, about]) => make("tr", [
      make("th", [words(name.replace(/_(ns|bytes)$/, "")), make("span.help", about.help)], {scope: "row"}),
      ...columns.map(({r, phase}) => valueCell(totalText(name, r[phase].totals[name])))]));
    return card("summary", "Figures", true, [
      tableOf(head(), rows, "figures"),
      make("details", [make("summary", "All totals"), tableOf(head(), totals, "figures")])]);
  }

  function differencesCard() {
    const groups = data.comparison.differences;
    const text = "What the records say of themselves before their first row, where they do not agree. A comparison is fair "
      + "when only what is being compared differs.";
    if (groups.length === 0)
      return card("differences", "Differences", true, [make("p.absent-plot", "None: settings, versions, model and machine are the same.")], text);
    const rows = groups.flatMap((g) => [
      make("tr.group", [make("th", g.name, {colspan: String(records.length + 1), scope: "colgroup"})]),
      ...g.rows.map((row) => make("tr", [make("th", row.key, {scope: "row"}),
                                         ...row.values.map((v) => v === null ? make("td.absent", "not said") : make("td", v))])),
    ]);
    return card("differences", "Differences", true,
                [tableOf(["", ...records.map((_, i) => letterMark(i))], rows, "words")], text);
  }

  function ratiosCard() {
    const cell = (e) => e === null ? make("td.absent", NOTHING)
      : make("td", decimal(e.median) + (isNumber(e.low) ? " (" + decimal(e.low) + " to " + decimal(e.high) + ")" : ""));
    const rows = data.comparison.ratios.map((r) => {
      const of = records[r.of];
      const over = records[r.over];
      const e = r.ms_per_token;
      let says = make("td.absent", "too few tokens to say");
      if (e && isNumber(e.low)) {
        if (e.low > 1) says = make("td.faster", over.letter + " is faster");
        else if (e.high < 1) says = make("td.faster", of.letter + " is faster");
        else says = make("td", "no difference shown");
      }
      return make("tr", [make("th", of.letter + " / " + over.letter, {scope: "row"}), cell(r.tokens_per_second), cell(r.ms_per_token), says]);
    });
    return card("ratios", "Ratios of medians", true, [tableOf(["", "tok/s", "ms per token", ""], rows), make("p.sentence", data.comparison.outputs.join(" "))],
                "Each other record over the first, with 95\u00a0% intervals.");
  }

  function configurationCard() {
    const content = records.map((r, i) => {
      const rows = r.facts.flatMap((g) => [
        make("tr.group", [make("th", g.name, {colspan: "2", scope: "colgroup"})]),
        ...g.facts.map((f) => make("tr", [
          make("th", f.key, {scope: "row"}),
          make("td", [f.value, f.set === true ? make("span.set", "set") : null])])),
      ]);
      const body = rows.length === 0 ? make("p.absent-plot", "The record says nothing of itself.") : tableOf(["what", "value"], rows, "words");
      const title = make("summary", records.length > 1 ? [letterMark(i), " " + r.name] : "All " + rows.length + " lines");
      return make("details", [title, body]);
    });
    return card("configuration", "Configuration", true, content,
                "All that the record says before its first row. What somebody chose is marked as set, where the record knows.");
  }

  // ---- the head

  function statusLine(r, i) {
    const states = {ok: "ok", interrupted: "interrupted", failed: "failed", unended: "did not end", unknown: "unknown"};
    const s = r.status;
    const said = (s.state === "ok" ? "" : s.words) + (s.error ? " " + s.error : "");
    return make("div.run", [
      records.length > 1 ? letterMark(i) : null,
      records.length > 1 ? make("strong", r.name) : null,
      make("span.badge." + s.state, states[s.state]),
      r.model === null ? null : make("span", r.model),
      make("span.soft", [r.program, r.time].filter((t) => t).join(", ")),
      said ? make("span", said) : null,
      r.note ? make("span.soft", r.note) : null,
    ]);
  }

  function tile(what, number, more) {
    const absent = number === NOTHING;
    return make("div.tile", [make("div.what", what), make("div.number" + (absent ? ".absent" : ""), number),
                             more ? make("div.more", more) : null]);
  }

  function keyFigures(r) {
    const phase = r.decode ? "decode" : "prefill";
    const p = r[phase];
    if (!p) return [make("p.absent-plot", "No rows: nothing was computed, or the run ended before its first row.")];
    const f = p.figures;
    const speed = r.speed.tokens_per_second;
    const more = phase === "decode" && speed
      ? "median " + decimal(speed.median) + (isNumber(speed.low) ? " (" + decimal(speed.low) + " to " + decimal(speed.high) + ")" : "") : null;
    const tiles = make("div.tiles", [
      tile(phaseOf(r, phase) + (phase === phaseOf(r, phase) ? " speed" : ", speed"), figureText("tokens_per_second", f.tokens_per_second), more),
      tile("one token", figureText("ms_per_token", f.ms_per_token),
           isNumber(f.roofline_ms_per_token) ? "roofline " + figureText("roofline_ms_per_token", f.roofline_ms_per_token) : null),
      tile("standing still for reads", figureText("exposed_wait_fraction", f.exposed_wait_fraction), "of the wall time"),
      tile("cache hit rate", figureText("hit_rate", f.hit_rate), null),
      tile("read per token", figureText("physical_bytes_per_token", f.physical_bytes_per_token), "from the drive"),
      tile("read latency p99", figureText("read_p99_ms", f.read_p99_ms), null),
    ]);
    let sentence = "What bounds this run was not measured.";
    if (p.binds !== null) {
      sentence = "Bound by " + (p.binds === "drive" ? "the drive" : "computing") + ": without waiting a token takes "
        + figureText("without_waiting_ms_per_token", f.without_waiting_ms_per_token) + " and keeps the drive busy for "
        + figureText("drive_ms_per_token", f.drive_ms_per_token) + ". If all waiting could be hidden, "
        + figureText("roofline_tokens_per_second", f.roofline_tokens_per_second) + " would remain possible; this run is "
        + figureText("residual_fraction", f.residual_fraction) + " above that time.";
    }
    return [tiles, make("p.sentence", sentence)];
  }

  // ---- all of it

  function build() {
    const races = data.races;
    const several = [[records, records.length === 1 ? " run" : " runs compared"], [races, races.length === 1 ? " race" : " races"]]
      .filter(([list]) => list.length > 0).map(([list, text]) => list.length + text).join(" and ");
    document.getElementById("title").textContent = records.length + races.length === 1
      ? [...records, ...races][0].name : several;
    document.getElementById("status").append(make("div.runs", [...records.map(statusLine), ...races.map(raceLine)]));
    if (records.length === 1) document.getElementById("key").append(...keyFigures(records[0]));

    const controls = document.getElementById("controls");
    if (races.length > 0 || (records.some((r) => r.decode) && records.some((r) => r.prefill)))
      controls.append(choice("Phase", ["decode", "prefill"].map((p) => [p, phaseOfAll(p)]), state.phase, (v) => { state.phase = v; }));
    if (records.length > 1)
      controls.append(choice("Plots of one record show", records.map((r, i) => [i, r.letter]), 0, (v) => {
        state.record = v;
        state.experts = 0;
      }));

    const tables = choice("", [["uses", "uses"], ["misses", "misses"]], state.table, (v) => { state.table = v; });
    const area = document.getElementById("plots");
    if (data.comparison !== null) {
      area.append(plotCard("speeds", "Median speed of each record", false, speedsPlot),
                  plotCard("ratio", "Against " + records[0].letter, false, ratioPlot));
    }
    races.forEach((race, i) => area.append(...raceCards(race, i)));
    if (records.length > 0) area.append(
      plotCard("speed", "Speed over the run", true, speedPlot),
      plotCard("total", "Where an average token goes", true, totalPlot),
      plotCard("parts", "Where each token goes", true, partsPlot),
      plotCard("layers", "Standing still, by layer", false, layersPlot),
      plotCard("cache", "The cache", false, cachePlot),
      plotCard("latency", "Latency of reads", false, latencyPlot),
      plotCard("memory", "Memory of the process", false, memoryPlot),
      plotCard("experts", "Experts", true, heatPlot, tables));

    const below = document.getElementById("tables");
    if (data.comparison !== null) below.append(ratiosCard(), differencesCard());
    if (records.length > 0) below.append(summaryCard(), configurationCard());
    document.getElementById("main").hidden = false;
  }

  build();
  drawAll();
  root.dataset.state = "ready";

  // ---- the reader's window, colours and paper

  let width = window.innerWidth;
  let waiting = 0;
  window.addEventListener("resize", () => {
    if (window.innerWidth === width) return;  // a phone's address bar
    width = window.innerWidth;
    clearTimeout(waiting);
    waiting = setTimeout(drawAll, 120);
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
  window.addEventListener("beforeprint", () => {
    root.classList.add("printing");
    drawAll();
  });
  window.addEventListener("afterprint", () => {
    root.classList.remove("printing");
    drawAll();
  });
})();
