// JupyterLab's extension in a notebook: status bar, panel, banner, commands.
//
// Input: one JSON object in the environment variable BROWSER_TEST: {login, user, password, lab,
// chromium, folder}; `login` is the Hub's page, `lab` the one of a running server, of JupyterLab or
// of Notebook 7 (`.../notebooks/NAME.ipynb`). The script is told what to do by lines on stdin,
// which it answers with JSON lines; "end" ends it. Screenshots are left in `folder`.
'use strict';
const fs = require('fs');
const path = require('path');
const readline = require('readline');
const axe = require('axe-core');
const { chromium } = require('playwright-core');
const OWN = require('./own.cjs');
const owned = require('./owned.cjs');

const input = JSON.parse(process.env.BROWSER_TEST);
const say = (data) => process.stdout.write(JSON.stringify(data) + '\n');
const flags = [
  '--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-dev-shm-usage',
  '--disable-background-networking', '--disable-component-update', '--disable-sync',
];
const LIMIT = { timeout: 60000 };
const SHORT = { timeout: 5000 };

// What is found wrong in JupyterLab without this extension.
// In Notebook 7 jupyter_scheduler's plugin lacks what it requires, and Notebook's own shortcuts are
// asked for before they are there. What Lab itself, its debugger above all, asks of a kernel that goes
// away meanwhile is cancelled.
const FOREIGN =
  /Unsatisfied version|favicon|'@jupyterlab\/scheduler:plugin' failed|reading 'schema'[^]*notebook_core|Canceled future for/;
// A request that the scheduler refuses, or cannot answer: the browser itself says so.
const REFUSED = /^Failed to load resource: the server responded with a status of (4|5)\d\d/;

// Every word that the page shows for the kernel's status, from its beginning.
function watchKernelWords() {
  const words = (window.kernelWords = new Set());
  const look = () => {
    for (const each of document.querySelectorAll('.jp-Notebook-ExecutionIndicator')) {
      words.add(each.dataset.status);
    }
    for (const each of document.querySelectorAll('#jp-main-statusbar .jp-StatusBar-TextItem')) {
      const word = /\| (\w+)$/.exec(each.textContent);
      if (word) words.add(word[1].toLowerCase());
    }
    const header = document.querySelector('.jp-NotebookKernelStatus')?.textContent;
    if (header) words.add(header.replace('Kernel ', '').toLowerCase());
  };
  new MutationObserver(look).observe(document, {
    subtree: true, childList: true, characterData: true, attributes: true,
  });
}

// Search the command palette and `take` its first item; again where a document that is just being
// opened takes the focus, which closes the palette.
async function search(page, text, take) {
  for (let left = 10; ; left -= 1) {
    try {
      await page.keyboard.press('Control+Shift+C');
      await page.locator('.lm-CommandPalette-input').fill(text, SHORT);
      await take(page.locator('.lm-CommandPalette-item', { hasText: text }).first());
      return;
    } catch (error) {
      if (!left) throw error;
    }
  }
}

