import { ILayoutRestorer, JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { ICommandPalette, ReactWidget } from '@jupyterlab/apputils';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';
import * as React from 'react';

import { act } from '../actions';
import { ISession } from '../model/session';
import { Verb } from '../model/verbs';
import { Whys } from '../model/whys';
import { ISingularity } from '../tokens';
import { Panel } from '../view/panel';
import { DOMAIN, icon, PANEL_COMMAND } from './names';

const PANEL_ID = 'jp-singularity-panel';

/** The sidebar with a card for each session. */
export const panelPlugin: JupyterFrontEndPlugin<void> = {
  id: 'jupyter-singularity:panel',
  description: 'A sidebar with all sessions.',
  autoStart: true,
  requires: [ISingularity],
  optional: [ICommandPalette, ILayoutRestorer, ITranslator],
  activate: (
    app: JupyterFrontEnd,
    { api, sessions, feed }: ISingularity,
    palette: ICommandPalette | null,
    restorer: ILayoutRestorer | null,
    translator: ITranslator | null
  ): void => {
    const trans = (translator ?? nullTranslator).load(DOMAIN);
    const whys = new Whys(session => api.why(session));
    const panel = ReactWidget.create(
      <Panel
        sessions={sessions}
        feed={feed}
        whys={whys}
        texts={trans}
        act={(verb: Verb, session: ISession) => void act(api, verb, session, trans)}
      />
    );
    panel.id = PANEL_ID;
    panel.addClass('jp-Singularity-panel');
    panel.title.icon = icon;
    panel.title.caption = trans.__('Sessions (Singularity)');
    panel.node.setAttribute('role', 'region');
    panel.node.setAttribute('aria-label', trans.__('Sessions'));
    app.shell.add(panel, 'left', { rank: 250, type: 'Sessions' });
    restorer?.add(panel, PANEL_ID);
    app.commands.addCommand(PANEL_COMMAND, {
      label: trans.__('Show sessions'),
      caption: trans.__('Show the sidebar with all sessions'),
      describedBy: { args: { type: 'object', properties: {} } },
      execute: () => app.shell.activateById(PANEL_ID)
    });
    palette?.addItem({ command: PANEL_COMMAND, category: trans.__('Singularity') });
  }
};
