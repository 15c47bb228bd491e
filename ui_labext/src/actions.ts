import { Dialog, InputDialog, showDialog, showErrorMessage } from '@jupyterlab/apputils';
import { TranslationBundle } from '@jupyterlab/translation';

import { Api } from './api';
import { ISession } from './model/session';
import { Verb, verbLabel } from './model/verbs';

/** What a person says to a verb; null: they changed their mind. */
async function asked(
  verb: Verb,
  session: ISession,
  trans: TranslationBundle
): Promise<string | null> {
  const title = `${verbLabel(verb, trans)}: ${session.name}`;
  if (verb === 'cancel') {
    const { button } = await showDialog({
      title,
      body: trans.__('End this session? Its variables are lost; its checkpoints stay.'),
      buttons: [
        Dialog.cancelButton({ label: trans.__('Keep it') }),
        Dialog.warnButton({ label: trans.__('End it') })
      ],
      defaultButton: 0
    });
    return button.accept ? '' : null;
  }
  if (verb === 'checkpoint' || verb === 'migrate') {
    const label =
      verb === 'checkpoint'
        ? trans.__('Name; one without a name may be deleted when newer ones exist')
        : trans.__('Device ("cuda:1") or node; empty: any other device');
    const { button, value } = await InputDialog.getText({
      title,
      label,
      okLabel: verbLabel(verb, trans)
    });
    return button.accept ? (value ?? '') : null;
  }
  return '';
}

/** Do something with a session: ask what must be asked, and show the sentence of a refusal. */
export async function act(
  api: Api,
  verb: Verb,
  session: ISession,
  trans: TranslationBundle
): Promise<void> {
  const word = await asked(verb, session, trans);
  if (word === null) {
    return;
  }
  try {
    await api.act(verb, session.id, word);
  } catch (error) {
    const title = trans.__('Refused: %1 %2', verbLabel(verb, trans), session.name);
    await showErrorMessage(title, error instanceof Error ? error.message : String(error));
  }
}
