// A person's first five minutes: log in, choose tier and devices, open a notebook, use a device.
//
// Input: one JSON object in the environment variable BROWSER_TEST: {url, user, password, chromium,
// folder, cells: [{code, expect}]}. Output: one JSON line per step, "done" last; exit code 0 only
// then. A screenshot of the end (or of the failure) is left in `folder`.
'use strict';
const fs = require('fs');
const path = require('path');
const { chromium } = require('playwright-core');

const input = JSON.parse(process.env.BROWSER_TEST);
const say = (step, data = {}) => process.stdout.write(JSON.stringify({ step, ...data }) + '\n');
const flags = [
  '--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-dev-shm-usage',
  '--disable-background-networking', '--disable-component-update', '--disable-sync',
];

async function idle(page) {
  await page.waitForFunction(
    () => /\|\s*Idle/.test(document.querySelector('#jp-main-statusbar')?.textContent || ''),
    null, { timeout: 60000 });
}

async function run(page, number, cell) {
  // Shift+Enter before the kernel is ready would lose the run without a word.
  await idle(page);
  const editors = page.locator('.jp-NotebookPanel .jp-CodeCell .cm-content');
  await editors.nth(number).click();
  await page.keyboard.insertText(cell.code);
  await page.keyboard.press('Shift+Enter');
  const output = page.locator('.jp-NotebookPanel .jp-CodeCell').nth(number).locator('.jp-OutputArea');
  await page.waitForFunction(
    ([n, text]) => {
      const cells = document.querySelectorAll('.jp-NotebookPanel .jp-CodeCell');
      const prompt = cells[n]?.querySelector('.jp-InputPrompt')?.textContent || '';
      const out = cells[n]?.querySelector('.jp-OutputArea')?.textContent || '';
      return /\[\d+\]/.test(prompt) && (out.includes(text) || /Error/.test(out));
    },
    [number, cell.expect], { timeout: 60000 });
  const text = await output.innerText();
  say('cell', { code: cell.code, output: text });
  if (!text.includes(cell.expect)) throw new Error(`cell ${number} printed ${text}`);
}

(async () => {
  const profile = fs.mkdtempSync(path.join(input.folder, 'profile-'));
  const context = await chromium.launchPersistentContext(profile, {
    executablePath: input.chromium, headless: true, args: flags, viewport: { width: 1400, height: 900 },
  });
  const page = context.pages()[0] || (await context.newPage());
  const hosts = new Set();
  const errors = [];
  page.on('request', (request) => hosts.add(new URL(request.url()).hostname));
  page.on('pageerror', (error) => errors.push(String(error)));
  try {
    await page.goto(`${input.url}hub/login`);
    await page.fill('#username_input', input.user);
    await page.fill('#password_input', input.password);
    await page.click('#login_submit');
    await page.waitForURL(/\/hub\/spawn/, { timeout: 60000 });
    say('login');

    await page.getByLabel('Premium').check();
    await page.getByLabel('Devices').fill('2');
    say('form', { free: await page.locator('#singularity-free').innerText() });
    await page.screenshot({ path: path.join(input.folder, 'form.png') });
    await page.locator('#spawn_form input[type=submit], #spawn_form button[type=submit]').click();
    await page.waitForURL(new RegExp(`/user/${input.user}/lab`), { timeout: 60000 });
    await page.waitForSelector('#jupyterlab-splash', { state: 'detached', timeout: 60000 });
    await page.waitForSelector('.jp-Launcher', { timeout: 60000 });
    say('lab');

    await page.click('.jp-LauncherCard[data-category="Notebook"][title*="Singularity"]');
    await page.waitForSelector('.jp-NotebookPanel .jp-Cell', { timeout: 60000 });
    for (const [number, cell] of input.cells.entries()) await run(page, number, cell);
    await idle(page);
    const toasts = await page.locator('.Toastify__toast').count();
    await page.screenshot({ path: path.join(input.folder, 'notebook.png') });
    say('done', { hosts: [...hosts], errors, toasts });
  } catch (error) {
    await page.screenshot({ path: path.join(input.folder, 'failure.png') }).catch(() => {});
    const shown = await page.locator('.jp-NotebookPanel, #jp-main-statusbar').allInnerTexts().catch(() => []);
    say('failed', { message: String(error), url: page.url(), shown });
    process.exitCode = 1;
  } finally {
    await context.close();
    fs.rmSync(profile, { recursive: true, force: true });
  }
})();
