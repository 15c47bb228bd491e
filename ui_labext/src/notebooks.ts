import { NotebookPanel } from '@jupyterlab/notebook';

import { Behind } from './model/behind';

/** The kernel of a notebook; null: it has none. */
export function kernelOf(panel: NotebookPanel | null): string | null {
  return panel?.sessionContext.session?.kernel?.id ?? null;
}

/** Call `changed` when a notebook gets another kernel, or its kernel has been started anew. */
export function watchKernel(panel: NotebookPanel, behind: Behind, changed: () => void): void {
  let starts = true;
  panel.sessionContext.kernelChanged.connect(() => {
    starts = true;
    changed();
  });
  panel.sessionContext.statusChanged.connect((_, status) => {
    if (['starting', 'restarting', 'autorestarting'].includes(status)) {
      starts = true;
    } else if (starts && (status === 'idle' || status === 'busy')) {
      starts = false;
      const kernel = kernelOf(panel);
      if (kernel) {
        behind.forget(kernel);
      }
      changed();
    }
  });
}
