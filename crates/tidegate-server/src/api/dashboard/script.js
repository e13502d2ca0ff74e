// The dashboard: shows what /v1/live says once per second, and with the admin token asks
// /v1/top and /v1/keys. All text goes in as text, never as markup: keys come from clients.

const SPAN_MS = 120_000; // What a chart shows.
const GAP_MS = 3_500; // Longer without a message: the line of a chart is broken.
const SILENCE_MS = 5_000; // Longer without a message: the connection is made anew.
const RETRY_MS = 1_000;
const FILTERED = 8; // With more policies than this there is a filter.
const TOKEN = "tidegate-admin-token";

const $ = (id) => document.getElementById(id);

/** An element with a class, and children or text. */
function make(tag, name, ...children) {
  const element = document.createElement(tag);
  if (name) element.className = name;
  element.append(...children);
  return element;
}

function draw(tag, attributes, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

/** Changes a text only if it is another one: nothing else is laid out again. */
function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

// ---- Numbers ----

const whole = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });

function count(number) {
  if (number >= 1e9) return `${(number / 1e9).toFixed(2)}G`;
  if (number >= 1e6) return `${(number / 1e6).toFixed(2)}M`;
  if (number >= 1e5) return `${(number / 1e3).toFixed(0)}k`;
  return whole.format(number);
}

function rate(number) {
  if (number >= 1e4) return count(number);
  if (number >= 10) return whole.format(number);
  return String(Math.round(number * 10) / 10);
}

function micros(us) {
  if (us == null) return "–";
  if (us < 10) return `${us.toFixed(1)} µs`;
  if (us < 1_000) return `${Math.round(us)} µs`;
  if (us < 10_000) return `${(us / 1e3).toFixed(1)} ms`;
  if (us < 1e6) return `${Math.round(us / 1e3)} ms`;
  return `${(us / 1e6).toFixed(1)} s`;
}

function span(seconds) {
  if (seconds < 60) return `${Math.floor(seconds)} s`;
  if (seconds < 3_600) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 86_400) return `${Math.floor(seconds / 3_600)} h ${Math.floor((seconds % 3_600) / 60)} min`;
  return `${Math.floor(seconds / 86_400)} d ${Math.floor((seconds % 86_400) / 3_600)} h`;
}

function wait(ms) {
  if (ms < 1_000) return `${ms} ms`;
  if (ms < 60_000) return `${(ms / 1_000).toFixed(1)} s`;
  return span(ms / 1_000);
}

function share(part, all) {
  if (!all || !part) return "0%";
  const percent = (part / all) * 100;
  if (percent < 0.1) return "<0.1%";
  return `${percent < 10 ? percent.toFixed(1) : percent.toFixed(0)}%`;
}

// ---- Charts ----

const WIDTH = 1_000;
const HEIGHT = 100;
const KINDS = ["allowed", "would", "denied"];

