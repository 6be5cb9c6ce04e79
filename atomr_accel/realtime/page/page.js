// Draws the pictures that the program sends, and sends it what sliders are set to.
// Every text goes in as text.

const $ = (id) => document.getElementById(id);
const canvas = $("picture");
const brush = canvas.getContext("2d", { alpha: false });
const inputs = new Map(); // of parameters by name
const facts = new Map();
const plain = new Intl.NumberFormat("en", { maximumFractionDigits: 2 });
let socket = null;
let over = false;
let image = null;

function el(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function say(id, text, kind) {
  $(id).textContent = text;
  if (kind) $(id).className = `pill ${kind}`;
  else $(id).hidden = !text;
}

// --- the token, which stays out of addresses that the browser sends or keeps -------------------

if (location.hash.length > 1) {
  sessionStorage.setItem("token", decodeURIComponent(location.hash.slice(1)));
  history.replaceState(null, "", location.pathname + location.search);
}
const token = sessionStorage.getItem("token");

// --- what the program says -----------------------------------------------------------------------

function draw(buffer) {
  const [width, height] = new Uint32Array(buffer, 0, 2);
  if (!image || image.width !== width || image.height !== height) {
    canvas.width = width;
    canvas.height = height;
    image = brush.createImageData(width, height);
    image.data.fill(255);
  }
  const from = new Uint8Array(buffer, 8);
  const to = image.data;
  for (let i = 0, j = 0; i < from.length; i += 3, j += 4) {
    to[j] = from[i];
    to[j + 1] = from[i + 1];
    to[j + 2] = from[i + 2];
  }
  brush.putImageData(image, 0, 0);
  canvas.dataset.frames = 1 + Number(canvas.dataset.frames ?? 0);
}

function begin(scene) {
  $("title").textContent = document.title = scene.title;
  inputs.clear();
  $("parameters").replaceChildren(...scene.parameters.map((one) => {
    const name = one.name.replaceAll("_", " ");
    const limits = {};
    if (one.low !== null) limits.min = one.low;
    if (one.high !== null) limits.max = one.high;
    const exact = el("input", { type: "number", step: "any", id: `exact-${one.name}`, ...limits });
    const slider = el("input", { type: "range", min: one.from, max: one.to, step: "any", "aria-label": name });
    const send = (input) => {
      if (input.value === "" || socket.readyState !== WebSocket.OPEN) return;
      say("refused", "");
      socket.send(JSON.stringify({ kind: "set", name: one.name, value: Number(input.value) }));
    };
    slider.addEventListener("input", () => {
      exact.value = slider.value;
      send(slider);
    });
    exact.addEventListener("change", () => send(exact));
    inputs.set(one.name, { slider, exact });
    const unit = one.unit ? [" ", el("span", {}, one.unit)] : [];
    return el("div", { class: "parameter" }, el("label", { for: exact.id }, name, ...unit), exact, slider);
  }));
  $("main").hidden = false;
  say("notice", "");
  say("link", "live", "good");
}

function fact(name, value) {
  let cell = facts.get(name);
  if (!cell) {
    facts.set(name, (cell = el("dd")));
    $("facts").append(el("div", {}, el("dt", {}, name), cell));
  }
  cell.textContent = plain.format(value);
}

function update(state) {
  fact("Steps", state.steps);
  fact("Seconds", state.time);
  fact("Faults", state.faults);
  if (state.late) fact("Late steps", state.late);
  if (state.faults) {
    const many = state.faults === 1 ? "1 fault has" : `${state.faults} faults have`;
    say("fault", `${many} undone ${state.lost} ${state.lost === 1 ? "step" : "steps"}; the scene goes on`);
  }
  for (const [name, value] of Object.entries(state.parameters)) {
    const { slider, exact } = inputs.get(name);
    if (document.activeElement !== slider) slider.value = value;
    if (document.activeElement !== exact) exact.value = Number(value.toPrecision(6));
  }
}

const ANSWERS = {
  scene: begin,
  state: update,
  refused: (message) => say("refused", message.text),
  over: (message) => {
    over = true;
    say("link", "over", "bad");
    say("notice", message.text);
  },
};

// --- the connection ------------------------------------------------------------------------------

function connect() {
  let opened = false;
  const scheme = location.protocol === "https:" ? "wss" : "ws";
  socket = new WebSocket(`${scheme}://${location.host}/scene?token=${encodeURIComponent(token)}`);
  socket.binaryType = "arraybuffer";
  socket.addEventListener("open", () => (opened = true));
  socket.addEventListener("message", ({ data }) => {
    if (typeof data === "string") {
      const message = JSON.parse(data);
      ANSWERS[message.kind](message);
    } else {
      draw(data);
      requestAnimationFrame(() => socket.readyState === WebSocket.OPEN && socket.send('{"kind":"drawn"}'));
    }
  });
  socket.addEventListener("close", () => {
    if (over) return;
    say("link", opened ? "lost" : "refused", "bad");
    if (!opened && !$("main").hidden) say("notice", "The program is gone, or does not answer.");
    else if (!opened) say("notice", "This address has no valid token: open the one that the program gave.");
    if (opened || !$("main").hidden) setTimeout(connect, 1000);
  });
}

if (token) connect();
else {
  say("link", "no token", "bad");
  say("notice", "This address has no token: open the one that the program gave.");
}
$("parameters").addEventListener("submit", (event) => event.preventDefault());
