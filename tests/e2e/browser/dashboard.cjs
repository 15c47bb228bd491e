// The dashboard's pages: what an administrator and a user see and do there.
//
// Input: one JSON object in the environment variable BROWSER_TEST: {hub, dashboard, chromium, folder};
// `hub` and `dashboard` are addresses. The script is told what to do by lines on stdin, which it
// answers with JSON lines; "end" ends it. Screenshots are left in `folder`.
'use strict';
const fs = require('fs');
const path = require('path');
const readline = require('readline');
const zlib = require('zlib');
const axe = require('axe-core');
const { chromium } = require('playwright-core');
const owned = require('./owned.cjs');
const { missed, walk } = require('./keyboard.cjs');
const { when } = require('./timing.cjs');

const input = JSON.parse(process.env.BROWSER_TEST);
const say = (data) => process.stdout.write(JSON.stringify(data) + '\n');
const flags = [
  '--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-dev-shm-usage',
  '--disable-background-networking', '--disable-component-update', '--disable-sync',
];
const LIMIT = { timeout: 60000 };

const errors = [];
let browser, context, page;

async function fresh() {
  if (context) await context.close();
  context = await browser.newContext({ viewport: { width: 1280, height: 800 } });
  page = await context.newPage();
  page.on('pageerror', (error) => errors.push(String(error)));
  page.on('console', (message) => {
    if (message.type() === 'error') errors.push(`${message.text()} ${message.location().url}`);
  });
}

const seen = async (status) => ({
  status,
  url: page.url(),
  title: await page.locator('h1').innerText(),
  text: await page.locator('main').innerText(),
  nav: await page.locator('nav[aria-label="Dashboard"] a').allInnerTexts(),
});

