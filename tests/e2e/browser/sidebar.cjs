// Steps of `extension.cjs` that are about the sidebar: cards that open, and what is in them.
'use strict';

const LIMIT = { timeout: 60000 };
const card = (page, name) =>
  page.locator('.jp-Singularity-row').filter({ has: page.locator(`.jp-Singularity-name:text-is("${name}")`) });

module.exports = {
  // Open a card by the keyboard alone, at a part of it; what is in it.
  async open(page, name, part, text) {
    const row = card(page, name);
    if (!(await row.locator('.jp-Singularity-details').count())) {
      await row.focus();
      await page.keyboard.press('Enter');
    }
    await row.locator(`[role=tab][data-part=${part}]`).click();
    const shown = row.locator('[role=tabpanel]', { hasText: text });
    await shown.waitFor(LIMIT);
    return { text: await shown.innerText() };
  },
  // Close an open card by the keyboard.
  async close(page, name) {
    await card(page, name).focus();
    await page.keyboard.press('Escape');
    await card(page, name).locator('.jp-Singularity-details').waitFor({ state: 'detached', ...LIMIT });
  },
  // A button in the open card; its dialog, which is answered with `word`.
  async press(page, label, word) {
    await page.locator('.jp-Singularity-details').getByRole('button', { name: label, exact: true }).click();
    const dialog = page.locator('.jp-Dialog');
    await dialog.waitFor(LIMIT);
    const text = await dialog.innerText();
    if (word) await dialog.locator('input').fill(word);
    await dialog.locator('.jp-mod-accept').click();
    await dialog.waitFor({ state: 'detached', ...LIMIT });
    return { text };
  },
  // A button of a closed card, which asks nothing.
  async act(page, label, name) {
    await card(page, name).getByRole('button', { name: `${label} ${name}`, exact: true }).click(LIMIT);
  },
  async click(page, label) {
    await page.locator('.jp-Singularity-details').getByRole('button', { name: label }).click();
  },
  // A submenu of a card's menu, by the keyboard; Escape leads back to the button.
  async choose(page, name, label, choice) {
    const button = card(page, name).getByRole('button', { name: 'All actions' });
    await button.focus();
    await page.keyboard.press('Enter');
    await page.locator('.lm-Menu-item', { hasText: label }).hover();
    await page.keyboard.press('ArrowRight');
    const item = page.locator('.lm-Menu-item', { hasText: choice });
    await item.waitFor(LIMIT);
    const items = await page.locator('.lm-Menu-itemLabel').allInnerTexts();
    await item.click();
    return { items };
  },
  async escape(page, name) {
    const button = card(page, name).getByRole('button', { name: 'All actions' });
    await button.focus();
    await page.keyboard.press('Enter');
    await page.locator('.lm-Menu').waitFor(LIMIT);
    await page.keyboard.press('Escape');
    await page.locator('.lm-Menu').waitFor({ state: 'detached', ...LIMIT });
    return { focused: await button.evaluate((element) => element === document.activeElement) };
  },
  // What of the closed card of a session cannot be seen whole: parts that are beyond its edge, and
  // how much of its devices is cut off, in px.
  async cut(page, name) {
    return card(page, name).locator('.jp-Singularity-card').evaluate((whole) => {
      const { bottom, right } = whole.getBoundingClientRect();
      const beyond = [...whole.querySelectorAll('p, button, svg, progress')].filter((part) => {
        const box = part.getBoundingClientRect();
        return box.height && (box.bottom > bottom + 0.5 || box.right > right + 0.5);
      });
      const devices = whole.querySelector('.jp-Singularity-devices');
      return { beyond: beyond.map((part) => part.outerHTML.slice(0, 200)),
               devices: devices.scrollHeight - devices.clientHeight };
    });
  },
  async spark(page, name) {
    const spark = card(page, name).locator('.jp-Singularity-spark');
    await spark.waitFor(LIMIT);
    return { text: await spark.getAttribute('aria-label') };
  },
  async filter(page, text) {
    await page.locator('.jp-Singularity-filter input[type=search]').fill(text);
    // The list is drawn anew a moment later; later still on a busy machine.
    const shown = () => page.locator('.jp-Singularity-name').allInnerTexts();
    for (let names = await shown(), same = 0; ; ) {
      await page.waitForTimeout(100);
      const now = await shown();
      same = String(now) === String(names) ? same + 1 : 0;
      if (same === 5) return { names };
      names = now;
    }
  },
  // Run code in a new cell of the notebook that is shown, which has others from a file.
  async insert(page, code) {
    await page.locator('.jp-NotebookPanel:visible .jp-Cell .jp-InputPrompt').first().click();
    await page.keyboard.press('b');
    await page.keyboard.press('Enter');
    await page.keyboard.insertText(code);
    await page.keyboard.press('Shift+Enter');
  },
  // Save the document of a tab and close it.
  async leave(page, name) {
    const tab = (more) => page.locator(`.lm-DockPanel-tabBar .lm-TabBar-tab${more}`, { hasText: name });
    await page.keyboard.press('Control+s');
    await tab(':not(.jp-mod-dirty)').waitFor(LIMIT);
    await tab('').locator('.lm-TabBar-tabCloseIcon').click();
    await tab('').waitFor({ state: 'detached', ...LIMIT });
  },
  // The tab of a document, once it is there.
  async tab(page, name) {
    await page.locator('.lm-DockPanel-tabBar .lm-TabBar-tabLabel', { hasText: name }).first().waitFor(LIMIT);
  },
};