/** Rates of the last two minutes, one above the other. */
class Chart {
  constructor(figure, name) {
    this.name = name;
    this.points = [];
    this.paths = KINDS.map((kind) => [draw("path", { class: `${kind} area` }), draw("path", { class: `${kind} line` })]);
    this.hair = draw("line", { class: "hair", y1: 0, y2: HEIGHT, visibility: "hidden" });
    this.svg = draw("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img" }, ...this.paths.flat(), this.hair);
    this.most = make("span", "most");
    this.read = make("span", "read");
    this.read.hidden = true;
    figure.append(this.svg, this.most, this.read);
    figure.addEventListener("pointermove", (event) => this.point(event));
    figure.addEventListener("pointerleave", () => this.point(null));
  }

  /** Takes the rates of a second in. */
  add(at, rates) {
    const sum = rates.allowed + rates.would_deny;
    this.points.push({ at, rates, tops: [rates.allowed, sum, sum + rates.denied] });
    while (this.points[0].at < at - SPAN_MS) this.points.shift();
  }

  show() {
    const last = this.points.at(-1);
    if (!last) return;
    const most = ceiling(Math.max(...this.points.map((point) => point.tops[2])));
    const x = (point) => (WIDTH * (1 - (last.at - point.at) / SPAN_MS)).toFixed(1);
    const y = (value) => (HEIGHT - (value / (most || 1)) * HEIGHT * 0.9 - 0.5).toFixed(1);
    this.paths.forEach(([area, line], kind) => {
      const floor = (point) => (kind === 0 ? 0 : point.tops[kind - 1]);
      const runs = runsOf(this.points, (point) => kind === 0 || point.tops[kind] > floor(point));
      const tops = runs.map((run) => `M${run.map((point) => `${x(point)},${y(point.tops[kind])}`).join("L")}`);
      const areas = runs.map((run, index) => `${tops[index]}L${run.toReversed().map((point) => `${x(point)},${y(floor(point))}`).join("L")}Z`);
      area.setAttribute("d", areas.join(""));
      line.setAttribute("d", tops.join(""));
    });
    say(this.most, most > 0 ? `${rate(most)}/s` : "");
    const { allowed, denied, would_deny: would } = last.rates;
    this.svg.setAttribute("aria-label", `${this.name}, last two minutes; now per second: ${rate(allowed)} allowed, ${rate(denied)} refused, ${rate(would)} would be refused`);
    this.settle();
  }

  /** Reads the second under the pointer out. */
  point(event) {
    if (event) {
      const box = this.svg.getBoundingClientRect();
      this.ago = (1 - (event.clientX - box.left) / box.width) * SPAN_MS;
    } else this.ago = null;
    this.settle();
  }

  settle() {
    const last = this.points.at(-1);
    const near = this.ago != null && last && this.points.find((point) => last.at - point.at <= this.ago + 500);
    this.read.hidden = !near;
    this.hair.setAttribute("visibility", near ? "visible" : "hidden");
    if (!near) return;
    const x = WIDTH * (1 - (last.at - near.at) / SPAN_MS);
    this.hair.setAttribute("x1", x);
    this.hair.setAttribute("x2", x);
    const { allowed, denied, would_deny: would } = near.rates;
    const parts = [`${rate(allowed)} allowed`, `${rate(denied)} refused`];
    if (would) parts.push(`${rate(would)} would be refused`);
    say(this.read, `${Math.round((last.at - near.at) / 1_000)} s ago: ${parts.join(", ")}`);
  }
}

/** The parts of a line where there is something, each with a neighbor on either side. */
function runsOf(points, isThere) {
  const runs = [];
  let run = [];
  points.forEach((point, index) => {
    const before = points[index - 1];
    const isBroken = before && point.at - before.at > GAP_MS;
    if (isBroken && run.length) runs.push(run), (run = []);
    if (isThere(point)) {
      if (!run.length && before && !isBroken) run.push(before);
      run.push(point);
    } else if (run.length) {
      runs.push([...run, point]);
      run = [];
    }
  });
  if (run.length) runs.push(run);
  return runs.filter((run) => run.length > 1);
}

/** The next round number. */
function ceiling(value) {
  if (!(value > 0)) return 0;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10].map((step) => step * power).find((step) => step >= value * 0.9999);
}

// ---- Policies ----

const SOURCES = { store: "store", lease: "lease", refusal_memory: "refusal memory", background: "background", local: "local", error_policy: "on_error" };

/** Names and numbers, such as the rates of a policy. */
function list(name, entries) {
  const numbers = {};
  const rows = entries.map(([key, title]) => {
    numbers[key] = make("dd", "", "–");
    return make("div", key, make("dt", "", title), numbers[key]);
  });
  return [make("dl", name, ...rows), numbers];
}

class PolicyCard {
  constructor(policy) {
    this.name = policy.name;
    this.tags = make("span");
    this.limits = make("ul", "limits");
    const keys = make("button", "plain", "Keys");
    keys.type = "button";
    keys.setAttribute("aria-label", `Keys of ${policy.name}`);
    keys.addEventListener("click", () => showKeys(this.name));
    [this.list, this.numbers] = list("rates", [["allowed", "Allowed"], ["denied", "Refused"], ["would", "Would refuse"]]);
    this.figure = make("figure", "chart");
    this.chart = new Chart(this.figure, policy.name);
    this.p50 = make("b");
    this.p99 = make("b");
    const latency = make("span", "each", make("span", "", "p50 ", this.p50), make("span", "", "p99 ", this.p99));
    this.decided = make("span");
    this.bar = make("div", "sources");
    this.sources = make("span");
    this.from = make("div", "foot", this.sources);
    this.foot = make("div", "foot", latency, this.decided);
    this.element = make("article", "card", make("div", "head", make("h3", "", policy.name), this.tags, keys), this.limits, this.list, this.figure, this.foot, this.bar, this.from);
    this.element.setAttribute("aria-label", `Policy ${policy.name}`);
  }

