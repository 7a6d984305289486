// The few things of the console that HTML and htmx do not do: the dialog, countdowns, the chart, live SOW topics.
"use strict";

const at = document.body.dataset.at ?? "";  // where the pages of this deployment begin
const dialog = document.getElementById("dialog");
const notice = document.getElementById("notice");

// Until htmx has settled what it put in, a form in it is the browser's own: Enter would leave the page.
document.body.addEventListener("htmx:afterSettle", (event) => {
  if (event.detail.target !== dialog || dialog.open) return;
  dialog.setAttribute("aria-label", dialog.querySelector("h2")?.textContent ?? "Refused");
  dialog.showModal();
});
// The focus stays in its place: after a pause the button that resumes is where the other one was. Where a button is
// gone with what it was for, the focus goes to the heading above it.
let pressed = null, part = null;
document.body.addEventListener("htmx:beforeRequest", (event) => {
  if (event.detail.target === dialog) pressed = event.detail.elt, part = pressed.closest("section, main");
});
function keepFocus() {
  if (!pressed || pressed.checkVisibility()) return;
  if ([document.body, pressed].includes(document.activeElement)) {
    const heading = part.querySelector("h1, h2");
    heading.tabIndex = -1;
    const beside = [...(pressed.parentElement?.querySelectorAll("button") ?? [])];
    (beside.find((one) => one.checkVisibility()) ?? heading).focus();
  }
  pressed = null;
}
document.body.addEventListener("htmx:afterSwap", (event) => {
  keepFocus();
  if (event.detail.target === notice) {
    dialog.close();
    fade();
    if (notice.querySelector("[data-done]")) document.body.dispatchEvent(new Event("done"));
  }
});
document.body.addEventListener("htmx:sendError", () => tell("The gateway does not answer."));
document.body.addEventListener("htmx:timeout", () => tell("The gateway has not answered in time."));
if (dialog) dialog.addEventListener("click", (event) => {
  if (event.target === dialog || event.target.closest("[data-close]")) dialog.close();
});

let fading = 0;
function fade() {
  clearTimeout(fading);
  fading = setTimeout(() => notice.replaceChildren(), 8000);
}

function tell(text) {
  const line = document.createElement("p");
  line.textContent = text;
  notice.replaceChildren(line);
  fade();
}