// What a line of stdin asks for.
const steps = {
  owned: () => owned(page),
  // As somebody else, with nothing of who was there before; by the link in the Hub's pages.
  async login(user, password) {
    await fresh();
    await page.goto(`${input.hub}hub/login?next=%2Fhub%2Fhome`, LIMIT);
    await page.fill('#username_input', user);
    await page.fill('#password_input', password);
    await page.click('#login_submit');
    await page.waitForURL(/\/hub\/home/, LIMIT);
    await page.getByRole('button', { name: 'Services' }).click();
    await page.getByRole('link', { name: 'singularity' }).click();
    await page.waitForURL(/\/dashboard\//, LIMIT);
    await page.locator('#link[data-state="live"]').waitFor(LIMIT);
    return seen(200);
  },
  // The browser forgets its login at the dashboard, not the one at the Hub.
  async forget() {
    await context.clearCookies({ name: 'singularity-dashboard' });
  },
  async open(where) {
    const answer = await page.goto(input.dashboard + where, LIMIT);
    return seen(answer.status());
  },
  async follow() {
    await page.locator('#link[data-state="live"]').waitFor(LIMIT);
    await page.evaluate(() => { window.stayed = true; });
  },
  // Wait for a text on the page, which is not loaded anew; when it came.
  async see(selector, text) {
    await page.locator(selector, { hasText: text }).first().waitFor(LIMIT);
    const at = Date.now();
    return { at, stayed: await page.evaluate(() => window.stayed === true) };
  },
  // The state of the one session of the list.
  async changed(state) {
    return { at: await when(page, [['#rows tbody td:nth-of-type(3)', state]]) };
  },
  // What a browser that knows nothing of it gets for a page, each file compressed, in bytes.
  async weight(where) {
    const other = await browser.newContext({ storageState: await context.storageState() });
    const fresh = await other.newPage();
    const files = [];
    fresh.on('response', (answer) => {
      const kind = answer.request().resourceType();
      if (!answer.ok() || !['document', 'script', 'stylesheet', 'image', 'font'].includes(kind)) return;
      files.push(answer.body().then(
        (body) => [new URL(answer.url()).pathname, zlib.gzipSync(body).length]));
    });
    await fresh.goto(input.dashboard + where, LIMIT);
    const found = await Promise.all(files);
    await other.close();
    return { files: Object.fromEntries(found) };
  },
  async click(name) {
    await page.getByRole('link', { name }).first().click();
    await page.waitForLoadState();
    return seen(200);
  },
  async fill(label, text) {
    await page.getByLabel(label).fill(text);
  },
  async tick(label) {
    await page.getByLabel(label).check();
  },
  async press(name) {
    const [answer] = await Promise.all([
      page.waitForNavigation(LIMIT),
      page.getByRole('button', { name, exact: true }).click(),
    ]);
    return seen(answer.status());
  },
  // A service that fails from now on, though its event stream goes on; "": one that does not.
  async fault(status) {
    const where = '**/dashboard/**';
    await page.unroute(where);
    if (status) {
      await page.route(where, (route) => route.request().resourceType() === 'fetch'
        ? route.fulfill({ status: Number(status), body: '' }) : route.continue());
    }
  },
  // A button that leads nowhere else.
  async push(name) {
    await page.getByRole('button', { name, exact: true }).click(LIMIT);
  },
  // What has the focus after each of so many steps of the keyboard.
  async tab(count) {
    const found = [];
    for (let n = 0; n < Number(count); n += 1) {
      await page.keyboard.press('Tab');
      found.push(await page.evaluate(() => {
        const it = document.activeElement;
        return (it.innerText || it.getAttribute('aria-label') || it.name || it.tagName).trim();
      }));
    }
    return { found };
  },
  // What of the page can be used and Tab does not lead to.
  async keys() {
    await page.locator('a.skip').focus(); // the first of the page
    await walk(page, 'body :not(body)', 'Tab');
    return { missed: await missed(page, 'body') };
  },
  async enter() {
    await page.keyboard.press('Enter');
    await page.waitForLoadState();
    return seen(200);
  },
  async download(name) {
    const [file] = await Promise.all([
      page.waitForEvent('download', LIMIT),
      page.getByRole('link', { name }).click(),
    ]);
    return { name: file.suggestedFilename(), text: fs.readFileSync(await file.path(), 'utf8') };
  },
  // A form that no page of theirs offers, with the secret of a page that is theirs.
  async post(where, body) {
    return {
      status: await page.evaluate(
        async ([url, text]) => {
          const xsrf = document.querySelector('meta[name="xsrf"]').content;
          const data = new URLSearchParams(`${text}&_xsrf=${encodeURIComponent(xsrf)}`);
          return (await fetch(url, { method: 'POST', body: data })).status;
        },
        [input.dashboard + where, body]),
    };
  },
  // Serious and critical findings.
  async axe() {
    await page.evaluate(axe.source);
    const { violations } = await page.evaluate(() => window.axe.run(document));
    return {
      found: violations
        .filter(({ impact }) => impact === 'serious' || impact === 'critical')
        .map(({ id, nodes }) => ({ id, nodes: nodes.slice(0, 5).map((node) => [node.html, node.failureSummary]) })),
    };
  },
  // The same page without scripts.
  async plain() {
    const other = await browser.newContext({
      javaScriptEnabled: false, storageState: await context.storageState(),
    });
    const still = await other.newPage();
    await still.goto(page.url(), LIMIT);
    const text = await still.locator('main').innerText();
    await other.close();
    return { text };
  },
  async look(scheme, width, height) {
    await page.emulateMedia({ colorScheme: scheme });
    await page.setViewportSize({ width: Number(width), height: Number(height) });
    return {
      wide: await page.evaluate(
        () => document.documentElement.scrollWidth - document.documentElement.clientWidth),
    };
  },
  async shot(name, width = '', height = '', selector = '') {
    if (width) await page.setViewportSize({ width: Number(width), height: Number(height) });
    const file = { path: path.join(input.folder, `${name}.png`) };
    await (selector ? page.locator(selector).first().screenshot(file) : page.screenshot(file));
  },
};

(async () => {
  try {
    browser = await chromium.launch({ executablePath: input.chromium, headless: true, args: flags });
    await fresh();
    say({ ready: true });
    for await (const line of readline.createInterface({ input: process.stdin })) {
      if (line === 'end') break;
      const [name, ...words] = JSON.parse(line);
      say({ step: name, ...(await steps[name](...words)) });
    }
    say({ errors });
  } catch (error) {
    await page.screenshot({ path: path.join(input.folder, 'failure.png') }).catch(() => {});
    const shown = await page.locator('main').innerText().catch(() => '');
    say({ failed: String(error), url: page.url(), shown, errors });
    process.exitCode = 1;
  } finally {
    if (browser) await browser.close();
    process.stdin.destroy(); // which would keep this process
  }
})();