  take(policy, at) {
    this.policy = policy;
    if (policy.per_s) this.chart.add(at, policy.per_s);
  }

  show() {
    const policy = this.policy;
    const tags = [policy.mode, policy.store];
    if (policy.trial_of) tags.unshift(`trial of ${policy.trial_of}`);
    else if (policy.shadow) tags.unshift("shadow");
    if (!policy.enabled) tags.unshift("off");
    this.element.classList.toggle("is-off", !policy.enabled);
    if (this.tags.dataset.said !== tags.join()) {
      this.tags.dataset.said = tags.join();
      this.tags.replaceChildren(...tags.flatMap((tag) => [make("span", /^(trial|shadow)/.test(tag) ? "tag is-trial" : "tag", tag), " "]));
    }
    const limits = JSON.stringify(policy.levels);
    if (this.limits.dataset.said !== limits) {
      this.limits.dataset.said = limits;
      this.limits.replaceChildren(...policy.levels.map((level) => limitOf(level, policy.levels.length)));
    }
    const { allowed, denied, would_deny: would } = policy.per_s ?? {};
    const all = allowed + denied + would;
    put(this.numbers.allowed, allowed);
    put(this.numbers.denied, denied, share(denied, all));
    put(this.numbers.would, would, share(would, all));
    this.list.hidden = this.figure.hidden = this.foot.hidden = !policy.enabled;
    say(this.p50, micros(policy.p50_us));
    say(this.p99, micros(policy.p99_us));
    const { totals } = policy;
    say(this.decided, `${count(totals.allowed + totals.denied + totals.would_deny)} decided`);
    const sources = Object.entries(policy.sources).sort((one, other) => other[1] - one[1]);
    const sum = sources.reduce((sum, [, rate]) => sum + rate, 0);
    // Only the store decides, as far as most policies go: that is not worth a line.
    const isPlain = sources.every(([source]) => source === "store");
    this.bar.hidden = this.from.hidden = isPlain;
    this.chart.show();
    if (isPlain) return;
    this.bar.replaceChildren(...sources.map(([source, rate]) => {
      const part = make("i", source);
      part.style.flexGrow = rate / sum;
      return part;
    }));
    say(this.sources, `from ${sources.map(([source, rate]) => `${SOURCES[source] ?? source} ${share(rate, sum)}`).join(", ")}`);
  }
}

/** `100r/s, burst 20 per {ip}`, with the level's name where there are several. */
function limitOf(level, levels) {
  const item = make("li", "", make("b", "", level.limit));
  if (level.key) item.append(" per ", make("code", "", level.key));
  else item.append(" in total");
  if (levels > 1) item.append(` (${level.name})`);
  return item;
}

/** A rate, with a share behind it. */
function put(element, number, share) {
  const text = number == null ? "–" : rate(number);
  const small = number ? `/s${share ? ` · ${share}` : ""}` : "";
  if (element.dataset.said === text + small) return;
  element.dataset.said = text + small;
  element.replaceChildren(text, make("small", "", small));
}

// ---- Stores ----

class StoreCard {
  constructor(store) {
    this.state = make("span", "state");
    const isMemory = store.kind === "memory";
    const entries = isMemory ? [["keys", "Keys"], ["evicted", "Evicted"]] : [["breaker", "Breaker"], ["outages", "Outages"], ["errors", "Errors"]];
    [this.list, this.numbers] = list("numbers", [...entries, ["p50", "p50"], ["p99", "p99"]]);
    const head = make("div", "head", make("h3", "", store.name), make("span", "tag", store.kind), this.state);
    this.state.style.marginLeft = "auto";
    this.element = make("article", "card", head, this.list);
    this.element.setAttribute("aria-label", `Store ${store.name}`);
  }

