import { ILayoutRestorer, JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import {
  Dialog,
  ICommandPalette,
  ReactWidget,
  showDialog,
  showErrorMessage
} from '@jupyterlab/apputils';
import { INotebookTracker, NotebookPanel } from '@jupyterlab/notebook';
import { ISettingRegistry } from '@jupyterlab/settingregistry';
import { IStatusBar } from '@jupyterlab/statusbar';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';
import { LabIcon } from '@jupyterlab/ui-components';
import * as React from 'react';

import { act } from './actions';
import { Api } from './api';
import { Behind } from './model/behind';
import { Feed } from './model/feed';
import { nextNotice } from './model/notice';
import { ISession } from './model/session';
import { Sessions } from './model/sessions';
import { isOffered, Verb, verbCaption, verbLabel, VERBS } from './model/verbs';
import { Whys } from './model/whys';
import { ISingularity } from './tokens';
import { Banner } from './view/banner';
import { Panel } from './view/panel';
import { Status } from './view/status';

export { ISingularity } from './tokens';

const DOMAIN = 'jupyter_singularity';
const PANEL_ID = 'jp-singularity-panel';
const PANEL_COMMAND = 'singularity:open-panel';
const WHY_COMMAND = 'singularity:why';

const icon = new LabIcon({
  name: 'jupyter-singularity:icon',
  svgstr:
    '<svg xmlns="http://www.w3.org/2000/svg" width="16" viewBox="0 0 24 24">' +
    '<g class="jp-icon3" fill="#616161"><circle cx="12" cy="12" r="4"/>' +
    '<path d="M12 2a10 10 0 0 1 10 10h-2a8 8 0 0 0-8-8zM12 22A10 10 0 0 1 2 12h2a8 8 0 0 0 8 8z"/>' +
    '</g></svg>'
});

/** The kernel of a notebook; null: it has none. */
function kernelOf(panel: NotebookPanel | null): string | null {
  return panel?.sessionContext.session?.kernel?.id ?? null;
}

/** Call `changed` when a notebook gets another kernel, or its kernel has been started anew. */
function watchKernel(panel: NotebookPanel, behind: Behind, changed: () => void): void {
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

/** The sessions, for all the other plugins. */
const sessionsPlugin: JupyterFrontEndPlugin<ISingularity> = {
  id: 'jupyter-singularity:sessions',
  description: 'Follows the sessions of this user on the Singularity scheduler.',
  autoStart: true,
  provides: ISingularity,
  activate: (app: JupyterFrontEnd): ISingularity => {
    const api = new Api(app.serviceManager.serverSettings);
    const sessions = new Sessions();
    const feed = new Feed(api, sessions);
    void feed.start();
    return { api, sessions, feed, behind: new Behind(() => api.kernels(), sessions) };
  }
};

/** One command per verb, in the palette, the Kernel menu and for other extensions. */
const commandsPlugin: JupyterFrontEndPlugin<void> = {
  id: 'jupyter-singularity:commands',
  description: 'Commands for the session of the active notebook, or for a given one.',
  autoStart: true,
  requires: [ISingularity, INotebookTracker],
  optional: [ICommandPalette, ITranslator],
  activate: (
    app: JupyterFrontEnd,
    { api, sessions, behind }: ISingularity,
    notebooks: INotebookTracker,
    palette: ICommandPalette | null,
    translator: ITranslator | null
  ): void => {
    const trans = (translator ?? nullTranslator).load(DOMAIN);
    const category = trans.__('Singularity');
    const subject = (args: { session?: unknown }): ISession | null => {
      const kernel = kernelOf(notebooks.currentWidget);
      return typeof args.session === 'string'
        ? sessions.get(args.session)
        : kernel
          ? behind.session(kernel)
          : null;
    };
    const args = {
      type: 'object' as const,
      properties: {
        session: {
          type: 'string' as const,
          description: trans.__('Id of a session; without it, the one of the active notebook.')
        }
      }
    };
    const add = (id: string, label: string, caption: string, run: (s: ISession) => unknown) => {
      const verb = VERBS.find(each => id.endsWith(`:${each}`));
      app.commands.addCommand(id, {
        label,
        caption,
        describedBy: { args },
        isEnabled: given => {
          const session = subject(given);
          return session !== null && (!verb || isOffered(verb, session));
        },
        execute: given => {
          const session = subject(given);
          return session && run(session);
        }
      });
      palette?.addItem({ command: id, category });
    };
    for (const verb of VERBS) {
      add(
        `singularity:${verb}`,
        trans.__('%1 session', verbLabel(verb, trans)),
        verbCaption(verb, trans),
        session => act(api, verb, session, trans)
      );
    }
    add(
      WHY_COMMAND,
      trans.__('Why is the session in its state?'),
      trans.__('What it waits for, and until when'),
      async session => {
        try {
          await showDialog({
            title: session.name,
            body: await api.why(session.id),
            buttons: [Dialog.okButton()]
          });
        } catch (error) {
          await showErrorMessage(session.name, error instanceof Error ? error.message : `${error}`);
        }
      }
    );
    sessions.subscribe(() => app.commands.notifyCommandChanged());
  }
};

/** The sidebar with a card for each session. */
const panelPlugin: JupyterFrontEndPlugin<void> = {
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

/** The item in the status bar. */
const statusPlugin: JupyterFrontEndPlugin<void> = {
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

/** The line above a notebook whose session was taken. */
const bannerPlugin: JupyterFrontEndPlugin<void> = {
  id: 'jupyter-singularity:banner',
  description: 'Says in a notebook that its session was taken, why, and what came back.',
  autoStart: true,
  requires: [ISingularity, INotebookTracker],
  optional: [ITranslator, ISettingRegistry],
  activate: (
    _: JupyterFrontEnd,
    { sessions, behind }: ISingularity,
    notebooks: INotebookTracker,
    translator: ITranslator | null,
    registry: ISettingRegistry | null
  ): void => {
    const trans = (translator ?? nullTranslator).load(DOMAIN);
    let wanted = true;
    registry?.load(bannerPlugin.id).then(
      settings => {
        const read = () => {
          wanted = settings.get('show').composite !== false;
        };
        settings.changed.connect(read);
        read();
      },
      (error: Error) => console.error('jupyter-singularity: its settings cannot be read', error)
    );
    notebooks.widgetAdded.connect((__, panel) => {
      const banner = new Banner(trans);
      panel.contentHeader.addWidget(banner);
      const take = (before: ISession | null, now: ISession) => {
        const notice = wanted ? nextNotice(before, now, banner.notice, trans) : null;
        if (notice !== undefined) {
          banner.tell(notice);
        }
      };
      const look = () => {
        const kernel = kernelOf(panel);
        const session = kernel && behind.session(kernel);
        if (session) {
          take(session, session);
        }
      };
      const stops = [
        sessions.watch((before, now) => {
          const kernel = kernelOf(panel);
          if (kernel && behind.session(kernel)?.id === now.id) {
            take(before, now);
          }
        }),
        behind.subscribe(look)
      ];
      watchKernel(panel, behind, look);
      panel.disposed.connect(() => stops.forEach(stop => stop()));
    });
  }
};

export default [sessionsPlugin, commandsPlugin, panelPlugin, statusPlugin, bannerPlugin];
