import { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { INotebookTracker, NotebookActions, NotebookPanel } from '@jupyterlab/notebook';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';

import { cellsWait } from '../model/words/waits';
import { INotebooks, Notebooks } from '../notebooks';
import { markPrompts } from '../view/prompts';
import { DOMAIN } from './names';

/** A mark at the prompts of cells that were run and wait for a device. */
export const promptsPlugin: JupyterFrontEndPlugin<void> = {
  id: 'jupyter-singularity:prompts',
  description: 'Shows at the prompt of a cell that it waits for a device.',
  autoStart: true,
  requires: [INotebooks, INotebookTracker],
  optional: [ITranslator],
  activate: (
    _: JupyterFrontEnd,
    notebooks: Notebooks,
    tracker: INotebookTracker,
    translator: ITranslator | null
  ): void => {
    const trans = (translator ?? nullTranslator).load(DOMAIN);
    const marks = new WeakMap<object, () => void>();
    const mark = (panel: NotebookPanel) => {
      const followed = notebooks.of(panel);
      const look = () => markPrompts(panel.content.widgets, cellsWait(followed.session, trans));
      marks.set(panel.content, look);
      panel.disposed.connect(followed.follow(look));
      panel.content.cellInViewportChanged.connect(look);
      look();
    };
    tracker.widgetAdded.connect((__, panel) => mark(panel));
    const run = (__: unknown, { notebook }: { notebook: object }) => marks.get(notebook)?.();
    NotebookActions.executionScheduled.connect(run);
    NotebookActions.executed.connect(run);
  }
};