  show(store) {
    const numbers = this.numbers;
    this.state.className = store.up ? "state is-up" : "state is-down";
    say(this.state, store.up ? "up" : `down for ${span(store.down_s ?? 0)}`);
    if (store.kind === "memory") {
      say(numbers.keys, count(store.keys ?? 0));
      say(numbers.evicted, count(store.evicted));
    } else {
      say(numbers.breaker, store.breaker_open ? "open" : "closed");
      numbers.breaker.classList.toggle("is-bad", store.breaker_open);
      say(numbers.outages, count(store.outages));
      say(numbers.errors, store.errors_per_s ? `${count(store.errors)} (${rate(store.errors_per_s)}/s)` : count(store.errors));
      numbers.errors.classList.toggle("is-bad", store.errors_per_s > 0);
    }
    say(numbers.p50, micros(store.p50_us));
    say(numbers.p99, micros(store.p99_us));
  }
}

// ---- The message of a second ----

const policies = new Map();
const stores = new Map();
const everything = new Chart($("all-chart"), "All policies");
$("all-chart").append(make("span", "ago", make("span", "", "2 min ago"), make("span", "", "now")));
let version = null;

function take(message) {
  // A server of another version may speak to another page.
  version ??= message.version;
  if (message.version !== version) return location.reload();
  keep(policies, inOrder(message.policies), $("cards"), (policy) => new PolicyCard(policy));
  keep(stores, message.stores, $("stores"), (store) => new StoreCard(store));
  const sum = { allowed: 0, denied: 0, would_deny: 0 };
  let isNew = false;
  for (const policy of message.policies) {
    policies.get(policy.name).take(policy, message.at_ms);
    if (!policy.per_s) isNew = true;
    else if (!policy.trial_of) for (const kind in sum) sum[kind] += policy.per_s[kind];
  }
  if (!isNew) everything.add(message.at_ms, sum);
  known(message.policies);
  if (!document.hidden) show(message, isNew ? {} : sum);
}

function show(message, sum) {
  for (const card of policies.values()) card.show();
  for (const store of message.stores) stores.get(store.name).show(store);
  everything.show();
  const all = sum.allowed + sum.denied + sum.would_deny;
  put($("all-allowed"), sum.allowed);
  put($("all-denied"), sum.denied, share(sum.denied, all));
  put($("all-would"), sum.would_deny, share(sum.would_deny, all));
  const connections = `${whole.format(message.connections)} ${message.connections === 1 ? "connection" : "connections"}`;
  say($("facts"), `version ${message.version} · up ${span(message.uptime_s)} · ${connections}`);
  const trials = message.policies.filter((policy) => policy.trial_of).length;
  const notes = [`${message.policies.length}`];
  if (message.policies_left_out) notes[0] += ` of ${message.policies.length + message.policies_left_out}`;
  if (trials) notes.push("trials are not in the sums above");
  say($("policies-note"), notes.join(" · "));
  $("filter-box").hidden = message.policies.length <= FILTERED;
}

/** Cards for what there is, in its order; those of what is gone go. */
function keep(cards, items, box, create) {
  const names = new Set(items.map((item) => item.name));
  for (const [name, card] of cards) {
    if (!names.has(name)) card.element.remove(), cards.delete(name);
  }
  items.forEach((item, index) => {
    if (!cards.has(item.name)) cards.set(item.name, create(item));
    const { element } = cards.get(item.name);
    if (box.children[index] !== element) box.insertBefore(element, box.children[index] ?? null);
  });
}

/** Trials stand behind the policy that they are asked beside. */
function inOrder(all) {
  const isOf = (trial, policy) => trial.trial_of === policy.name;
  const lone = all.filter((policy) => !all.some((other) => isOf(policy, other)));
  return lone.flatMap((policy) => [policy, ...all.filter((trial) => isOf(trial, policy))]);
}

$("filter").addEventListener("input", () => {
  const wanted = $("filter").value.toLowerCase();
  for (const [name, card] of policies) card.element.hidden = !name.toLowerCase().includes(wanted);
});

// ---- The connection ----

let source = null;
let heard = Date.now();

function connect() {
  source?.close();
  heard = Date.now();
  source = new EventSource("v1/live");
  source.addEventListener("message", (event) => {
    heard = Date.now();
    status("live", "is-live");
    take(JSON.parse(event.data));
  });
  source.addEventListener("error", () => {
    status("reconnecting", "is-lost");
    // A server that answers with an error is not asked again by the browser itself.
    if (source.readyState === EventSource.CLOSED) setTimeout(connect, RETRY_MS);
  });
}

function status(text, name) {
  say($("status"), text);
  $("status").className = `status ${name}`;
}

