// The playground's page in headless Chromium: every control, and the page's numbers against the decisions.
//
// `make browser` installs what this needs, and runs it. EXAMPLE is the program, REDIS_URL a server for the replicas,
// CODE a folder for the code that the page shows, SCREENSHOTS a folder for pictures, if set.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { writeFileSync } from "node:fs";
import { createInterface } from "node:readline";
import { after, afterEach, before, test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import axe from "axe-core";
import { chromium } from "playwright-core";

const ALGORITHMS = ["token_bucket", "gcra", "leaky_bucket", "sliding_window", "sliding_log", "fixed_window"];
const PATIENCE = 20_000;
const { EXAMPLE, REDIS_URL, CODE, SCREENSHOTS } = process.env;

let browser, server;
const contexts = new Set();

/** Starts the example on a free port: its process and its URL. */
async function start(settings = {}) {
  for (let attempt = 0; attempt < 100; attempt++) {
    const process_ = spawn(EXAMPLE, { env: { ...process.env, REDIS_URL: "", PORT: "0", ...settings } });
    process_.stderr.pipe(process.stderr);
    const line = once(createInterface(process_.stdout), "line").then(([line]) => line);
    const started = await Promise.race([line, once(process_, "exit").then(() => null)]);
    if (started) return { process: process_, url: started.match(/http:\S+/)[0] };
    // A connection that the page tries while the server is gone can take its port for a moment.
    await sleep(100);
  }
  throw new Error("the example does not start");
}

before(async () => {
  server = await start();
  browser = await chromium.launch({
    executablePath: "/usr/bin/chromium",
    args: ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"],
  });
});
after(async () => {
  await browser?.close();
  server?.process.kill();
});

afterEach(async () => {
  await Promise.all([...contexts].map((context) => context.close()));
  contexts.clear();
});

/** Opens the page: with the decisions that it got, the commands that it sent, and the errors on its console. */
async function open({ url = server.url, settings = "", options = {}, context } = {}) {
  context ??= await browser.newContext(options);
  const page = await context.newPage();
  page.setDefaultTimeout(PATIENCE);
  const errors = [], decisions = [], commands = [];
  page.on("console", (message) => message.type() === "error" && errors.push(message.text()));
  page.on("pageerror", (error) => errors.push(String(error)));
  contexts.add(context);
  page.on("request", (request) => assert.ok(request.url().startsWith(url), `${request.url()} is elsewhere`));
  page.on("websocket", (socket) => {
    socket.on("framesent", ({ payload }) => commands.push(JSON.parse(payload)));
    socket.on("framereceived", ({ payload }) =>
      decisions.push(...JSON.parse(payload).filter((event) => event.type === "response")));
  });
  await page.goto(`${url}/#${settings}`);
  await page.locator("article").first().waitFor();
  return { page, errors, decisions, commands, context };
}

const card = (page, algorithm) => page.locator(`article[data-algorithm=${algorithm}]`);
const count = async (page, algorithm, name) =>
  Number(await card(page, algorithm).locator(`[data-count=${name}]`).textContent());
const left = (page, algorithm) => card(page, algorithm).locator(".left");

/** Waits until a condition holds. */
async function until(condition, what) {
  const end = Date.now() + PATIENCE;
  while (!(await condition())) {
    assert.ok(Date.now() < end, `not in time: ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}
const counted = (page, algorithm, name, number) =>
  until(async () => (await count(page, algorithm, name)) === number, `${algorithm}: ${number} ${name}`);

/** The page's numbers are those of the decisions that it got. */
async function agree(page, decisions) {
  for (const algorithm of ALGORITHMS) {
    const of = (is_own, allowed) =>
      decisions.filter((it) => it.algorithm === algorithm && it.is_own === is_own && (it.status === 200) === allowed).length;
    await counted(page, algorithm, "allowed", of(true, true));
    await counted(page, algorithm, "denied", of(true, false));
    await counted(page, algorithm, "others-allowed", of(false, true));
    await counted(page, algorithm, "others-denied", of(false, false));
  }
}

/** How many pixels of a timeline have a colour of the style sheet. */
const pixels = (page, algorithm, color) =>
  card(page, algorithm).locator("canvas").evaluate((canvas, name) => {
    const hex = getComputedStyle(document.documentElement).getPropertyValue(name).trim();
    const wanted = [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
    const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    let found = 0;
    for (let at = 0; at < data.length; at += 4) {
      if (data[at + 3] === 255 && wanted.every((it, index) => data[at + index] === it)) found += 1;
    }
    return found;
  }, color);

test("ten requests at once under a limit of five are five allowed and five denied", async () => {
  const { page, errors, decisions } = await open({ settings: "limit=5&period=2" });
  assert.equal(await page.locator("#store").textContent(), "the embedded store of this process");
  for (const algorithm of ALGORITHMS) {
    await until(async () => (await left(page, algorithm).textContent()) === "5 of 5 left", `${algorithm} is full`);
  }
  await page.getByRole("button", { name: "Send 10" }).click();
  for (const algorithm of ALGORITHMS) {
    await counted(page, algorithm, "allowed", 5);
    await counted(page, algorithm, "denied", 5);
    assert.ok((await pixels(page, algorithm, "--allowed")) > 0, `${algorithm}: allowed requests are drawn`);
    assert.ok((await pixels(page, algorithm, "--denied")) > 0, `${algorithm}: denied requests are drawn`);
    assert.ok((await pixels(page, algorithm, "--level")) > 0, `${algorithm}: the level is drawn`);
    for (const name of ["Others denied", "Without a limit"]) assert.ok(await card(page, algorithm).getByText(name).isHidden());
  }
  await agree(page, decisions);
  // A leaky bucket holds the second request for its turn: four tenths of a second after the first.
  const waits = decisions.filter((it) => it.algorithm === "leaky_bucket" && it.status === 200)
    .map((it) => it.answered_ms - it.arrived_ms).sort((a, b) => a - b);
  waits.forEach((wait, turn) => assert.ok(wait >= turn * 400 - 1, `turn ${turn} waits ${wait} ms`));
  const others = decisions.filter((it) => it.algorithm === "gcra");
  assert.ok(others.every((it) => it.answered_ms - it.arrived_ms < 1_000));
  assert.deepEqual(errors, []);
});

test("the last response has the headers of the layer", async () => {
  const { page, errors } = await open({ settings: "limit=1&period=1&unit=3600000" });
  const response = card(page, "token_bucket").locator(".response pre");
  await page.getByRole("button", { name: "Send a request" }).click();
  await until(async () => (await response.textContent()).includes("200 OK"), "allowed");
  let text = await response.textContent();
  for (const line of ["x-ratelimit-limit: 1", "x-ratelimit-remaining: 0", 'ratelimit: "token_bucket";r=0;t=3600', "hello"]) {
    assert.ok(text.includes(line), `${line} in ${text}`);
  }
  await page.getByRole("button", { name: "Send a request" }).click();
  await until(async () => (await response.textContent()).includes("429 Too Many Requests"), "denied");
  text = await response.textContent();
  for (const line of ["retry-after: 3600", "x-ratelimit-remaining: 0", "cache-control: no-store"]) {
    assert.ok(text.includes(line), `${line} in ${text}`);
  }
  assert.deepEqual(errors, []);
});

test("the button sends one request for a click, and more while it is held by pointer or key", async () => {
  const { page, errors, commands } = await open({ settings: "limit=1000&algorithms=gcra" });
  const sent = () => commands.filter((it) => it.send).length;
  const button = page.getByRole("button", { name: "Send a request" });
  await button.click();
  await counted(page, "gcra", "allowed", 1);
  // As assistive technology clicks.
  await button.evaluate((it) => it.click());
  await counted(page, "gcra", "allowed", 2);
  await button.press("Enter");
  await counted(page, "gcra", "allowed", 3);

  const grows = async (press, release) => {
    const from = await count(page, "gcra", "allowed");
    await press();
    await until(async () => (await count(page, "gcra", "allowed")) >= from + 4, "it is held");
    await release();
    // The page sends nothing any more, so the next request is one for one click.
    await until(async () => !(await button.getAttribute("class") ?? "").includes("held"), "it is released");
    await until(async () => (await count(page, "gcra", "allowed")) === sent(), "all are counted");
    const held = sent();
    await button.evaluate((it) => it.click());
    await counted(page, "gcra", "allowed", held + 1);
    assert.equal(sent(), held + 1);
  };
  await button.hover();
  await grows(() => page.mouse.down(), () => page.mouse.up());
  await button.focus();
  await grows(() => page.keyboard.down(" "), () => page.keyboard.up(" "));
  await grows(() => page.keyboard.down("Enter"), () => page.locator("#limit").focus());
  assert.deepEqual(errors, []);
});

test("algorithms are chosen, and keep their place", async () => {
  const { page, errors } = await open();
  const shown = () => page.locator("article").evaluateAll((all) => all.map((it) => it.dataset.algorithm));
  for (const algorithm of ALGORITHMS) {
    const box = page.locator(`#algorithms input[value=${algorithm}]`);
    await box.uncheck();
    await until(async () => !(await shown()).includes(algorithm), `${algorithm} is gone`);
    await box.check();
    await until(async () => (await shown()).join() === ALGORITHMS.join(), `${algorithm} is back in its place`);
  }
  for (const algorithm of ALGORITHMS.slice(1)) await page.locator(`#algorithms input[value=${algorithm}]`).uncheck();
  await until(async () => (await shown()).join() === "token_bucket", "one is left");
  await page.reload();
  await page.locator("article").first().waitFor();
  assert.deepEqual(await shown(), ["token_bucket"], "a reload keeps the choice");
  assert.deepEqual(errors, []);
});

test("limit, period, unit, burst and sub-windows are those of the decisions and of the code", async () => {
  const { page, errors } = await open();
  await page.getByLabel("Requests", { exact: true }).fill("7");
  await page.getByLabel("Period", { exact: true }).fill("2");
  await page.getByLabel("Unit of the period").selectOption("minutes");
  await page.getByLabel("Burst of buckets").fill("20");
  await page.getByLabel("Sub-windows").fill("12");
  await until(async () => (await left(page, "token_bucket").textContent()) === "20 of 20 left", "the burst");
  await until(async () => (await left(page, "fixed_window").textContent()) === "7 of 7 left", "a window has none");
  const code = async (algorithm) => (await card(page, algorithm).locator(".code pre").textContent()).trim();
  await until(async () => (await code("sliding_window")).includes(", 12)"), "the sub-windows");
  assert.match(await code("token_bucket"), /token_bucket\(limiter, "api", Quota::new\(7, Duration::from_secs\(120\)\)\.burst\(20\), PeerIp\)/);
  assert.match(await code("sliding_window"), /sliding_window_with\("api", Quota::new\(7, Duration::from_secs\(120\)\), 12\)/);
  await page.getByRole("button", { name: "Send a request" }).click();
  const response = card(page, "sliding_log").locator(".response pre");
  await until(async () => (await response.textContent()).includes('"sliding_log";q=7;w=120'), "the policy's header");
  for (const algorithm of ALGORITHMS) writeFileSync(`${CODE}/long_${algorithm}.rs`, (await code(algorithm)) + "\n");

  await page.getByLabel("Period", { exact: true }).fill("1");
  await page.getByLabel("Burst of buckets").fill("");
  await page.getByLabel("Sub-windows").fill("1");
  await until(async () => (await code("gcra")).includes("Quota::per_minute(7), PeerIp)"), "the short form");
  for (const algorithm of ALGORITHMS) writeFileSync(`${CODE}/short_${algorithm}.rs`, (await code(algorithm)) + "\n");
  assert.deepEqual(errors, []);
});

test("the fixed window takes windows of the calendar, and names a wrong time zone", async () => {
  const { page, errors } = await open({ settings: "limit=2&algorithms=gcra,fixed_window" });
  const code = async () => (await card(page, "fixed_window").locator(".code pre").textContent()).trim();
  assert.ok(await page.getByLabel("Time zone").isHidden());
  await page.getByLabel("Windows of the fixed window").selectOption("month");
  await page.getByLabel("From day").fill("15");
  await page.getByLabel("Time zone").fill("Europe/Berln");
  await until(async () => (await page.locator("#problem").textContent()).includes("`Europe/Berlin`"), "the nearest name");
  await page.getByLabel("Time zone").fill("Europe/Berlin");
  await until(async () => (await code()).includes('in_time_zone("Europe/Berlin")'), "the time zone");
  assert.match(await code(), /Quota::per_month\(2\)\.starting_on_day\(15\)\?\.in_time_zone\("Europe\/Berlin"\)\?, PeerIp/);
  writeFileSync(`${CODE}/month.rs`, (await code()) + "\n");
  await page.getByRole("button", { name: "Send 10" }).click();
  await counted(page, "fixed_window", "allowed", 2);
  await counted(page, "fixed_window", "denied", 8);
  const day = (time) => new Intl.DateTimeFormat("en", { timeZone: "Europe/Berlin", day: "numeric", hour: "2-digit", hourCycle: "h23" }).format(time);
  const response = await card(page, "fixed_window").locator(".response pre").textContent();
  const reset = Number(response.match(/x-ratelimit-reset: (\d+)/)[1]);
  assert.equal(day(new Date(reset * 1000)), day(new Date("2026-04-15T00:00+02:00")), "the 15th, 0 hours in Berlin");
  assert.match(await card(page, "fixed_window").locator(".why").textContent(), /^Denied: .* \d+ (d \d+ h|h \d+ min|.* s)\.$/);
  await page.reload();
  await page.locator("article").first().waitFor();
  assert.equal(await page.getByLabel("From day").inputValue(), "15", "a reload keeps the choice");
  await page.getByRole("button", { name: "Window's end" }).click();
  await until(async () => !(await code()).includes("per_month"), "another preset has a period of its own");
  assert.deepEqual(errors, []);
});

test("invalid settings are named, and leave the limits as they are", async () => {
  const { page, errors } = await open({ settings: "limit=5" });
  const problem = page.locator("#problem");
  await page.getByLabel("Requests", { exact: true }).fill("0");
  await until(async () => (await problem.textContent()).startsWith("Requests: "), "the browser's message");
  assert.equal(await page.getByLabel("Requests", { exact: true }).getAttribute("aria-invalid"), "true");
  await page.getByLabel("Requests", { exact: true }).fill("5");
  await until(async () => (await problem.textContent()) === "", "the message is gone");
  // The library's message.
  await page.getByLabel("Period", { exact: true }).fill("90000");
  await page.getByLabel("Unit of the period").selectOption("hours");
  await until(async () => (await problem.textContent()).includes("366 days"), "the library's message");
  await page.getByRole("button", { name: "Send a request" }).click();
  await counted(page, "gcra", "allowed", 1);
  await until(async () => (await left(page, "gcra").textContent()) === "4 of 5 left", "one of five is used");
  assert.deepEqual(errors, []);
});

test("each kind of synthetic traffic comes from its clients, and stops", async () => {
  // Of an hour, so that no request leaves the queue of the leaky bucket while the test counts.
  const { page, errors, decisions } = await open({ settings: "limit=3&period=1&unit=3600000&rate=50" });
  const radio = (name) => page.getByRole("radio", { name });
  const from = (own) => decisions.filter((it) => it.is_own === own).length;
  const stops = async () => {
    await radio("off").check();
    const before = decisions.length;
    await page.getByRole("button", { name: "Send a request" }).click();
    await until(() => decisions.length > before, "the command arrived");
    await page.getByRole("button", { name: "Clear the page" }).click();
    decisions.length = 0;
    // Only this one request is counted from here on.
    await page.getByRole("button", { name: "Send a request" }).click();
    await until(() => decisions.length >= 6, "one request under six algorithms");
    assert.equal(decisions.length, 6, "the traffic has stopped");
    decisions.length = 0;
    await page.getByRole("button", { name: "Clear the page" }).click();
  };
  await page.getByRole("button", { name: "Send 10" }).click();
  await until(() => decisions.some((it) => it.status === 429), "the budgets are empty");

  await radio("steady: evenly").check();
  await until(() => from(true) >= 60, "steady traffic");
  assert.equal(from(false), 0);
  await stops();
  await radio("bursts").check();
  await until(() => from(true) >= 1_200, "a burst of 200 under six algorithms");
  await stops();
  await radio("a crowd").check();
  await until(() => from(false) >= 240, "each of the crowd");
  assert.equal(from(true), 0);
  const crowd = decisions.filter((it) => it.algorithm === "gcra").slice(0, 20);
  assert.ok(crowd.every((it) => it.status === 200), "each of the crowd has a budget of its own");
  await stops();
  await radio("an attack").check();
  await until(() => from(true) >= 12 && from(false) >= 120, "the attack, and the visitor's own requests");
  await radio("off").check();
  assert.ok(await card(page, "gcra").getByText("Others denied").isVisible());
  assert.deepEqual(errors, []);
});

test("the rate of synthetic traffic follows its slider", async () => {
  const { page, errors, decisions } = await open({ settings: "limit=1000&algorithms=gcra&rate=0.5" });
  const slider = page.getByRole("slider");
  await page.getByRole("radio", { name: "steady" }).check();
  await slider.fill("100");
  assert.equal(await page.locator("#rate-value").textContent(), "100");
  await until(() => decisions.length >= 100, "a hundred a second");
  const [first, last] = [decisions[0], decisions[99]];
  assert.ok(last.arrived_ms - first.arrived_ms >= 900, "not faster than that");
  assert.deepEqual(errors, []);
});

test("a reset fills the budgets, and clearing the page does not", async () => {
  const { page, errors } = await open({ settings: "limit=2&period=1&unit=3600000" });
  const send = () => page.getByRole("button", { name: "Send 10" }).click();
  const is = (algorithm, text) => until(async () => (await left(page, algorithm).textContent()) === text, `${algorithm}: ${text}`);
  await send();
  for (const algorithm of ALGORITHMS) await is(algorithm, "0 of 2 left");
  await page.getByRole("button", { name: "Clear the page" }).click();
  for (const algorithm of ALGORITHMS) await counted(page, algorithm, "denied", 0);
  await is("gcra", "0 of 2 left");
  await page.getByRole("button", { name: "Reset my budgets" }).click();
  for (const algorithm of ALGORITHMS) await is(algorithm, "2 of 2 left");
  assert.deepEqual(errors, []);
});

test("the code is copied", async () => {
  const { page, errors } = await open({ options: { permissions: ["clipboard-read", "clipboard-write"] } });
  const code = card(page, "gcra").locator(".code");
  await code.locator("summary").click();
  await code.getByRole("button", { name: "Copy" }).click();
  await code.getByText("Copied.").waitFor();
  const copied = await page.evaluate(() => navigator.clipboard.readText());
  assert.equal(copied, await code.locator("pre").textContent());
  assert.match(copied, /RateLimitLayer::gcra/);
  assert.deepEqual(errors, []);
});

test("a second tab is a second client, unless it takes the same name", async () => {
  const first = await open({ settings: "limit=2&period=1&unit=3600000" });
  await first.page.getByRole("button", { name: "Send 10" }).click();
  await counted(first.page, "gcra", "denied", 8);
  const [page] = await Promise.all([
    first.context.waitForEvent("page"),
    first.page.getByRole("link", { name: "Open a second client" }).click(),
  ]);
  await page.locator("article").first().waitFor();
  await until(async () => (await left(page, "gcra").textContent()) === "2 of 2 left", "a budget of its own");
  const name = await first.page.getByLabel("Name").inputValue();
  assert.notEqual(await page.getByLabel("Name").inputValue(), name);
  await page.getByLabel("Name").fill(name);
  await until(async () => (await left(page, "gcra").textContent()) === "0 of 2 left", "the same budget");
  assert.deepEqual(first.errors, []);
});

test("two processes on one Redis are two replicas", async () => {
  const replicas = await Promise.all([start({ REDIS_URL }), start({ REDIS_URL })]);
  try {
    const settings = "limit=6&period=1&unit=3600000";
    const [one, other] = await Promise.all(replicas.map(({ url }) => open({ url, settings })));
    assert.equal(await one.page.locator("#store").textContent(), "Redis");
    const name = await one.page.getByLabel("Name").inputValue();
    await other.page.getByLabel("Name").fill(name);
    await one.page.getByRole("button", { name: "Send a request" }).click();
    await until(async () => (await left(other.page, "sliding_log").textContent()) === "5 of 6 left", "one budget");
    await Promise.all([one, other].map(({ page }) => page.getByRole("button", { name: "Send 10" }).click()));
    for (const algorithm of ALGORITHMS.filter((it) => it !== "leaky_bucket")) {
      const both = async (name) => (await count(one.page, algorithm, name)) + (await count(other.page, algorithm, name));
      // On a machine that is busy for longer than the deadline, a request passes without a limit. Redis may have
      // counted it nevertheless: its answer came too late.
      const all = async () => (await both("allowed")) + (await both("denied")) + (await both("unlimited"));
      await until(async () => (await all()) === 21, `${algorithm}: all are answered`);
      const [allowed, unlimited] = [await both("allowed"), await both("unlimited")];
      assert.ok(allowed <= 6 && allowed + unlimited >= 6, `${algorithm}: ${allowed} allowed, ${unlimited} unlimited`);
    }
    assert.deepEqual([...one.errors, ...other.errors], []);
  } finally {
    replicas.forEach((it) => it.process.kill());
  }
});

test("in an outage the failure policy decides, and two replicas have a share each", async () => {
  const { page, errors, decisions } = await open({ settings: "limit=10&period=1&unit=3600000&algorithms=fixed_window,gcra" });
  const send = () => page.getByRole("button", { name: "Send 10" }).click();
  await until(async () => (await left(page, "gcra").textContent()) === "10 of 10 left", "a full budget");
  await page.getByLabel("the store does not answer").check();
  await send();
  await counted(page, "gcra", "unlimited", 10);
  await until(async () => (await left(page, "gcra").textContent()) === "", "no limit decides");

  await page.getByRole("radio", { name: "fail closed" }).check();
  await send();
  await counted(page, "gcra", "failed", 10);
  assert.match(await card(page, "gcra").locator(".why").textContent(), /^Rejected: the store does not answer/);

  await page.getByLabel("two replicas").check();
  await page.getByRole("radio", { name: "local" }).check();
  await until(async () => (await left(page, "gcra").textContent()) === "10 of 10 left", "two shares of 5");
  await send();
  await send();
  for (const algorithm of ["gcra", "fixed_window"]) {
    await counted(page, algorithm, "allowed", 10);
    await counted(page, algorithm, "denied", 10);
  }
  const shares = decisions.filter((it) => it.algorithm === "gcra" && it.status === 200 && it.decided_by === "local");
  assert.deepEqual([1, 2].map((replica) => shares.filter((it) => it.replica === replica).length), [5, 5]);
  const code = await card(page, "gcra").locator(".code pre").textContent();
  assert.ok(code.includes(".on_store_failure(OnStoreFailure::local(2))"), code);
  writeFileSync(`${CODE}/local.rs`, code);

  // After the outage, the store's budget is charged with what the shares allowed.
  await page.getByLabel("the store does not answer").uncheck();
  await send();
  await until(async () => (await left(page, "gcra").textContent()) === "0 of 10 left", "one budget");
  await send();
  await until(async () => (await count(page, "gcra", "denied")) >= 20, "it is used up");
  assert.deepEqual(errors, []);
});

test("the page says that the server is gone, and connects again", async () => {
  const gone = await start();
  const { page } = await open({ url: gone.url });
  const connection = page.locator("#connection");
  await until(async () => (await connection.textContent()) === "Connected.", "connected");
  gone.process.kill();
  await until(async () => (await connection.textContent()).startsWith("Not connected"), "not connected");
  const back = await start({ PORT: new URL(gone.url).port });
  await until(async () => (await connection.textContent()) === "Connected.", "connected again");
  await page.getByRole("button", { name: "Send a request" }).click();
  await counted(page, "gcra", "allowed", 1);
  back.process.kill();
});

test("presets make the algorithms differ, and a denial says what it waits for", async () => {
  const { page, errors } = await open();
  await page.getByRole("button", { name: "Page load" }).click();
  await counted(page, "token_bucket", "allowed", 20);
  await counted(page, "sliding_log", "denied", 18);
  const why = (algorithm) => card(page, algorithm).locator(".why").textContent();
  assert.match(await why("sliding_log"), /^Denied: the request that has to leave the log is old enough in \d\.\d s\.$/);
  assert.equal(await why("token_bucket"), "");
  assert.equal(await page.locator("#limit").inputValue(), "2");

  await page.getByRole("button", { name: "Window's end" }).click();
  await until(async () => (await count(page, "fixed_window", "allowed")) === 22, "20 around the end of the window, and 2 before");
  assert.ok((await count(page, "sliding_log", "allowed")) < 22, "10 in any 5 s");

  await page.getByRole("button", { name: "Flood" }).click();
  await until(async () => (await count(page, "gcra", "others-denied")) > 5, "a flood of another client");
  assert.ok(await page.getByRole("radio", { name: "an attack" }).isChecked());
  assert.deepEqual(errors, []);
});

test("on a phone the race stands above the controls, and the button stays in reach", async () => {
  const { page } = await open({ options: { viewport: { width: 390, height: 844 }, isMobile: true, hasTouch: true } });
  const top = (selector) => page.locator(selector).evaluate((it) => it.getBoundingClientRect().top);
  assert.ok((await top("#race-title")) < (await top("#controls")));
  const { y, height } = await page.locator("#send").boundingBox();
  assert.ok(y > 600 && y + height <= 844, `the button is at ${y}`);
});

test("everything is reached by keyboard, named for screen readers, and of enough contrast", async () => {
  for (const [name, options] of [
    ["light", { viewport: { width: 1280, height: 900 }, colorScheme: "light" }],
    ["dark", { viewport: { width: 1280, height: 900 }, colorScheme: "dark" }],
    ["phone", { viewport: { width: 390, height: 844 }, deviceScaleFactor: 2, isMobile: true, hasTouch: true, colorScheme: "light" }],
  ]) {
    const { page, errors, decisions } = await open({ options, settings: "rate=3" });
    const width = await page.evaluate(() => [document.documentElement.scrollWidth, innerWidth]);
    assert.ok(width[0] <= width[1], `${name}: the page is wider than the screen: ${width}`);
    await page.getByRole("radio", { name: "bursts" }).check();
    await card(page, "token_bucket").locator(".response summary").click();
    await card(page, "gcra").locator(".code summary").click();
    await until(() => decisions.some((it) => it.status === 429), "denials");
    await until(async () => (await page.locator("#summary").textContent()).includes("GCRA: "), "a summary for screen readers");
    await page.evaluate(axe.source);
    const { violations } = await page.evaluate(() => window.axe.run());
    assert.deepEqual(violations.map((it) => [it.id, it.nodes.map((node) => node.html)]), [], name);
    // From the first control to the last one.
    const reached = new Set();
    await page.locator("#send").focus();
    for (let step = 0; step < 80; step += 1) {
      const id = await page.evaluate(() => document.activeElement.id || document.activeElement.className || document.activeElement.value);
      reached.add(id);
      await page.keyboard.press("Tab");
    }
    for (const id of ["send-ten", "limit", "period", "unit", "burst", "sub-windows", "rate", "client", "reset", "clear", "second"]) {
      assert.ok(reached.has(id), `${name}: Tab reaches ${id}, of ${[...reached]}`);
    }
    if (SCREENSHOTS) {
      // Some more traffic, for the picture.
      await until(() => decisions.at(-1).arrived_ms > 14_000, "traffic for the picture");
      await page.evaluate(() => document.activeElement.blur());
      await (name === "phone" ? page.locator("#race-title") : page.locator("h1")).scrollIntoViewIfNeeded();
      if (name === "phone") await page.evaluate(() => scrollBy(0, document.querySelector("#race-title").getBoundingClientRect().top - 16));
      await page.screenshot({ path: `${SCREENSHOTS}/playground-${name}.png` });
    }
    assert.deepEqual(errors, [], name);
  }
});