// Characters that turn or hide others are shown as what they are.
function visible(text) {
  return text.replace(/[\0-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u202a-\u202e\u2060\u2066-\u2069\ufeff]/g, (one) => `\\u${one.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

// A browser has six connections to a gateway for all of its pages, and a stream keeps one: a page that nobody sees has none.
function whileSeen(open) {
  let source = document.hidden ? null : open();
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) { source?.close(); source = null; }
    else source ??= open();
  });
}

// Countdowns: how long until an instant, by this machine's clock.
function span(ms) {
  const sign = ms < 0 ? "−" : "";
  let rest = Math.abs(ms) / 1000;
  if (rest < 60) return `${sign}${rest.toFixed(1)} s`;
  const found = [];
  rest = Math.floor(rest);
  for (const [size, unit] of [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]]) {
    if (rest >= size && found.length < 2) found.push(`${Math.floor(rest / size)} ${unit}`);
    rest %= size;
  }
  return sign + found.join(" ");
}
setInterval(() => {
  for (const one of document.querySelectorAll("time[data-until]")) {
    if (one.dataset.until) one.textContent = span(Number(one.dataset.until) - Date.now());
  }
}, 500);

// A page that could not be shown: it is there again once the gateway has what it needs.
const again = document.querySelector("[data-again]");
if (again) {
  const wait = () => setTimeout(async () => {
    const answer = await fetch(location.href, { headers: { Accept: "text/html" } }).catch(() => null);
    if (answer?.ok) location.reload();
    else wait();
  }, Number(again.dataset.again) * 1000);
  wait();
}

// The messages of a queue by state, one above the other, since the page was opened.
const chart = document.getElementById("chart");
if (chart) {
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(`--${name}`).trim();
  const hour = (seconds) => new Date(seconds * 1000).toISOString().slice(11, 19);
  const axis = { stroke: colour("soft"), grid: { stroke: colour("rule"), width: 1 }, ticks: { show: false } };
  const figures = () => [...document.querySelectorAll("#live [data-state]")];
  const states = figures().map((one) => one.dataset.state);
  const area = (state) => ({
    label: state, stroke: colour(state), fill: colour(state), width: 1, points: { show: (plot) => plot.data[0].length < 4 },
  });
  const points = [[], ...states.map(() => [])];
  let plot = null;
  const look = () => {
    const counts = figures().map((one) => one.dataset.count);
    if (counts.includes("")) return;  // no worker answers
    // With a single instant the axis would be a year long: the minute before is there, and empty.
    if (!points[0].length) points[0].push(Date.now() / 1000 - 60), points.slice(1).forEach((one) => one.push(null));
    points[0].push(Date.now() / 1000);
    // The whole first, so that each area lies upon the one that is greater by the state before it.
    states.forEach((_, place) => points[place + 1].push(counts.slice(0, states.length - place).reduce((sum, one) => sum + Number(one), 0)));
    if (points[0].length > 1800) points.forEach((one) => one.shift());
    if (plot) plot.setData(points);
    else plot = new uPlot({
      width: chart.clientWidth, height: chart.clientHeight, legend: { show: false }, cursor: { show: false },
      scales: { x: { range: (_, low, high) => [Math.min(low, high - 60), high] }, y: { range: (_, low, high) => [0, Math.max(1, high * 1.1)] } },
      axes: [{ ...axis, size: 32, space: 90, values: (_, ticks) => ticks.map(hour) }, { ...axis, size: 70 }],
      series: [{}, ...states.toReversed().map(area)],
    }, points, chart);
    chart.dataset.points = points[0].length - 1;
  };
  look();
  document.body.addEventListener("htmx:afterSwap", (event) => event.detail.target.id === "live" && look());
  addEventListener("resize", () => plot && plot.setSize({ width: chart.clientWidth, height: chart.clientHeight }));
}

// The records of a SOW topic, as they change.
const records = document.getElementById("records");
if (records) {
  const most = 1000, state = document.getElementById("state"), none = document.getElementById("no-records"), rows = new Map();
  let live = "Live.";
  const name = (update) => update.key ?? update.key_base64 ?? "";
  const cell = (row, text, kind) => {
    const one = document.createElement(kind);
    one.textContent = text;
    row.append(one);
    return one;
  };
  // JSON is shown as it was written: reading its numbers here would round them. Before the value no name is "value".
  const payload = (update, data) => visible("value" in update ? data.slice(data.indexOf('"value":') + 8, -1) : update.text ?? update.base64 ?? "");
  const show = (update, changed, data) => {
    let row = rows.get(name(update));
    if (!row) {
      if (rows.size >= most) { state.textContent = live = `Live; ${most} records are shown, and there are more: narrow them by a filter.`; return; }
      row = document.createElement("tr");
      row.dataset.partition = update.partition;
      rows.set(name(update), row);
      records.append(row);
    }
    row.replaceChildren();
    cell(row, visible(name(update)), "th").scope = "row";
    cell(row, payload(update, data), "td");
    const until = document.createElement("time");
    until.dataset.until = update.expires_at_ms ?? "";
    until.textContent = update.expires_at_ms === null ? "never" : span(update.expires_at_ms - Date.now());
    const last = cell(row, "", "td");
    last.className = "number";
    last.append(until);
    if (changed) {
      row.classList.add("changed");
      setTimeout(() => row.classList.remove("changed"), 1500);
    }
  };
  whileSeen(() => {
    const source = new EventSource(`${at}/console/sow/${encodeURIComponent(records.dataset.topic)}/follow?filter=${encodeURIComponent(records.dataset.filter)}`);
    const listen = (kind, act) => source.addEventListener(kind, (event) => event.data && act(JSON.parse(event.data), event.data));
    listen("sow", (update, data) => show(update, false, data));
    listen("publish", (update, data) => { show(update, true, data); none.hidden = true; });
    listen("oof", (update) => { rows.get(name(update))?.remove(); rows.delete(name(update)); none.hidden = rows.size > 0; });
    listen("resubscribed", (update) => {  // the shard sends its records again, and some may have left unseen
      for (const [key, row] of rows) if (row.dataset.partition === String(update.partition)) { row.remove(); rows.delete(key); }
    });
    listen("group-end", () => { state.textContent = live; none.hidden = rows.size > 0; });
    source.addEventListener("open", () => { live = "Live."; none.hidden = true; rows.clear(); records.replaceChildren(); });
    source.addEventListener("error", (event) => {
      state.textContent = event.data ? JSON.parse(event.data).error.text
        : source.readyState === EventSource.CLOSED ? "This cannot be followed: see the filter." : "The connection is lost. Trying again…";
    });
    return source;
  });
}

// What workers tell of an entity, while somebody follows.
const tail = document.getElementById("tail");
if (tail) {
  const most = 200, lines = document.getElementById("events"), state = document.getElementById("tail-state");
  let source = null, following = false, last = null;
  const stop = (text) => {
    source?.close();
    source = null;
    following = false;
    tail.setAttribute("aria-pressed", "false");
    tail.textContent = "Follow events";
    state.textContent = text;
  };
  const show = (event) => {
    last = event.at_ms;
    const row = document.createElement("tr");
    const shown = event.messages.slice(0, 3).join(", ") + (event.messages.length > 3 ? " …" : "");
    const why = [...(event.reasons ?? []), event.subscription, event.detail].filter(Boolean).join(", ");
    const texts = [new Date(event.at_ms).toISOString().slice(11, 23), event.event.replaceAll("_", " "), String(event.count), visible(event.key ?? shown), visible(why)];
    texts.forEach((text, place) => {
      const cell = document.createElement(place === 1 ? "th" : "td");
      if (place === 1) cell.scope = "row";
      if (place === 2) cell.className = "number";
      cell.textContent = text;
      row.append(cell);
    });
    lines.prepend(row);
    while (lines.childElementCount > most) lines.lastElementChild.remove();
  };
  tail.addEventListener("click", () => {
    if (following) { stop("Stopped."); return; }
    following = true;
    last = null;
    tail.setAttribute("aria-pressed", "true");
    tail.textContent = "Stop following";
    state.textContent = "Connecting…";
    lines.closest("div").hidden = false;
    open();
  });
  const open = () => {
    // What has happened while the page was not seen is told when it is seen again.
    source = new EventSource(`${at}/v1/events/${encodeURIComponent(tail.dataset.entity)}${last === null ? "" : `?since_ms=${last + 1}`}`);
    source.addEventListener("open", () => { state.textContent = "Live."; });
    source.addEventListener("event", (event) => show(JSON.parse(event.data)));
    source.addEventListener("error", (event) => {
      if (event.data) stop(JSON.parse(event.data).error.text);
      else if (source.readyState === EventSource.CLOSED) stop("The events cannot be followed.");
      else state.textContent = "The connection is lost. Trying again…";
    });
  };
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) { source?.close(); source = null; }
    else if (following) open();
  });
}
