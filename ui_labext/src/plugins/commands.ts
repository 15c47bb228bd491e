import { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { Dialog, ICommandPalette, showDialog, showErrorMessage } from '@jupyterlab/apputils';
import { INotebookTracker } from '@jupyterlab/notebook';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';

import { act } from '../actions';
import { ISession } from '../model/session';
import { isOffered, verbCaption, verbLabel, VERBS } from '../model/verbs';
import { kernelOf } from '../notebooks';
import { ISingularity } from '../tokens';
import { DOMAIN } from './names';

const WHY_COMMAND = 'singularity:why';

/** One command per verb, in the palette, the Kernel menu and for other extensions. */
export const commandsPlugin: JupyterFrontEndPlugin<void> = {
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
