import { ILayoutRestorer, JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { ICommandPalette, ReactWidget } from '@jupyterlab/apputils';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';
import * as React from 'react';

import { openMenu } from '../menu';
import { Announcer } from '../model/words/announce';
import { PARTS } from '../model/sessions/details';
import { ISession } from '../model/sessions/session';
import { FirstReports } from '../model/server/usage';
import { Verb } from '../model/words/verbs';
import { Whys } from '../model/words/whys';
import { ISingularity } from '../tokens';
import { Panel } from '../view/panel';
import { DOMAIN, icon, OUTPUT_COMMAND, PANEL_COMMAND, verbCommand } from './names';

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
    { api, sessions, feed, sidebar, tiers }: ISingularity,
    palette: ICommandPalette | null,
    restorer: ILayoutRestorer | null,
    translator: ITranslator | null
  ): void => {
    const { commands, shell } = app;
    const trans = (translator ?? nullTranslator).load(DOMAIN);
    const run = (verb: Verb, session: ISession, more = {}) =>
      void commands.execute(verbCommand(verb), { session: session.id, ...more });
    const panel = ReactWidget.create(
      <Panel
        sessions={sessions}
        feed={feed}
        whys={new Whys(session => api.why(session))}
        sidebar={sidebar}
        announcer={new Announcer(sessions, trans)}
        reports={new FirstReports(session => api.devices(session), sessions.usage)}
        texts={trans}
        actions={{
          act: run,
          menu: (session, at) => openMenu(commands, session, at, trans, tiers),
          restore: (session, { id }) => run('restore', session, { checkpoint: id }),
          fork: (session, { id }) => run('fork', session, { checkpoint: id }),
          output: session => void commands.execute(OUTPUT_COMMAND, { session: session.id })
        }}
      />
    );
    panel.id = PANEL_ID;
    panel.addClass('jp-Singularity-panel');
    panel.title.icon = icon;
    panel.title.caption = trans.__('Sessions (Singularity)');
    panel.node.setAttribute('role', 'region');
    panel.node.setAttribute('aria-label', trans.__('Sessions'));
    shell.add(panel, 'left', { rank: 250, type: 'Sessions' });
    restorer?.add(panel, PANEL_ID);
    commands.addCommand(PANEL_COMMAND, {
      label: trans.__('Show sessions'),
      caption: trans.__('Show the sidebar with all sessions'),
      describedBy: {
        args: {
          type: 'object',
          properties: {
            session: { type: 'string', description: trans.__('Id of a session to open there.') },
            part: { type: 'string', enum: [...PARTS], description: trans.__('What of it.') }
          }
        }
      },
      execute: ({ session, part }) => {
        shell.activateById(PANEL_ID);
        if (typeof session === 'string') {
          sidebar.show(
            session,
            PARTS.find(each => each === part)
          );
        }
      }
    });
    palette?.addItem({ command: PANEL_COMMAND, category: trans.__('Singularity') });
  }
};
