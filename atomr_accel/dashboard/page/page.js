// Draws the state that the program sends, and keeps it up to date by what has changed in it.
// Every text goes in as text: names of actors and errors are whatever somebody has made them.

const WINDOWS = [60, 120, 300]; // seconds that curves and the timeline show: the shortest that holds everything
const SPANS = { auto: 0, "5 min": 300, "1 h": 3600, "24 h": 86400 }; // what a reader may choose
let span = WINDOWS[0];
let chosen = SPANS.auto;
const KINDS = {
  fault: "a context failed", ready: "a context is up", lost: "a device is lost",
  restart: "an actor was restarted", failure: "an actor ended by a failure", memory: "out of memory",
  xid: "the driver has reported an error",
};
const TONES = {
  ready: "good", running: "good", rebuilding: "wait", starting: "wait", waiting: "wait", stopping: "wait",
  finished: "off", ended: "off", lost: "bad",
};
const SVG = "http://www.w3.org/2000/svg";
const $ = (id) => document.getElementById(id);

// --- making elements ---------------------------------------------------------------------------

/** An element: `el("p", {class: "muted"}, "text", child)`. */
function el(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  set(made, attributes);
  made.append(...children);
  return made;
}

function svg(name, attributes = {}, ...children) {
  const made = document.createElementNS(SVG, name);
  set(made, attributes);
  made.append(...children);
  return made;
}

function set(element, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    if (element.getAttribute(name) !== String(value)) element.setAttribute(name, value);
  }
}

/** Change a text only if it is another one: what is selected stays selected. */
function say(element, text) {
  text = String(text);
  if (element.textContent !== text) element.textContent = text;
}

/** Have one child for each key, in that order, made once and updated ever after. */
function keep(parent, cache, keys, make, update) {
  const wanted = new Set(keys);
  for (const [key, child] of cache) {
    if (!wanted.has(key)) {
      child.root.remove();
      cache.delete(key);
    }
  }
  let next = parent.firstChild;
  for (const key of keys) {
    let child = cache.get(key);
    if (!child) cache.set(key, (child = make(key)));
    update(child, key);
    if (child.root === next) next = next.nextSibling;
    else parent.insertBefore(child.root, next);
  }
}

// --- numbers for people ------------------------------------------------------------------------

const plain = new Intl.NumberFormat("en");

function bytes(n) {
  for (const unit of ["B", "KiB", "MiB", "GiB"]) {
    if (n < 1024) return `${unit === "B" ? n : n.toFixed(n < 10 ? 1 : 0)} ${unit}`;
    n /= 1024;
  }
  return `${n.toFixed(1)} TiB`;
}

function short(n) {
  if (n < 1000) return n < 10 && n % 1 ? n.toFixed(1) : n.toFixed(0);
  for (const unit of ["k", "M", "G"]) {
    n /= 1000;
    if (n < 1000) return `${n.toFixed(n < 10 ? 2 : n < 100 ? 1 : 0)}${unit}`;
  }
  return `${n.toFixed(0)}T`;
}

function duration(ms) {
  if (ms === null || ms === undefined) return "–";
  if (ms < 1) return `${(ms * 1000).toFixed(0)} µs`;
  return ms < 1000 ? `${ms.toFixed(ms < 10 ? 2 : ms < 100 ? 1 : 0)} ms` : `${(ms / 1000).toFixed(2)} s`;
}

function back(seconds) {
  if (seconds < 120) return `${seconds} s ago`;
  return seconds < 7200 ? `${seconds / 60} min ago` : `${seconds / 3600} h ago`;
}