// What a line of stdin asks for; each gets the page and the words behind the first one.
const steps = {
  ...require('./sidebar.cjs'),
  ...require('./timing.cjs').steps,
  ...require('./keyboard.cjs').steps,
  ...require('./language.cjs'),
  owned,
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
  // The status item in a state, with a text in it: all its text, its tooltip, and when that was.
  async status(page, state, text = '') {
    const item = page.locator(`.jp-Singularity-status[data-state="${state}"]`, { hasText: text });
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
  async banner(page, text = '') {
    const banner = page.locator('.jp-NotebookPanel .jp-Singularity-banner:visible', { hasText: text });
    await banner.waitFor(LIMIT);
    return { text: await banner.innerText() };
  },
  // The seconds that the banner counts, as soon as they have become fewer, and its own button.
  async countdown(page) {
    const banner = page.locator('.jp-NotebookPanel .jp-Singularity-banner:visible');
    const clock = banner.locator('[role=timer]');
    const seconds = async () => {
      const [, min, s] = /(\d+):(\d\d)$/.exec(await clock.innerText()) || [];
      return 60 * min + Number(s);
    };
    const first = await seconds();
    for (let now = first; ; now = await seconds()) {
      if (now < first) return { first, now, offers: await banner.locator('button').first().innerText() };
      await page.waitForTimeout(100);
    }
  },
  async offered(page, name) {
    await page.locator('.jp-Singularity-banner:visible').getByRole('button', { name }).click(LIMIT);
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
    const asked = await dialog.elementHandle();  // what is refused at once opens another dialog
    await dialog.locator('.jp-mod-accept').click();
    await asked.waitForElementState('hidden', LIMIT);
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
  // A shortcut in the notebook that ends in a dialog.
  async shortcut(page, keys) {
    await page.locator('.jp-NotebookPanel .jp-Notebook').first().focus();
    await page.keyboard.press(keys);
    return this.dialog(page);
  },
  async palette(page, text) {
    await search(page, text, (item) => item.waitFor(SHORT));
    const found = await page.locator('.lm-CommandPalette-item').allInnerTexts();
    await page.keyboard.press('Escape');
    return { found };
  },
  async theme(page, name) {
    await search(page, name, (item) => item.click(SHORT));
    await page.locator(`body[data-jp-theme-name="${name}"]`).waitFor({ state: 'attached', ...LIMIT });
    await page.waitForSelector('#jupyterlab-splash', { state: 'detached', ...LIMIT });
  },
  // An item of a menu of JupyterLab itself.
  async mainmenu(page, menu, label) {
    await page.locator('.lm-MenuBar-item', { hasText: menu }).click();
    await page.locator('.lm-Menu-item', { hasText: label }).first().click(LIMIT);
  },
  // The button in the notebook's toolbar in a state; its menu's entries.
  async button(page, state) {
    const button = page.locator(`.jp-NotebookPanel-toolbar .jp-Singularity-button[data-state="${state}"]`);
    await button.waitFor(LIMIT);
    await this.menu(page);
    const found = await page.locator('.lm-Menu .lm-Menu-itemLabel').allInnerTexts();
    await this.nomenu(page);
    const focused = await button.evaluate((node) => node === document.activeElement);
    return { found: found.filter(Boolean), focused, text: await button.innerText() };
  },
  // The menu of that button, left open.
  async menu(page) {
    await page.locator('.jp-NotebookPanel-toolbar .jp-Singularity-button').click();
    await page.locator('.lm-Menu').waitFor(LIMIT);
  },
  async nomenu(page) {
    await page.locator('.lm-Menu').press('Escape');
    await page.locator('.lm-Menu').waitFor({ state: 'detached', ...LIMIT });
  },
  // The mark at the prompt of a cell that waits.
  async prompt(page) {
    const prompt = page.locator('.jp-mod-singularityWaits .jp-InputPrompt');
    await prompt.waitFor(LIMIT);
    return { text: await prompt.innerText(), title: await prompt.getAttribute('title'),
             label: await prompt.getAttribute('aria-label'), marked: await prompt.count() };
  },
  async noprompt(page) {
    await page.locator('.jp-mod-singularityWaits').waitFor({ state: 'detached', ...LIMIT });
  },
  async output(page, text) {
    await page.locator('.jp-NotebookPanel .jp-OutputArea-output', { hasText: text }).first().waitFor(LIMIT);
  },
  async idle(page) {
    await page.locator('.jp-Notebook-ExecutionIndicator[data-status="idle"]').waitFor(LIMIT);
  },
  async watch(page) {
    await page.evaluate(watchKernelWords);
  },
  // From when on the page knows the session.
  async reload(page) {
    await page.reload();
    await page.locator('.jp-Singularity-button').waitFor(LIMIT);
    await page.evaluate(watchKernelWords);
    await page.locator('.jp-Singularity-button[data-state="running"], ' +
      '.jp-Singularity-button[data-state="parked"]').waitFor(LIMIT);
  },
  // The page anew, and a cell that is run before it learns which notebook has which kernel.
  async early(page, code) {
    const asked = (url) => url.pathname.endsWith('/api/sessions');
    await page.route(asked, async (route) => {
      if (route.request().method() === 'GET') await new Promise((resolve) => setTimeout(resolve, 8000));
      await route.continue().catch(() => {});
    });
    await page.reload();
    await page.locator('.jp-NotebookPanel .jp-Cell').first().waitFor(LIMIT);
    await steps.insert(page, code);
    await page.waitForTimeout(2000);
    await page.unroute(asked);
  },
  // A card that has ended.
  async ended(page, state) {
    await page.locator('.jp-Singularity-card', { hasText: state }).first().waitFor(LIMIT);
  },
  // The page anew, with a scheduler in trouble.
  async fault(page, kind) {
    const api = '**/singularity/api/v1/**';
    await page.unroute(api);
    if (kind === '500') {
      const body = JSON.stringify({ message: 'the ledger cannot be written; nothing was done' });
      await page.route(api, (route) => route.fulfill({ status: 500, body, contentType: 'application/json' }));
    } else if (kind === 'slow') {
      await page.route(api, async (route) => {
        await new Promise((resolve) => setTimeout(resolve, 12000));
        await route.continue().catch(() => {});
      });
    } else if (kind === 'version') {
      const session = { uuid: 'a1', phase: 'hovering' };
      await page.route(api, (route) => route.request().url().includes('/events')
        ? route.fulfill({ contentType: 'text/event-stream',
            body: `event: snapshot\ndata: ${JSON.stringify({ sessions: [session] })}\n\n` })
        : route.fulfill({ json: { sessions: [session], kernels: 7 } }));
    }
    await page.reload();
    await page.waitForSelector('.jp-NotebookPanel .jp-Cell', LIMIT);
  },
  async kernel(page) {
    return { words: [...(await page.evaluate(() => [...window.kernelWords]))] };
  },
  // Whether the document counts as changed.
  async saved(page) {
    await page.keyboard.press('Control+s');
    await page.waitForFunction(() => !document.querySelector('.jp-mod-dirty'), null, LIMIT);
  },
  async dirty(page) {
    return { dirty: (await page.locator('.lm-TabBar-tab.jp-mod-dirty').count()) > 0 };
  },
  // The line of the panel, once it fits a pattern.
  async line(page, pattern) {
    const line = page.locator('.jp-Singularity-link', { hasText: new RegExp(pattern) });
    await line.waitFor({ timeout: 90000 });
    return { text: await line.innerText(), cards: await page.locator('.jp-Singularity-card').count() };
  },
  // What axe finds in our parts.
  async axe(page) {
    await page.evaluate(axe.source);
    const { violations, passes } = await page.evaluate(
      (own) => window.axe.run({ include: own.split(', ').filter((one) => document.querySelector(one)) }),
      OWN);
    return { rules: passes.length, serious: violations
      .filter(({ impact }) => impact === 'serious' || impact === 'critical')
      .map(({ id, nodes }) => `${id}: ${nodes.map((node) => node.html).join(' ')}`) };
  },
  // A picture of the window in a size, or of an element in it.
  async shot(page, name, width, height, selector = '') {
    await page.setViewportSize({ width: Number(width), height: Number(height) });
    const file = { path: path.join(input.folder, `${name}.png`) };
    await (selector ? page.locator(selector).first().screenshot(file) : page.screenshot(file));
  },
};

(async () => {
  const profile = fs.mkdtempSync(path.join(input.folder, 'profile-'));
  const context = await chromium.launchPersistentContext(profile, {
    executablePath: input.chromium, headless: true, args: flags, viewport: { width: 1280, height: 800 },
  });
  const page = context.pages()[0] || (await context.newPage());
  const errors = [];
  page.on('pageerror', (error) => {
    const text = error.stack || String(error);
    if (!FOREIGN.test(text)) errors.push(text);
  });
  page.on('console', (message) => {
    const text = message.text();
    const refused = REFUSED.test(text) && message.location().url.includes('/singularity/api/');
    if (message.type() === 'error' && !FOREIGN.test(text) && !refused) {
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
    await page.waitForSelector('.jp-Launcher, .jp-NotebookPanel .jp-Cell', LIMIT);
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
