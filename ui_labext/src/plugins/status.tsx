import { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { ReactWidget } from '@jupyterlab/apputils';
import { INotebookTracker } from '@jupyterlab/notebook';
import { IStatusBar } from '@jupyterlab/statusbar';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';
import * as React from 'react';

import { INotebooks, Notebooks } from '../notebooks';
import { ISingularity } from '../tokens';
import { Status } from '../view/status';
import { DOMAIN, PANEL_COMMAND } from './names';

/** The item in the status bar. */
export const statusPlugin: JupyterFrontEndPlugin<void> = {
  id: 'jupyter-singularity:status',
  description: "The state of the active notebook's session in the status bar.",
  autoStart: true,
  requires: [ISingularity, INotebooks, INotebookTracker],
  optional: [IStatusBar, ITranslator],
  activate: (
    app: JupyterFrontEnd,
    { feed }: ISingularity,
    notebooks: Notebooks,
    tracker: INotebookTracker,
    bar: IStatusBar | null,
    translator: ITranslator | null
  ): void => {
    if (!bar) {
      return; // Notebook 7 has none: the toolbar says it there
    }
    const trans = (translator ?? nullTranslator).load(DOMAIN);
    const listeners = new Set<() => void>();
    const changed = () => listeners.forEach(listener => listener());
    tracker.currentChanged.connect(changed);
    tracker.widgetAdded.connect((_, panel) => {
      panel.disposed.connect(notebooks.of(panel).follow(changed));
    });
    const item = ReactWidget.create(
      <Status
        feed={feed}
        session={() => (tracker.currentWidget ? notebooks.of(tracker.currentWidget).session : null)}
        subscribe={listener => {
          listeners.add(listener);
          return () => listeners.delete(listener);
        }}
        texts={trans}
        open={() => void app.commands.execute(PANEL_COMMAND)}
      />
    );
    bar.registerStatusItem('jupyter-singularity:status', {
      item,
      align: 'left',
      rank: 3
    });
  }
};
