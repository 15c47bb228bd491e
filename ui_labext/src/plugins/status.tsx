import { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { ReactWidget } from '@jupyterlab/apputils';
import { INotebookTracker } from '@jupyterlab/notebook';
import { IStatusBar } from '@jupyterlab/statusbar';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';
import * as React from 'react';

import { kernelOf, watchKernel } from '../notebooks';
import { ISingularity } from '../tokens';
import { Status } from '../view/status';
import { DOMAIN, PANEL_COMMAND } from './names';

/** The item in the status bar. */
export const statusPlugin: JupyterFrontEndPlugin<void> = {
  id: 'jupyter-singularity:status',
  description: "The state of the active notebook's session in the status bar.",
  autoStart: true,
  requires: [ISingularity, INotebookTracker, IStatusBar],
  optional: [ITranslator],
  activate: (
    app: JupyterFrontEnd,
    { sessions, feed, behind }: ISingularity,
    notebooks: INotebookTracker,
    bar: IStatusBar,
    translator: ITranslator | null
  ): void => {
    const trans = (translator ?? nullTranslator).load(DOMAIN);
    const listeners = new Set<() => void>();
    const changed = () => listeners.forEach(listener => listener());
    notebooks.currentChanged.connect(changed);
    notebooks.widgetAdded.connect((_, panel) => watchKernel(panel, behind, changed));
    const item = ReactWidget.create(
      <Status
        sessions={sessions}
        feed={feed}
        behind={behind}
        kernel={() => kernelOf(notebooks.currentWidget)}
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