setInterval(() => {
  if (Date.now() - heard > SILENCE_MS) {
    status("reconnecting", "is-lost");
    connect();
  }
}, 1_000);

// ---- Keys, with the token ----

let token = sessionStorage.getItem(TOKEN);
let listed = ""; // The policies and attributes that are offered.
let explained = null; // The key that is shown: its policy, and its query.

/** Asks the server with the token. */
async function ask(method, path) {
  const headers = { authorization: `Bearer ${token}` };
  const response = await fetch(path, { method, headers, signal: AbortSignal.timeout(SILENCE_MS) }).catch(() => {
    throw new Error("the server does not answer");
  });
  const body = await response.json().catch(() => ({}));
  if (response.ok) return body;
  if (response.status === 401) {
    lock("The server refuses this token.");
    throw new Error("the server refuses this token");
  }
  throw new Error(body.detail ?? `the server answers ${response.status}`);
}

function lock(why) {
  token = null;
  sessionStorage.removeItem(TOKEN);
  explained = null;
  for (const id of ["top", "levels", "attributes"]) $(id).replaceChildren();
  for (const id of ["top-note", "explain-note", "explain-error"]) say($(id), "");
  listed = "";
  $("unlocked").hidden = $("lock").hidden = true;
  $("unlock").hidden = false;
  $("reset").hidden = true;
  say($("unlock-error"), why);
}

async function unlock() {
  // Any policy will do: the server compares the token before it lists keys.
  const [policy] = policies.keys();
  if (!policy) return say($("unlock-error"), "There is no policy yet.");
  await ask("GET", `v1/top/${encodeURIComponent(policy)}?n=1`);
  sessionStorage.setItem(TOKEN, token);
  say($("unlock-error"), "");
  $("unlock").hidden = true;
  $("unlocked").hidden = $("lock").hidden = false;
  known([...policies.values()].map((card) => card.policy));
  await refreshTop();
}

$("unlock").addEventListener("submit", async (event) => {
  event.preventDefault();
  const given = $("token").value;
  $("token").value = "";
  if (!/^[\x21-\x7e]+$/.test(given)) return say($("unlock-error"), "Expected letters, digits and signs of ASCII.");
  token = given;
  try {
    await unlock();
    $("policy").focus();
  } catch (error) {
    lock(sentence(error));
    $("token").focus();
  }
});

$("lock").addEventListener("click", () => {
  lock("");
  $("token").focus();
});

/** An error's text, as a sentence. */
function sentence({ message }) {
  return `${message[0].toUpperCase()}${message.slice(1)}${message.endsWith(".") ? "" : "."}`;
}

/** Offers the policies there are. */
function known(all) {
  if (!token || $("unlocked").hidden) return;
  const offered = JSON.stringify(all.map((policy) => [policy.name, policy.attributes]));
  if (offered === listed) return;
  listed = offered;
  const chosen = $("policy").value;
  $("policy").replaceChildren(...all.map((policy) => new Option(policy.name)));
  if (all.some((policy) => policy.name === chosen)) $("policy").value = chosen;
  offerAttributes();
}

/** A field for each attribute of the policy. */
function offerAttributes() {
  const attributes = policies.get($("policy").value)?.policy.attributes ?? [];
  const fields = attributes.map((name) => {
    const input = make("input");
    input.name = name;
    input.required = true;
    input.autocomplete = "off";
    input.spellcheck = false;
    return make("label", "", name, input);
  });
  $("attributes").replaceChildren(...fields);
  say($("key-title"), attributes.length === 1 ? attributes[0] : "Key");
  if (!fields.length) $("attributes").append(make("span", "quiet", "One counter for all requests."));
  forget();
}

function forget() {
  explained = null;
  $("levels").replaceChildren();
  $("reset").hidden = true;
  say($("explain-error"), "");
  say($("explain-note"), "");
}

function showKeys(policy) {
  $("keys").scrollIntoView();
  if ($("unlocked").hidden) return $("token").focus({ preventScroll: true });
  $("policy").value = policy;
  $("policy").focus({ preventScroll: true });
  $("policy").dispatchEvent(new Event("change"));
}

$("policy").addEventListener("change", () => {
  offerAttributes();
  refreshTop();
});
$("by").addEventListener("change", refreshTop);
$("window").addEventListener("change", refreshTop);

