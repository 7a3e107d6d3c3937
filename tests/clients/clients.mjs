// Each client sends two requests. The second is denied, and the client's retry after the wait is allowed.
//
// node clients.mjs URL

import { readFileSync } from "node:fs";
import { Octokit } from "@octokit/core";
import { throttling } from "@octokit/plugin-throttling";
import axios from "axios";
import axiosRetry from "axios-retry";
import got from "got";
import ky from "ky";
import { parseRateLimit } from "ratelimit-header-parser";
import { Agent, request, RetryAgent } from "undici";

const url = process.argv[2];
const { dependencies } = JSON.parse(readFileSync(new URL("package.json", import.meta.url)));

// How each client sends a request, with a retry if it knows one.
const clients = {
  ky: (path, headers) => ky.get(url + path, { headers, retry: { limit: 1 } }),
  got: (path, headers) => got(url + path, { headers, retry: { limit: 1 } }),
  "axios-retry": (path, headers) => {
    const client = axios.create();
    axiosRetry(client, {
      retries: 1,
      retryCondition: (error) => error.response?.status === 429,
      retryDelay: axiosRetry.exponentialDelay,
    });
    return client.get(url + path, { headers });
  },
  undici: async (path, headers) => {
    const dispatcher = new RetryAgent(new Agent(), { maxRetries: 1, minTimeout: 1 });
    const response = await request(url + path, { headers, dispatcher });
    await response.body.text();
    if (response.statusCode !== 200) throw new Error(`status ${response.statusCode}`);
  },
  "@octokit/plugin-throttling": (path, headers) => {
    const Throttled = Octokit.plugin(throttling);
    const retry = (_seconds, _options, _octokit, retries) => retries === 0;
    const throttle = { onRateLimit: retry, onSecondaryRateLimit: retry };
    const quiet = { debug() {}, info() {}, warn() {}, error() {} };
    const octokit = new Throttled({ baseUrl: url, throttle, log: quiet });
    return octokit.request(`GET ${path}`, { headers });
  },
};

// This one only parses: the families that it knows.
async function parse(family) {
  const headers = { "x-client": `parser-${family}` };
  await fetch(`${url}/${family}`, { headers });
  const denied = await fetch(`${url}/${family}`, { headers });
  const limit = parseRateLimit(denied);
  const seconds = (limit.reset - Date.now()) / 1000;
  if (limit.remaining !== 0 || !(seconds > 0)) throw new Error(JSON.stringify(limit));
  await new Promise((resolve) => setTimeout(resolve, seconds * 1000));
  const next = await fetch(`${url}/${family}`, { headers });
  if (next.status !== 200) throw new Error(`too early: ${next.status}`);
}

const runs = Object.entries(clients).map(async ([name, send]) => {
  const headers = { "x-client": name };
  await fetch(`${url}/default`, { headers });
  await send("/default", headers);
  console.log(`${name} ${dependencies[name]}`);
});
for (const family of ["default", "draft6", "draft7"]) {
  runs.push(parse(family).then(() => {
    console.log(`ratelimit-header-parser ${dependencies["ratelimit-header-parser"]}, ${family}`);
  }));
}
const failures = (await Promise.allSettled(runs)).filter(({ reason }) => reason);
failures.forEach(({ reason }) => console.error(reason));
process.exit(failures.length);
