import { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { Dialog, ICommandPalette, showDialog, showErrorMessage } from '@jupyterlab/apputils';
import { INotebookTracker } from '@jupyterlab/notebook';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';
import { ReadonlyPartialJSONObject } from '@lumino/coreutils';

import { Actions } from '../actions';
import { IBack, nextOf } from '../model/sessions/back';
import { inWords, sentence } from '../model/server/refused';
import { ISession } from '../model/sessions/session';
import {
  ASKS,
  commandLabel,
  isOffered,
  KEYS,
  Verb,
  verbCaption,
  verbLabel,
  VERBS
} from '../model/words/verbs';
import { duration, sizeText } from '../model/words/words';
import { kernelOf } from '../notebooks';
import { ISingularity } from '../tokens';
import { DOMAIN, OUTPUT_COMMAND, verbCommand, WHY_COMMAND } from './names';

/** One command per verb, in the palette, the Kernel menu and for other extensions. */
export const commandsPlugin: JupyterFrontEndPlugin<void> = {
  id: 'jupyter-singularity:commands',
  description: 'Commands for the session of the active notebook, or for a given one.',
  autoStart: true,
  requires: [ISingularity, INotebookTracker],
  optional: [ICommandPalette, ITranslator],
  activate: (
    app: JupyterFrontEnd,
    { api, sessions, behind, sidebar, tiers }: ISingularity,
    notebooks: INotebookTracker,
    palette: ICommandPalette | null,
    translator: ITranslator | null
  ): void => {
    const trans = (translator ?? nullTranslator).load(DOMAIN);
    const category = trans.__('Singularity');
    const open = async (back: IBack): Promise<boolean> => {
      const panel = notebooks.find(each => each.context.path === back.path) ?? null;
      switch (nextOf(back, panel !== null, kernelOf(panel) !== null)) {
        case 'open': {
          const kernel = { id: back.kernel };
          await app.commands.execute('docmanager:open', { path: back.path, kernel });
          return true;
        }
        case 'connect':
          await panel?.sessionContext.changeKernel({ id: back.kernel });
          app.shell.activateById(panel?.id ?? '');
          return true;
        case 'say':
          return false;
      }
    };
    const save = async (session: ISession): Promise<void> => {
      const its = notebooks.filter(panel => {
        const kernel = kernelOf(panel);
        return kernel !== null && behind.session(kernel)?.id === session.id;
      });
      const changed = its.filter(panel => panel.context.model.dirty);
      await Promise.all(changed.map(panel => panel.context.save()));
    };
    const actions = new Actions(api, tiers, trans, open, save);
    const subject = (args: ReadonlyPartialJSONObject): ISession | null => {
      const kernel = kernelOf(notebooks.currentWidget);
      return typeof args.session === 'string'
        ? sidebar.session(args.session)
        : kernel
          ? behind.session(kernel)
          : null;
    };
    const properties = {
      session: {
        type: 'string' as const,
        description: trans.__('Id of a session; without it, the one of the active notebook.')
      }
    };
    const add = (
      id: string,
      label: (args: ReadonlyPartialJSONObject) => string,
      caption: string,
      fits: (session: ISession) => boolean,
      run: (session: ISession, args: ReadonlyPartialJSONObject) => unknown,
      more = {}
    ) => {
      app.commands.addCommand(id, {
        label,
        caption,
        describedBy: { args: { type: 'object', properties: { ...properties, ...more } } },
        isEnabled: given => {
          const session = subject(given);
          return session !== null && fits(session);
        },
        execute: given => {
          const session = subject(given);
          return session && run(session, given);
        }
      });
      palette?.addItem({ command: id, category });
    };
    // In the menu of a card it is plain which session is meant.
    const label = (verb: Verb) => (args: ReadonlyPartialJSONObject) => {
      if (verb === 'tier' && typeof args.tier === 'string') {
        return args.tier;
      }
      if (verb === 'resize' && typeof args.devices === 'number') {
        return sizeText(args.devices, trans);
      }
      if (verb === 'keep' && typeof args.for_s === 'number') {
        return args.for_s ? duration(args.for_s, trans) : trans.__('Stop keeping it');
      }
      const name =
        typeof args.session === 'string' ? verbLabel(verb, trans) : commandLabel(verb, trans);
      return ASKS.includes(verb) ? trans.__('%1…', name) : name;
    };
    for (const verb of VERBS) {
      const known = trans.__('As in the body of the REST operation; it is asked for if missing.');
      add(
        verbCommand(verb),
        label(verb),
        verbCaption(verb, trans),
        session => isOffered(verb, session),
        (session, args) => actions.act(verb, session, args),
        Object.fromEntries(KEYS[verb].map(key => [key, { description: known }]))
      );
    }
    add(
      WHY_COMMAND,
      () => trans.__('Why is the session in its state?'),
      trans.__('What it waits for, and until when'),
      () => true,
      async session => {
        try {
          await showDialog({
            title: session.name,
            body: (await api.why(session.id)).sentence,
            buttons: [Dialog.okButton()]
          });
        } catch (error) {
          await showErrorMessage(session.name, inWords(sentence(error), trans));
        }
      }
    );
    add(
      OUTPUT_COMMAND,
      () => trans.__('Open output notebook'),
      trans.__('Open the notebook that a batch run writes'),
      session => Boolean(session.run?.output),
      async session => {
        try {
          const { file, path, exists } = await api.output(session.id);
          if (path !== null && exists) {
            return await app.commands.execute('docmanager:open', { path });
          }
          const where =
            path === null
              ? trans.__('It is written to %1, which is not below the root of this server.', file)
              : trans.__('It is written to %1, where nothing is so far.', file);
          await showDialog({ title: session.name, body: where, buttons: [Dialog.okButton()] });
        } catch (error) {
          await showErrorMessage(session.name, inWords(sentence(error), trans));
        }
      }
    );
    sessions.subscribe(() => app.commands.notifyCommandChanged());
  }
};