/** `203.0.113.7`, or `resource r  consumer c` where there are several values. */
function keyParts(key) {
  const entries = Object.entries(key);
  if (entries.length === 1) return [entries[0][1]];
  return entries.flatMap(([name, value], index) => [make("span", "", `${index ? "  " : ""}${name} `), value]);
}

async function refreshTop() {
  const chosen = () => [$("policy").value, $("by").value, $("window").value];
  const [policy, by, since] = chosen();
  if (!policy) return;
  let top;
  try {
    top = await ask("GET", `v1/top/${encodeURIComponent(policy)}?by=${by}&window=${since}&n=10`);
  } catch (error) {
    if (token) say($("top-note"), sentence(error));
    return;
  }
  // Something else was chosen in the meantime.
  if (!token || chosen().join() !== [policy, by, since].join()) return;
  const box = $("top");
  const rows = new Map([...box.children].map((row) => [row.dataset.key, row]));
  const wanted = top.keys.map((entry) => fill(rows.get(JSON.stringify(entry.key)) ?? topRow(entry.key), entry));
  if (!wanted.length) wanted.push(emptyRow(by));
  // Rows stay where they are as long as they can, so that a click or the focus is not lost.
  if (wanted.length !== box.children.length || wanted.some((row, at) => row !== box.children[at])) {
    const focused = document.activeElement;
    box.replaceChildren(...wanted);
    if (box.contains(focused)) focused.focus();
  }
  say($("top-note"), top.error ? `Counts are right to within ${count(top.error)}.` : "");
}

function emptyRow(by) {
  const cell = make("td", "quiet", by === "denied" ? "No key was refused." : "No requests.");
  cell.colSpan = 4;
  return make("tr", "", cell);
}

function topRow(key) {
  const button = make("button", "plain", ...keyParts(key));
  button.type = "button";
  if (!Object.keys(key).length) button.append("all requests");
  button.title = "Explain this key";
  button.addEventListener("click", () => {
    for (const input of $("attributes").querySelectorAll("input")) input.value = key[input.name] ?? "";
    $("explain").requestSubmit();
  });
  const bar = make("span", "share", make("i"));
  const row = make("tr", "", make("td", "", button), make("td", "number"), make("td", "number"), make("td", "", bar));
  row.dataset.key = JSON.stringify(key);
  return row;
}

/** Puts the numbers of a key into its row. */
function fill(row, { requests, denied }) {
  const all = Math.max(requests, denied, 1);
  say(row.cells[1], count(requests));
  say(row.cells[2], count(denied));
  const bar = row.querySelector(".share");
  bar.title = `${share(denied, all)} refused`;
  bar.firstChild.style.width = `${(denied / all) * 100}%`;
  return row;
}

$("explain").addEventListener("submit", async (event) => {
  event.preventDefault();
  const query = new URLSearchParams([...$("attributes").querySelectorAll("input")].map((input) => [input.name, input.value]));
  forget();
  const asked = { policy: $("policy").value, query };
  explained = asked;
  await refreshKey();
});

async function refreshKey() {
  const asked = explained;
  if (!asked) return;
  try {
    const key = await ask("GET", `v1/keys/${encodeURIComponent(asked.policy)}?${asked.query}`);
    if (explained !== asked) return;
    asked.levels = key.levels;
    say($("explain-error"), "");
    $("levels").replaceChildren(...key.levels.map(levelOf));
    $("reset").hidden = false;
    if (!key.enabled) say($("explain-note"), "The policy is off: nothing is counted.");
    else if (key.shadow) say($("explain-note"), "In shadow mode: nothing is refused.");
  } catch (error) {
    if (explained !== asked) return;
    $("levels").replaceChildren();
    say($("explain-error"), sentence(error));
  }
}