function ago(seconds) {
  seconds = Math.max(0, Math.round(seconds));
  if (seconds < 1) return "now";
  if (seconds < 60) return `${seconds} s ago`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ago`;
  return seconds < 86400 ? `${Math.floor(seconds / 3600)} h ago` : `${Math.floor(seconds / 86400)} d ago`;
}

const many = (n, one, more = `${one}s`) => `${plain.format(n)} ${n === 1 ? one : more}`;
const sum = (values) => values.reduce((a, b) => a + b, 0);
const last = (values) => values[values.length - 1];

// --- the state ---------------------------------------------------------------------------------

let state = null;
let clock = 0; // the program's time less ours, in seconds
const now = () => Date.now() / 1000 + clock;

/** Merge a patch into an object (RFC 7386). */
function merge(target, patch) {
  for (const [key, value] of Object.entries(patch)) {
    if (value === null) delete target[key];
    else if (typeof value === "object" && !Array.isArray(value)) {
      const inner = target[key];
      const mergeable = typeof inner === "object" && !Array.isArray(inner) && Object.hasOwn(target, key);
      target[key] = merge(mergeable ? inner : Object.create(null), value);
    } else target[key] = value;
  }
  return target;
}

// --- curves ------------------------------------------------------------------------------------

/** A curve of the last minutes: `lines` are functions of a point. */
class Chart {
  constructor(title, lines, format, names = []) {
    this.title = [title, ...names].join(" ");
    const keys = names.map((name, at) => el("span", { class: `key-${at ? "two" : "one"}` }, el("i", { class: "key" }), name));
    this.lines = lines;
    this.format = format;
    this.value = el("b");
    this.top = el("span", { class: "top-mark" });
    this.when = el("span", { class: "when-mark" });
    this.hits = svg("g");
    this.here = svg("line", { class: "here", y1: 0, y2: 100, visibility: "hidden" });
    this.area = svg("path", { class: "area" });
    this.paths = lines.map((_, at) => svg("path", { class: at ? "two" : "one" }));
    this.svg = svg(
      "svg",
      { viewBox: "0 0 100 100", preserveAspectRatio: "none", role: "img" },
      this.area, this.hits, ...this.paths, this.here,
    );
    this.root = el(
      "figure", {},
      el("figcaption", {}, el("span", { class: "names" }, title, ...keys), this.value),
      el("div", { class: "plot" }, this.svg, this.top, this.when),
    );
    this.at = null;
    this.svg.addEventListener("pointermove", (event) => {
      const box = this.svg.getBoundingClientRect();
      this.at = (100 * (event.clientX - box.left)) / box.width;
      this.caption();
    });
    this.svg.addEventListener("pointerleave", () => {
      this.at = null;
      this.caption();
    });
  }

  update(points, faults) {
    const end = now();
    this.points = points.filter((point) => point[0] > end - span - 2);
    this.x = (at) => 100 - (100 * (end - at)) / span;
    const most = Math.max(0, ...this.points.flatMap((point) => this.lines.map((line) => line(point) ?? 0)));
    this.most = ceiling(most);
    const y = (value) => 98 - (value / this.most) * 84;
    this.lines.forEach((line, at) => {
      const runs = []; // of points without a gap between them
      let run = null;
      for (const point of this.points) {
        const value = line(point);
        if (value === null || value === undefined) run = null;
        else {
          if (!run) runs.push((run = []));
          run.push([this.x(point[0]).toFixed(2), y(value).toFixed(1)]);
        }
      }
      const draw = (points) => `M${points.map((point) => point.join(" ")).join("L")}`;
      set(this.paths[at], { d: runs.map(draw).join("") });
      if (at === 0) {
        const areas = runs.filter((points) => points.length > 1);
        set(this.area, { d: areas.map((points) => `${draw(points)}L${last(points)[0]} 100L${points[0][0]} 100Z`).join("") });
      }
    });
    this.hits.replaceChildren(
      ...faults.map((fault) => svg("line", { class: "hit", x1: this.x(fault.at), x2: this.x(fault.at), y1: 0, y2: 100 })),
    );
    say(this.top, most ? this.format(this.most) : "");
    this.caption();
  }

  caption() {
    if (!this.points) return;
    let point = last(this.points);
    let when = "";
    if (this.at !== null && this.points.length) {
      point = this.points.reduce((a, b) => (Math.abs(this.x(b[0]) - this.at) < Math.abs(this.x(a[0]) - this.at) ? b : a));
      when = ago(now() - point[0]);
      set(this.here, { x1: this.x(point[0]), x2: this.x(point[0]), visibility: "visible" });
    } else set(this.here, { visibility: "hidden" });
    const each = point ? this.lines.map((line) => this.format(line(point))) : ["–"];
    const unit = last(each).replace(/^[^ ]*/, "");
    const alike = unit && each.every((text) => text.endsWith(unit));
    const values = alike ? each.map((text) => text.slice(0, -unit.length)).join(" / ") + unit : each.join(" / ");
    say(this.value, values);
    say(this.when, when);
    set(this.svg, { "aria-label": `${this.title}: ${values}` });
  }
}

/** A round number that is not smaller. */
function ceiling(value) {
  if (value <= 0) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 1.5, 2, 3, 5, 7.5, 10].map((step) => step * power).find((step) => step >= value * 0.999);
}

/** The points of a device: seconds for the last minutes, before them the finest curve that reaches back. */
function pointsOf(path) {
  const past = state.past?.[path] ?? {};
  const joined = [];
  for (const curve of [state.curves[path], past["10"], past["300"]]) {
    const before = joined.length ? joined[0][0] : Infinity;
    joined.unshift(...Object.values(curve ?? {}).filter((point) => point[0] < before));
    if (joined.length && joined[0][0] < now() - span) break;
  }
  return joined;
}

// --- devices -----------------------------------------------------------------------------------

const cards = new Map();

class Device {
  constructor(path) {
    this.path = path;
    this.pill = el("span", { class: "pill" });
    this.about = el("p", { class: "muted" });
    this.fault = el("p", { class: "fault", hidden: "" });
    this.facts = new Facts("dl", "facts");
    this.gpu = new Facts("dl", "facts");
    const p50 = (point) => point[3];
    const p99 = (point) => point[4];
    this.rate = new Chart("Throughput", [(point) => point[1]], (n) => `${short(n ?? 0)} ops/s`);
    this.latency = new Chart("Latency", [p50, p99], duration, ["p50", "p99"]);
    this.bar = el("div", { class: "bar", role: "img" });
    this.parts = ["sealed", "plain", "stale", "free"].map((kind) => el("i", { class: `is-${kind}` }));
    this.bar.append(...this.parts);
    this.memoryText = el("b");
    this.legend = el("ul", { class: "legend" });
    this.legendRows = new Map();
    this.slabs = el("div", { class: "slabs", role: "img" });
    this.slabRows = new Map();
    this.lanes = el("tbody");
    this.laneRows = new Map();
    this.others = el("p", { class: "muted" });
    const id = `device-${cards.size}`;
    this.root = el(
      "article", { class: "card device", "aria-labelledby": id },
      el("header", {}, el("div", {}, el("h3", { id }, path.slice(1)), this.about), this.pill),
      this.fault,
      this.facts.root,
      this.gpu.root,
      el("div", { class: "charts" }, this.rate.root, this.latency.root),
      el(
        "figure", {},
        el("figcaption", {}, el("span", {}, "Memory"), this.memoryText), this.bar, this.legend, this.slabs,
      ),
      el(
        "table", { class: "lanes" },
        el("thead", { title: "counted since the present generation began" }, el("tr", {}, ...[["Lane"], ["In flight", "load"], ["", "number"], ["Done", "number"], ["Failed", "number"]].map(
          ([text, cls = ""]) => (text ? el("th", { scope: "col", class: cls }, text) : el("td", { class: cls })),
        ))),
        this.lanes,
      ),
      this.others,
    );
  }

  update(device) {
    const info = device.info ?? {};
    this.root.className = `card device ${TONES[device.state] === "good" ? "" : TONES[device.state]}`;
    this.pill.className = `pill ${TONES[device.state] ?? "off"}`;
    say(this.pill, device.state);
    const words = [device.name, info.name, `${device.isolation} isolation`];
    if (info.driver_version) words.push(`driver ${Math.floor(info.driver_version / 1000)}.${Math.floor((info.driver_version % 1000) / 10)}`);
    say(this.about, words.filter(Boolean).join(" · "));
    this.fault.hidden = !device.last_fault;
    const told = device.last_fault && device.last_fault + (device.report ?? "");
    if (told && this.last !== told) {
      this.last = told;
      const said = el("span", {}, el("b", {}, "Last fault "), device.last_fault);
      const report = device.report && el("details", {}, el("summary", {}, "Report"), el("pre", {}, device.report));
      this.fault.replaceChildren(...[said, report].filter(Boolean));
    }
    this.facts.update([
      ["Generation", plain.format(device.generation)],
      ["Faults", plain.format(device.faults), device.faults ? "bad" : ""],
      ["In flight", plain.format(device.in_flight)],
      ["Host process", device.host_pid ?? "–"],
      ["Health", device.state !== "ready" ? device.state : device.lacks ? "degraded" : "good", device.lacks ? "wait" : "", device.lacks ? ` ${device.lacks}` : ""],
      ["Started in", device.startup ? duration(device.startup.total * 1000) : "–"],
      ["Standby", device.standby?.state ?? "none", "", device.standby ? ` ${device.standby.mode}` : ""],
    ]);
    const gpu = device.gpu ?? {};
    this.gpu.update([
      gpu.busy !== undefined && ["Busy", `${Math.round(100 * gpu.busy)} %`],
      gpu.power !== undefined && ["Power", `${Math.round(gpu.power)} W`, "", gpu.power_limit ? ` of ${Math.round(gpu.power_limit)}` : ""],
      gpu.temperature !== undefined && ["Temperature", `${Math.round(gpu.temperature)} °C`],
      gpu.throttled !== undefined && ["Clocks held by", gpu.throttled || "nothing"],
    ].filter(Boolean));
    this.gpu.root.hidden = !device.gpu;
    const points = pointsOf(this.path);
    const faults = Object.values(state.events).filter((event) => event.kind === "fault" && event.path === this.path && event.at > now() - span);
    this.rate.update(points, faults);
    this.latency.update(points, faults);
    this.drawMemory(device.memory);
    this.drawLanes(Object.values(device.lanes ?? {}), device.lanes ?? {});
    const others = Object.values(device.transfers ?? {}).map((one) => `${one.name} ${Math.floor((100 * one.done) / Math.max(1, one.nbytes))} % of ${bytes(one.nbytes)}`);
    if (device.pinned?.capacity) others.push(`pinned ${bytes(device.pinned.used)} of ${bytes(device.pinned.capacity)}`);
    say(this.others, others.join(" · "));
    this.others.hidden = !others.length;
  }

  drawMemory(memory) {
    const plainUsed = Math.max(0, memory.used - memory.sealed - memory.stale);
    const amounts = { sealed: memory.sealed, plain: plainUsed, stale: memory.stale, free: memory.free };
    const whole = Math.max(memory.limit ?? 0, memory.capacity, 1);
    this.parts.forEach((part, at) => {
      part.style.width = `${(100 * Object.values(amounts)[at]) / whole}%`;
    });
    const limit = memory.limit === undefined ? "" : `, limit ${bytes(memory.limit)}`;
    say(this.memoryText, `${bytes(memory.used)} used of ${bytes(memory.capacity)} reserved${limit}`);
    const names = { sealed: "sealed", plain: "plain", stale: "stale", free: "reserved, free" };
    keep(this.legend, this.legendRows, Object.keys(names), (kind) => {
      const value = el("b");
      return { value, root: el("li", {}, el("span", { class: `key is-${kind}` }), `${names[kind]} `, value) };
    }, (row, kind) => say(row.value, bytes(amounts[kind])));
    set(this.bar, { "aria-label": Object.entries(names).map(([kind, name]) => `${name} ${bytes(amounts[kind])}`).join(", ") });
    const slabs = memory.slabs ?? {};
    keep(this.slabs, this.slabRows, Object.keys(slabs), () => {
      const cells = svg("svg", { preserveAspectRatio: "none", "aria-hidden": "true" });
      const text = el("span");
      return { cells, text, root: el("div", { class: "slab" }, cells, text) };
    }, (row, id) => drawSlab(row, slabs[id]));
    set(this.slabs, { "aria-label": `${many(Object.keys(slabs).length, "slab")}, fragmentation ${Math.round(100 * memory.fragmentation)} %` });
  }

  drawLanes(rows, lanes) {
    const most = Math.max(8, ...rows.map((lane) => lane.in_flight));
    keep(this.lanes, this.laneRows, Object.keys(lanes).sort(), (name) => {
      const fill = el("i", { class: "is-load" });
      const cells = ["", "", ""].map(() => el("td", { class: "number" }));
      return {
        fill, cells,
        root: el("tr", {}, el("th", { scope: "row" }, name), el("td", { class: "load" }, el("div", { class: "bar", "aria-hidden": "true" }, fill)), ...cells),
      };
    }, (row, name) => {
      const lane = lanes[name];
      row.fill.style.width = `${(100 * lane.in_flight) / most}%`;
      [lane.in_flight, lane.completed, lane.failed].forEach((n, at) => say(row.cells[at], plain.format(n)));
      row.cells[2].className = lane.failed ? "number bad" : "number";
    });
  }
}

/** A slab as a strip: the fuller a part, the stronger its colour. */
function drawSlab(row, slab) {
  if (row.drawn === slab.cells + slab.kind) return;
  row.drawn = slab.cells + slab.kind;
  row.root.className = `slab is-${slab.kind}`;
  set(row.cells, { viewBox: `0 0 ${slab.cells.length} 1` });
  const rects = [];
  for (const run of slab.cells.matchAll(/([1-9])\1*/g)) {
    rects.push(svg("rect", { x: run.index, y: 0, width: run[0].length, height: 1, "fill-opacity": 0.2 + (0.8 * run[1]) / 9 }));
  }
  row.cells.replaceChildren(...rects);
  say(row.text, `${slab.kind} · ${bytes(slab.used)} of ${bytes(slab.nbytes)}`);
}

/** A list of names and values. */
class Facts {
  constructor(root, cls) {
    this.root = typeof root === "string" ? el(root, { class: cls }) : root;
    this.rows = new Map();
  }

  update(facts) {
    const values = new Map(facts.map(([name, value, tone = "", unit = "", title = ""]) => [name, { value, tone, unit, title }]));
    keep(this.root, this.rows, [...values.keys()], (name) => {
      const value = el("span");
      const unit = el("small");
      return { value, unit, root: el("div", {}, el("dt", {}, name), el("dd", {}, value, unit)) };
    }, (row, name) => {
      const fact = values.get(name);
      say(row.value, fact.value);
      say(row.unit, fact.unit);
      row.root.className = fact.tone;
    if (fact.title) set(row.root, { title: fact.title });
    });
  }
}

// --- patterns ----------------------------------------------------------------------------------

const patterns = new Map();
const words = (name) => name.replaceAll("_", " ");
const SECONDS = /(^|_)seconds$/;
const BYTES = /(^|_)n?bytes$/;
const value = (one, name = "") => (typeof one === "number" && SECONDS.test(name) ? duration(1000 * one) : typeof one === "number" && BYTES.test(name) ? bytes(one) : typeof one === "number" ? (Number.isInteger(one) ? plain.format(one) : one.toPrecision(3)) : String(one));

/** A pattern: its own values, and a table for each of its collections of parts. */
class Pattern {
  constructor(name) {
    this.kind = el("span", { class: "muted" });
    this.facts = new Facts("dl", "facts");
    this.tables = el("div", { class: "parts" });
    this.terms = el("dl", {});
    this.help = el("details", { class: "terms", hidden: "" }, el("summary", {}, "What the figures mean"), this.terms);
    this.root = el("article", { class: "card device" }, el("header", {}, el("h3", {}, name), this.kind), this.facts.root, this.tables, this.help);
  }

  update({ kind, terms = {}, ...fields }) {
    say(this.kind, kind);
    const simple = Object.entries(fields).filter(([, one]) => typeof one !== "object");
    this.facts.update(simple.map(([name, one]) => [words(name), value(one, name), "", "", terms[name]]));
    const drawn = JSON.stringify(Object.entries(fields).filter(([, one]) => typeof one === "object"));
    if (this.drawn === drawn) return;
    this.drawn = drawn;
    this.help.hidden = !Object.keys(terms).length;
    this.terms.replaceChildren(...Object.entries(terms).map(([name, text]) => el("div", {}, el("dt", {}, words(name.replace(".", ": "))), el("dd", {}, text))));
    this.tables.replaceChildren(...Object.entries(fields).filter(([, one]) => typeof one === "object").map(([name, rows]) => {
      const columns = [...new Set(Object.values(rows).flatMap(Object.keys))].filter((column) => column !== "name" && column !== "path");
      return el(
        "table", { class: "lanes" },
        el("thead", {}, el("tr", {}, ...[name, ...columns].map((column, at) => el("th", { scope: "col", class: at ? "number" : "", title: terms[at ? `${name}.${column}` : name] ?? "" }, words(column))))),
        el("tbody", {}, ...Object.entries(rows).map(([part, row]) => el(
          "tr", {}, el("th", { scope: "row" }, part), ...columns.map((column) => el("td", { class: "number" }, row[column] === undefined ? "–" : value(row[column], column))),
        ))),
      );
    }));
  }
}

// --- other programs ----------------------------------------------------------------------------

/** List the other programs of this user that have a dashboard open, as links to their pages. */
async function findPrograms() {
  if (document.hidden) return;
  let found = [];
  try {
    const answer = await fetch("programs", { headers: { Authorization: `Bearer ${key}` } });
    if (answer.ok) found = await answer.json();
  } catch {
    return; // the program has ended or is busy: what is listed stays
  }
  const others = found.filter((one) => !one.here);
  $("programs").hidden = !others.length;
  $("programs").replaceChildren(...others.map((one) => el(
    "a", { href: one.url, title: one.command, target: "_blank", rel: "noopener noreferrer" }, `${one.system} · ${one.pid}`,
  )));
}

// --- events ------------------------------------------------------------------------------------

const timelineRows = new Map();
const eventRows = new Map();

function drawEvents() {
  const events = Object.entries(state.events);
  const end = now();
  const devices = Object.keys(state.devices);
  const tracks = devices.map((path) => [path, events.filter(([, event]) => event.path === path)]);
  const onDevices = new Set(devices);
  tracks.push(["actors", events.filter(([, event]) => !onDevices.has(event.path))]);
  const box = $("timeline");
  const left = (at) => `${100 - (100 * (end - at)) / span}%`;
  keep(box, timelineRows, [...tracks.map(([name]) => name), "scale"], (name) => {
    if (name === "scale") {
      const root = el("div", { class: "scale", "aria-hidden": "true" }, el("span"), el("span"), el("span", {}, "now"));
      return { root };
    }
    const track = el("div", { class: "track", role: "img" });
    const label = el("span", { title: name }, name);
    const root = el("div", {}, label, track);
    root.style.display = "contents";
    return { root, track };
  }, (row, name) => {
    if (name === "scale") {
      [span, span / 2].forEach((seconds, at) => say(row.root.children[at], back(seconds)));
      return;
    }
    const recent = tracks.find(([key]) => key === name)[1].map(([, event]) => event).filter((event) => event.at > end - span);
    const marks = [];
    let since = null;
    for (const event of tracks.find(([key]) => key === name)[1].map(([, one]) => one)) {
      if (event.kind === "fault") since ??= event.at;
      else if ((event.kind === "ready" || event.kind === "lost") && since !== null) {
        if (event.at > end - span) marks.push(outage(since, event.at));
        since = null;
      }
    }
    if (since !== null && name !== "actors" && state.devices[name]?.state !== "ready") marks.push(outage(since, end));
    for (const event of recent.slice(-120)) {
      const dot = el("i", { class: `dot kind-${event.kind}`, title: `${event.kind}: ${event.text}` });
      dot.style.left = left(event.at);
      marks.push(dot);
    }
    row.track.replaceChildren(...marks);
    const counts = Object.keys(KINDS).map((kind) => [kind, recent.filter((event) => event.kind === kind).length]).filter(([, n]) => n);
    set(row.track, { "aria-label": `${name}, in the last ${span} seconds: ${counts.map(([kind, n]) => `${kind} ${n}`).join(", ") || "nothing"}` });
  });

  function outage(from, to) {
    const made = el("i", { class: "outage" });
    made.style.left = left(Math.max(from, end - span));
    made.style.right = `${(100 * (end - to)) / span}%`;
    return made;
  }

  const list = $("events");
  const shown = events.reverse();
  if (!shown.length) {
    list.replaceChildren(el("li", { class: "none" }, "Nothing has happened yet. Faults, rebuilds, restarts and failures will be listed here."));
    eventRows.clear();
    return;
  }
  if (!eventRows.size) list.replaceChildren();
  const texts = new Map(shown);
  keep(list, eventRows, shown.map(([number]) => number), (number) => {
    const event = texts.get(number);
    const time = el("time", { datetime: new Date(event.at * 1000).toISOString(), title: new Date(event.at * 1000).toLocaleString() });
    const root = el(
      "li", { class: `kind-${event.kind}` },
      time, el("span", { class: "kind" }, event.kind), el("span", { class: "path" }, event.path), el("span", { class: "text" }, event.text),
    );
    return { root, time };
  }, (row, number) => say(row.time, ago(end - texts.get(number).at)));
}

let announced = null;

/** Tell faults to those who do not see the page: what is new since it was last looked at. */
function announce() {
  const numbers = Object.keys(state.events).map(Number);
  const newest = numbers.length ? Math.max(...numbers) : 0;
  if (announced !== null && newest > announced) {
    const fresh = numbers.filter((n) => n > announced).map((n) => state.events[n]).filter((event) => event.kind !== "restart");
    if (fresh.length) say($("said"), `${last(fresh).path}: ${last(fresh).kind}. ${last(fresh).text}`);
  }
  announced = newest;
}

// --- actors ------------------------------------------------------------------------------------

const FEW = 40; // so many actors are all shown; of more, only those whose siblings are few
const FEW_SIBLINGS = 8;
const ROWS = 200;
const rows = new Map();
const toggled = new Map();
let order = null; // paths in the order of the tree, with level and children; made when actors come or go
let room = ROWS;
let focused = null;

function arrange() {
  const children = new Map([["", []]]);
  for (const path of Object.keys(state.actors)) {
    const parent = path.slice(0, path.lastIndexOf("/"));
    if (!children.has(parent)) children.set(parent, []);
    children.get(parent).push(path);
  }
  const below = new Map();
  for (const path of Object.keys(state.actors).sort((a, b) => b.length - a.length)) {
    below.set(path, sum((children.get(path) ?? []).map((child) => 1 + (below.get(child) ?? 0))));
  }
  order = { children, below };
  rows.forEach((row) => (row.drawn = null));
}

function isOpen(path) {
  const few = state.system.actors <= FEW || (order.children.get(path)?.length ?? 0) <= FEW_SIBLINGS;
  return toggled.get(path) ?? few;
}

/** The paths to show, each with its level. */
function visible() {
  const wanted = $("filter").value.trim().toLowerCase();
  const { children } = order;
  const kept = new Set();
  if (wanted) {
    for (const [path, actor] of Object.entries(state.actors)) {
      if (`${path} ${actor.kind} ${actor.state}`.toLowerCase().includes(wanted)) {
        for (let up = path; up && !kept.has(up); up = up.slice(0, up.lastIndexOf("/"))) kept.add(up);
      }
    }
  }
  const shown = [];
  const todo = [...children.get("")].reverse().map((path) => [path, 1]);
  while (todo.length) {
    const [path, level] = todo.pop();
    if (wanted && !kept.has(path)) continue;
    shown.push([path, level]);
    if (wanted || isOpen(path)) {
      for (const child of [...(children.get(path) ?? [])].reverse()) todo.push([child, level + 1]);
    }
  }
  return shown;
}

function drawActors(changed) {
  if (changed || !order) arrange();
  const all = visible();
  const shown = all.slice(0, room);
  const levels = new Map(shown);
  if (!levels.has(focused)) focused = shown.length ? shown[0][0] : null;
  keep($("rows"), rows, shown.map(([path]) => path), makeRow, (row, path) => updateRow(row, path, levels.get(path)));
  $("more").hidden = all.length <= room;
  say($("more"), `Show ${plain.format(Math.min(ROWS, all.length - room))} more of ${plain.format(all.length - room)}`);
}

function makeRow(path) {
  const twist = el("span", { class: "twist", "aria-hidden": "true" });
  const count = el("span", { class: "count" });
  const kind = el("td", { role: "gridcell", class: "wide" });
  const status = el("span", { class: "state" });
  const restarts = el("td", { role: "gridcell", class: "number" });
  const depth = el("td", { role: "gridcell", class: "number" });
  const name = el("td", { role: "gridcell", title: path }, twist, path.slice(path.lastIndexOf("/") + 1), count);
  const root = el("tr", { role: "row" }, name, kind, el("td", { role: "gridcell" }, status), restarts, depth);
  root.dataset.path = path;
  return { root, twist, count, kind, status, restarts, depth, name };
}

/** Restarts of an actor's own. A library's actor restarts with the context of its device, whose row counts it. */
const restartsOf = (actor) => (actor.kind === "LibraryActor" ? 0 : actor.restarts);

/** An actor and all that are hidden below it, as one. */
function together(path) {
  const all = { ...state.actors[path], unwell: 0, restarts: restartsOf(state.actors[path]) };
  const todo = [...(order.children.get(path) ?? [])];
  while (todo.length) {
    const below = todo.pop();
    const actor = state.actors[below];
    todo.push(...(order.children.get(below) ?? []));
    all.restarts += restartsOf(actor);
    if (actor.generation === undefined) all.depth += actor.depth;
    if (TONES[actor.state] !== "good") all.unwell += 1;
  }
  return all;
}

function updateRow(row, path, level) {
  const children = order.children.get(path)?.length ?? 0;
  const open = Boolean($("filter").value.trim()) || isOpen(path);
  const own = state.actors[path];
  const actor = open ? { ...own, restarts: restartsOf(own) } : together(path);
  const drawn = `${level} ${children} ${open} ${focused === path} ${Object.values(actor).join(" ")}`;
  if (row.drawn === drawn) return;
  row.drawn = drawn;
  row.name.style.setProperty("--level", level - 1);
  set(row.root, { "aria-level": level, tabindex: focused === path ? 0 : -1 });
  if (children) set(row.root, { "aria-expanded": open });
  else row.root.removeAttribute("aria-expanded");
  say(row.twist, children ? (open ? "▾" : "▸") : "");
  say(row.count, children && !open ? `+${plain.format(order.below.get(path))}` : "");
  say(row.kind, actor.kind);
  row.status.className = `state ${actor.unwell ? "wait" : (TONES[actor.state] ?? "off")}`;
  say(row.status, actor.unwell ? `${actor.state}, ${plain.format(actor.unwell)} below not` : actor.state);
  for (const [cell, n] of [[row.restarts, actor.restarts], [row.depth, actor.depth]]) {
    say(cell, plain.format(n));
    cell.className = n ? "number" : "number zero";
  }
  if (own.kind === "LibraryActor") {
    say(row.restarts, "–");
    set(row.restarts, { title: "It restarts with the context of its device, whose row counts that." });
  }
}

function toggle(path, open = !isOpen(path)) {
  if (!order.children.get(path)?.length) return;
  toggled.set(path, open);
  drawActors(false);
}

function focusRow(path) {
  focused = path;
  drawActors(false);
  rows.get(path)?.root.focus();
}

function onKey(event) {
  const path = event.target.dataset?.path;
  if (path === undefined || event.altKey || event.ctrlKey || event.metaKey) return;
  const paths = [...rows.keys()].length ? [...$("rows").children].map((row) => row.dataset.path) : [];
  const at = paths.indexOf(path);
  const parent = path.slice(0, path.lastIndexOf("/"));
  const expandable = Boolean(order.children.get(path)?.length);
  const moves = {
    ArrowDown: () => at + 1 < paths.length && focusRow(paths[at + 1]),
    ArrowUp: () => at > 0 && focusRow(paths[at - 1]),
    Home: () => focusRow(paths[0]),
    End: () => focusRow(last(paths)),
    ArrowRight: () => expandable && (isOpen(path) ? focusRow(order.children.get(path)[0]) : toggle(path, true)),
    ArrowLeft: () => (expandable && isOpen(path) ? toggle(path, false) : parent && focusRow(parent)),
    Enter: () => toggle(path),
    " ": () => toggle(path),
  };
  if (moves[event.key]) {
    event.preventDefault();
    moves[event.key]();
  }
}

// --- the page ----------------------------------------------------------------------------------

const figures = new Facts($("figures"), "figures");
let actorsChanged = true;
let scheduled = false;

function draw() {
  scheduled = false;
  if (!state) return;
  const devices = Object.values(state.devices);
  const actors = Object.values(state.actors);
  const ready = devices.filter((device) => device.state === "ready").length;
  const curves = Object.values(state.curves).map((points) => Object.values(points)).filter((points) => points.length);
  const points = curves.map(last);
  const oldest = Math.min(now(), ...curves.map((points) => points[0][0]), ...Object.values(state.events).map((event) => event.at));
  span = chosen || (WINDOWS.find((seconds) => seconds >= now() - oldest) ?? last(WINDOWS));
  const faults = sum(devices.map((device) => device.faults));
  const unwell = ready < devices.length;
  document.title = `${unwell ? "⚠ " : ""}${state.system.name} · atomr_accel`;
  say($("system"), state.system.name);
  say($("command"), `${state.program.command} · process ${state.program.pid}`);
  figures.update([
    ["Devices", devices.length ? ready : "none", unwell ? "wait" : "", devices.length ? ` of ${devices.length} ready` : ""],
    ["Faults", plain.format(faults), faults ? "bad" : ""],
    ["Throughput", short(sum(points.map((point) => point[1]))), "", " ops/s"],
    ["In flight", short(sum(devices.map((device) => device.in_flight))), "", " ops"],
    ["Memory used", ...bytes(sum(devices.map((device) => device.memory.used))).split(" ").flatMap((text, at) => (at ? ["", ` ${text}`] : [text]))],
    ["Actors", plain.format(state.system.actors)],
    ["Restarts", short(sum(actors.map(restartsOf)))],
    ["Queued", short(sum(actors.filter((actor) => actor.generation === undefined).map((actor) => actor.depth))), "", " messages"],
    ["Dead letters", short(state.system.dead_letters), state.system.dead_letters ? "wait" : ""],
  ]);
  if (devices.length || cards.size) {
    keep($("devices"), cards, Object.keys(state.devices), (path) => new Device(path), (card, path) => card.update(state.devices[path]));
  }
  $("devices").parentElement.hidden = !devices.length;
  keep($("patterns"), patterns, Object.keys(state.patterns ?? {}), (name) => new Pattern(name), (card, name) => card.update(state.patterns[name]));
  $("patterns").parentElement.hidden = !patterns.size;
  drawEvents();
  announce();
  drawActors(actorsChanged);
  actorsChanged = false;
  say($("foot"), `atomr_accel ${state.program.version} · Python ${state.program.python} · since ${new Date(state.program.started * 1000).toLocaleString()}`);
  $("main").hidden = false;
}

function drawSoon() {
  if (!scheduled) {
    scheduled = true;
    requestAnimationFrame(draw);
  }
}

function tell(text, tone, notice = "") {
  $("link").className = `pill ${tone}`;
  say($("link"), text);
  say($("notice"), notice);
  $("notice").hidden = !notice;
}

// --- the connection ----------------------------------------------------------------------------

let stream = null;
let again = null;

/** The token comes in the address once, and stays with this tab. Other ports do not see it. */
function token() {
  const given = location.hash.slice(1) || new URLSearchParams(location.search).get("token");
  try {
    if (!given) return sessionStorage.getItem("token");
    sessionStorage.setItem("token", given);
    history.replaceState(null, "", location.pathname); // it is not to be read off the screen
    return given;
  } catch {
    return given; // no storage: the address keeps it
  }
}

const key = token();

function connect() {
  clearTimeout(again);
  stream?.close();
  if (document.hidden) return;
  stream = new EventSource(`events?token=${encodeURIComponent(key)}`);
  stream.addEventListener("state", (event) => {
    state = merge(Object.create(null), JSON.parse(event.data));
    clock = state.at - Date.now() / 1000;
    actorsChanged = true;
    tell("live", "good");
    drawSoon();
  });
  stream.addEventListener("change", (event) => {
    const patch = JSON.parse(event.data);
    for (const [path, actor] of Object.entries(patch.actors ?? {})) {
      if (actor === null || !Object.hasOwn(state.actors, path)) actorsChanged = true;
    }
    merge(state, patch);
    if (patch.at) clock = Math.max(clock - 0.05, patch.at - Date.now() / 1000);
    drawSoon();
  });
  stream.addEventListener("end", () => {
    stream.close();
    tell("ended", "off", state ? "The program has closed its dashboard. What is below is how it was at the end." : "The program has closed its dashboard.");
  });
  stream.addEventListener("error", () => {
    if (stream.readyState === EventSource.CONNECTING) tell("reconnecting", "wait");
    else {
      tell("refused", "bad", "The program does not take this token, or too many look already. Open the address that it tells; this is tried again every few seconds.");
      again = setTimeout(connect, 5000);
    }
  });
}

addEventListener("hashchange", () => location.reload());
document.addEventListener("visibilitychange", () => (document.hidden ? stream?.close() : connect()));
$("filter").addEventListener("input", () => {
  room = ROWS;
  if (state) drawActors(false);
});
$("more").addEventListener("click", () => {
  room += ROWS;
  drawActors(false);
});
$("rows").addEventListener("keydown", onKey);
$("rows").addEventListener("click", (event) => {
  const row = event.target.closest("tr");
  if (!row) return;
  if (event.target.classList.contains("twist")) toggle(row.dataset.path);
  focusRow(row.dataset.path);
});
$("rows").addEventListener("dblclick", (event) => toggle(event.target.closest("tr")?.dataset.path));
$("kinds").append(...Object.entries(KINDS).map(([kind, text]) => el("li", { class: `kind-${kind}`, title: text }, el("span", { class: "key" }), kind)));
setInterval(() => state && stream?.readyState === EventSource.OPEN && drawSoon(), 1000);

$("spans").append(...Object.entries(SPANS).map(([text, seconds]) => {
  const button = el("button", { type: "button", "aria-pressed": seconds === chosen }, text);
  button.addEventListener("click", () => {
    chosen = seconds;
    for (const one of $("spans").children) set(one, { "aria-pressed": one === button });
    if (state) draw();
  });
  return button;
}));

if (key) {
  connect();
  findPrograms();
  setInterval(findPrograms, 10000);
}
else tell("no token", "off", "This address lacks the token. Open the whole address that the program tells (Dashboard.url), with what stands behind the #.");
