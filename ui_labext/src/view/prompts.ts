import type { Notebook } from '@jupyterlab/notebook';

type Cell = Notebook['widgets'][number];

const WAITS_CLASS = 'jp-mod-singularityWaits';

/** Whether it is a code cell that was run and has no answer yet. */
function isRun(cell: Cell): boolean {
  const { model } = cell;
  return (
    model.type === 'code' &&
    (model as unknown as { executionState?: string }).executionState === 'running'
  );
}

/**
 * Show at the prompts of `cells` that they wait, with the reason, or that they do not (`why` is
 * empty). The document knows nothing of it: only what is drawn changes.
 */
export function markPrompts(cells: Iterable<Cell>, why: string): void {
  for (const cell of cells) {
    const prompt = cell.node.querySelector('.jp-InputPrompt');
    if (!prompt) {
      continue; // it is out of sight and not drawn; whoever scrolls there looks again
    }
    const waits = why !== '' && isRun(cell);
    if (waits) {
      cell.addClass(WAITS_CLASS);
      prompt.setAttribute('role', 'img');
      prompt.setAttribute('title', why);
      prompt.setAttribute('aria-label', why);
    } else if (cell.hasClass(WAITS_CLASS)) {
      cell.removeClass(WAITS_CLASS);
      ['role', 'title', 'aria-label'].forEach(name => prompt.removeAttribute(name));
    }
  }
}