/** A level as it stands: how much of its limit is used, and when that changes. */
function levelOf(level) {
  const name = make("b", "", level.name);
  const settings = level.settings;
  const element = make("div", "level");
  const limit = !settings ? "exempt" : settings.limit ? `${settings.limit}${settings.burst ? `, burst ${settings.burst}` : ""}, ${settings.algorithm.replaceAll("_", " ")}` : "block";
  element.append(make("div", "head", name, make("span", "quiet small", limit)));
  element.append(make("div", "key", level.key || make("span", "", "one counter for all")));
  const foot = make("div", "foot");
  if (level.limit == null) {
    element.classList.add("is-free");
    foot.append(settings ? "nothing is counted" : "an override exempts this key");
  } else {
    const isEmpty = level.remaining === 0;
    element.classList.toggle("is-empty", isEmpty);
    const used = level.limit ? 1 - level.remaining / level.limit : 1;
    const gauge = make("div", "gauge", part(used, ""));
    const leased = Math.min(level.leased_tokens ?? 0, level.limit - level.remaining);
    if (leased > 0) gauge.append(part(leased / level.limit, "leased"));
    gauge.setAttribute("role", "meter");
    gauge.setAttribute("aria-label", `Used of level ${level.name}`);
    gauge.setAttribute("aria-valuemin", 0);
    gauge.setAttribute("aria-valuemax", level.limit);
    gauge.setAttribute("aria-valuenow", level.limit - level.remaining);
    element.append(gauge);
    foot.append(make("span", "", make("b", "", whole.format(level.remaining)), ` of ${whole.format(level.limit)} left`));
    if (level.leases) foot.append(make("span", "", `${whole.format(level.leased_tokens)} on lease to ${level.leases === 1 ? "1 lease" : `${level.leases} leases`}`));
    if (isEmpty) foot.append(make("b", "error", level.retry_after_ms == null ? "waiting will not help" : `refuses for ${wait(level.retry_after_ms)}`));
    foot.append(make("span", "", level.reset_after_ms ? `full in ${wait(level.reset_after_ms)}` : "full"));
  }
  element.append(foot);
  const overridden = Object.entries(level.overridden_by ?? {});
  if (overridden.length) element.append(make("div", "quiet small", `override for ${overridden.map(([name, value]) => `${name} ${value}`).join(", ")}`));
  if (level.hash) element.append(make("div", "quiet small", "in logs and records: ", make("code", "", level.hash)));
  return element;
}

function part(share, name) {
  const bar = make("i", `${name}${share > 0 ? "" : " is-zero"}`);
  bar.style.width = `${Math.min(Math.max(share, 0), 1) * 100}%`;
  return bar;
}

// ---- Reset ----

$("reset").addEventListener("click", () => {
  const { query, levels } = explained;
  $("confirm-key").replaceChildren(make("span", "", `${explained.policy} `), ...keyParts(Object.fromEntries(query)));
  const choices = levels.map((level) => [`level=${encodeURIComponent(level.name)}`, `${level.name}: ${level.key || "one counter for all"}`]);
  const empty = levels.findIndex((level) => level.remaining === 0);
  const chosen = empty < 0 ? levels.length - 1 : empty;
  if (levels.length > 1) choices.push(["all=true", "all levels, with counters that other keys share"]);
  const radios = choices.map(([value, title], index) => {
    const input = make("input");
    Object.assign(input, { type: "radio", name: "which", value, checked: index === chosen });
    return make("label", "", input, title);
  });
  const [legend] = $("confirm-levels").children;
  $("confirm-levels").replaceChildren(legend, ...radios);
  $("confirm-levels").hidden = levels.length < 2;
  $("confirm").returnValue = "";
  $("confirm").showModal();
});

$("confirm").addEventListener("close", async () => {
  if ($("confirm").returnValue !== "reset" || !explained) return;
  const { policy, query } = explained;
  const which = $("confirm-levels").querySelector("input:checked").value;
  const parts = [query.toString(), which].filter(Boolean).join("&");
  try {
    const { forgotten } = await ask("DELETE", `v1/keys/${encodeURIComponent(policy)}?${parts}`);
    say($("explain-note"), forgotten ? "Reset: the quota is full again." : "There was nothing to reset.");
    await refreshKey();
  } catch (error) {
    say($("explain-error"), sentence(error));
  }
});

// Every second or two as long as somebody looks.
let turn = 0;
setInterval(() => {
  if (!token || document.hidden || $("unlocked").hidden) return;
  turn += 1;
  refreshKey();
  if (turn % 2) refreshTop();
}, 1_000);

say($("host"), location.host);
connect();
if (token) {
  // The first message says which policies there are. The server may be away for a while.
  const begin = setInterval(async () => {
    if (!policies.size) return;
    clearInterval(begin);
    await unlock().catch((error) => lock(sentence(error)));
  }, 100);
}
