import { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { IToolbarWidgetRegistry, ReactWidget } from '@jupyterlab/apputils';
import { NotebookPanel } from '@jupyterlab/notebook';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';
import * as React from 'react';

import { openMenu } from '../menu';
import { ISession } from '../model/sessions/session';
import { INotebooks, Notebooks } from '../notebooks';
import { ISingularity } from '../tokens';
import { SessionButton } from '../view/button';
import { DOMAIN, PANEL_COMMAND } from './names';

/** The button in the toolbar of each notebook; where it is, `schema/toolbar.json` says. */
export const toolbarPlugin: JupyterFrontEndPlugin<void> = {
  id: 'jupyter-singularity:toolbar',
  description: "The state of a notebook's session in its toolbar, with a menu of what can be done.",
  autoStart: true,
  requires: [ISingularity, INotebooks, IToolbarWidgetRegistry],
  optional: [ITranslator],
  activate: (
    app: JupyterFrontEnd,
    { feed, tiers }: ISingularity,
    notebooks: Notebooks,
    registry: IToolbarWidgetRegistry,
    translator: ITranslator | null
  ): void => {
    const trans = (translator ?? nullTranslator).load(DOMAIN);
    const open = (session: ISession | null, button: HTMLElement) => {
      if (session) {
        openMenu(app.commands, session, button, trans, tiers, [PANEL_COMMAND]);
      }
    };
    registry.addFactory<NotebookPanel>('Notebook', 'singularity', panel => {
      const followed = notebooks.of(panel);
      const item = ReactWidget.create(
        <SessionButton
          followed={followed}
          feed={feed}
          texts={trans}
          open={button => open(followed.session, button)}
        />
      );
      item.addClass('jp-Singularity-toolbar');
      return item;
    });
  }
};
