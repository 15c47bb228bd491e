// JupyterLab's extension in a notebook: status bar, panel, banner, commands.
//
// Input: one JSON object in the environment variable BROWSER_TEST: {login, user, password, lab,
// chromium, folder}; `login` is the Hub's page, `lab` the one of a running server. The script is told what to do by lines on stdin,
// which it answers with JSON lines; "end" ends it. Screenshots are left in `folder`.
'use strict';
const fs = require('fs');
const path = require('path');
const readline = require('readline');
const { chromium } = require('playwright-core');

const input = JSON.parse(process.env.BROWSER_TEST);
const say = (data) => process.stdout.write(JSON.stringify(data) + '\n');
const flags = [
  '--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-dev-shm-usage',
  '--disable-background-networking', '--disable-component-update', '--disable-sync',
];
const LIMIT = { timeout: 60000 };

// What a line of stdin asks for; each gets the page and the words behind the first one.
const steps = {
  ...require('./sidebar.cjs'),
  async notebook(page) {
    await page.click('.jp-LauncherCard[data-category="Notebook"][title*="Singularity"]', LIMIT);
    await page.waitForSelector('.jp-NotebookPanel .jp-Cell', LIMIT);
    await page.waitForFunction(
      () => /\|\s*Idle/.test(document.querySelector('#jp-main-statusbar')?.textContent || ''),
      null, LIMIT);
  },
  async run(page, code) {
    await page.locator('.jp-NotebookPanel .jp-CodeCell .cm-content').last().click();
    await page.keyboard.insertText(code);
    await page.keyboard.press('Shift+Enter');
  },
  // The status item in a state: its text, its tooltip, and when that was.
  async status(page, state) {
    const item = page.locator(`.jp-Singularity-status[data-state="${state}"]`);
    await item.waitFor(LIMIT);
    const at = Date.now();
    return { at, text: await item.innerText(), title: await item.getAttribute('title') };
  },
  async panel(page) {
    await page.click('.jp-Singularity-status');
    const card = page.locator('.jp-Singularity-card').first();
    await card.waitFor(LIMIT);
    return { text: await card.innerText(), status: await page.locator('.jp-Singularity-link').innerText() };
  },
  async banner(page) {
    const banner = page.locator('.jp-NotebookPanel .jp-Singularity-banner:visible');
    await banner.waitFor(LIMIT);
    return { text: await banner.innerText() };
  },
  async nobanner(page) {
    await page.locator('.jp-Singularity-banner').waitFor({ state: 'hidden', ...LIMIT });
  },
  // A verb of the menu of the first card; its dialog is answered with `word`.
  async verb(page, label, word) {
    const card = page.locator('.jp-Singularity-card').first();
    await card.getByRole('button', { name: 'All actions' }).click();
    await page.locator('.lm-Menu-item', { hasText: label }).first().click();
    const dialog = page.locator('.jp-Dialog');
    await dialog.waitFor(LIMIT);
    const text = await dialog.innerText();
    if (word) await dialog.locator('input').fill(word);
    await dialog.locator('.jp-mod-accept').click();
    await dialog.waitFor({ state: 'detached', ...LIMIT });
    return { text };
  },
  async see(page, text) {
    await page.locator('.jp-Singularity-card', { hasText: text }).first().waitFor(LIMIT);
  },
  async dialog(page) {
    const dialog = page.locator('.jp-Dialog');
    await dialog.waitFor(LIMIT);
    const text = await dialog.innerText();
    await dialog.locator('.jp-Dialog-footer button').last().click();
    await dialog.waitFor({ state: 'detached', ...LIMIT });
    return { text };
  },
  async palette(page, text) {
    await page.keyboard.press('Control+Shift+C');
    await page.locator('.lm-CommandPalette-input').fill(text);
    await page.locator('.lm-CommandPalette-item').first().waitFor(LIMIT);
    const found = await page.locator('.lm-CommandPalette-item').allInnerTexts();
    await page.keyboard.press('Escape');
    return { found };
  },
  async theme(page, name) {
    await page.keyboard.press('Control+Shift+C');
    await page.locator('.lm-CommandPalette-input').fill(name);
    await page.locator('.lm-CommandPalette-item', { hasText: name }).first().click();
    await page.locator(`body[data-jp-theme-name="${name}"]`).waitFor({ state: 'attached', ...LIMIT });
    await page.waitForSelector('#jupyterlab-splash', { state: 'detached', ...LIMIT });
  },
  async shot(page, name, width, height) {
    await page.setViewportSize({ width: Number(width), height: Number(height) });
    await page.screenshot({ path: path.join(input.folder, `${name}.png`) });
  },
};

(async () => {
  const profile = fs.mkdtempSync(path.join(input.folder, 'profile-'));
  const context = await chromium.launchPersistentContext(profile, {
    executablePath: input.chromium, headless: true, args: flags, viewport: { width: 1280, height: 800 },
  });
  const page = context.pages()[0] || (await context.newPage());
  const errors = [];
  page.on('pageerror', (error) => errors.push(String(error)));
  page.on('console', (message) => {
    if (message.type() === 'error' && /singularity/i.test(message.text() + message.location().url)) {
      errors.push(`${message.text()} ${message.location().url}`);
    }
  });
  try {
    await page.goto(input.login, LIMIT);
    await page.fill('#username_input', input.user);
    await page.fill('#password_input', input.password);
    await page.click('#login_submit');
    await page.waitForURL(/\/(hub\/|user\/)(?!login)/, LIMIT);
    await page.goto(input.lab, LIMIT);
    await page.waitForSelector('#jupyterlab-splash', { state: 'detached', timeout: 60000 });
    await page.waitForSelector('.jp-Launcher', LIMIT);
    say({ ready: true });
    for await (const line of readline.createInterface({ input: process.stdin })) {
      if (line === 'end') break;
      const [name, ...words] = JSON.parse(line);
      say({ step: name, ...(await steps[name](page, ...words)) });
    }
    say({ errors });
  } catch (error) {
    await page.screenshot({ path: path.join(input.folder, 'failure.png') }).catch(() => {});
    const shown = await page
      .locator('#jp-main-statusbar, .jp-Singularity-body, .jp-Singularity-banner, .jp-Dialog')
      .allInnerTexts().catch(() => []);
    say({ failed: String(error), url: page.url(), shown, errors });
    process.exitCode = 1;
  } finally {
    await context.close();
    process.stdin.destroy(); // which would keep this process
    fs.rmSync(profile, { recursive: true, force: true });
  }
})();
