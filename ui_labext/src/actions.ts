import {
  Dialog,
  InputDialog,
  Notification,
  showDialog,
  showErrorMessage
} from '@jupyterlab/apputils';
import { TranslationBundle } from '@jupyterlab/translation';
import { UUID } from '@lumino/coreutils';

import { Api } from './api';
import { Asked } from './model/server/asked';
import { IBack } from './model/sessions/back';
import { otherTiers } from './model/words/choices';
import { inWords, sentence } from './model/server/refused';
import { ISession, otherSizes } from './model/sessions/session';
import { canFork, canRestore, causeText, IStored, storedName } from './model/sessions/stored';
import { OpenTiers } from './model/words/tiers';
import { ASKED, askedText, KEEP_S, KEYS, Said, target, Verb, verbLabel } from './model/words/verbs';
import { cancelText, restoreText } from './model/words/warnings';
import { ageText, duration, sizeText } from './model/words/words';

/** Why there is nothing to choose from, as a sentence. */
class Nothing extends Error {}

/** Does what people ask for: asks what must be asked, says what is lost and what is kept, and
 * shows the sentence of a refusal. */
export class Actions {
  constructor(
    private readonly _api: Api,
    private readonly _tiers: OpenTiers,
    private readonly _trans: TranslationBundle,
    /** Opens the notebook of a session that is back; false: it could not be, or must not. */
    private readonly _open: (back: IBack) => Promise<boolean>,
    /** Saves the notebook of a session, if it is open here and has changed. */
    private readonly _save: (session: ISession) => Promise<void>
  ) {}

  /**
   * Do something with a session. `said`: what is known already, keys of the verb's body; it is
   * asked for what is missing. True: it is done or under way.
   */
  async act(verb: Verb, session: ISession, said: Said = {}): Promise<boolean> {
    const given = Object.fromEntries(
      KEYS[verb].filter(key => said[key] !== undefined).map(key => [key, said[key]])
    );
    try {
      const body = await this._asked(verb, session, given);
      if (!body) {
        return false;
      }
      if (verb === 'reopen') {
        await this._reopen(session);
        return true;
      }
      if (verb === 'fork') {
        await this._fork(session, body);
        return true;
      }
      await this._api.act(verb, session.id, body);
      return true;
    } catch (error) {
      const title = this._trans.__('Refused: %1 %2', verbLabel(verb, this._trans), session.name);
      await showErrorMessage(title, inWords(sentence(error), this._trans));
      return false;
    }
  }

  /** Take its end back, and let its notebook have its kernel again where that takes nothing away. */
  private async _reopen(session: ISession): Promise<void> {
    const back = await this._api.reopen(session.id);
    const shown = session.run ? false : await this._show(back, session.name);
    if (!shown) {
      Notification.success(
        session.run
          ? this._trans.__('"%1" goes on as of its newest checkpoint.', session.name)
          : this._trans.__(
              '"%1" is suspended again as of its newest checkpoint: Resume, or choosing its kernel in its notebook, brings it back.',
              session.name
            )
      );
    }
  }

  /** Begin a second session, and open its notebook: a copy beside the first one, as that is now. */
  private async _fork(session: ISession, said: Said): Promise<void> {
    await this._save(session);
    const name = typeof said.name === 'string' ? said.name : session.name;
    const what = JSON.stringify([session.id, said]);
    const back = await this._forks.once(what, key => this._api.fork(session.id, said, key));
    if (!(await this._show(back, name))) {
      Notification.success(
        this._trans.__(
          '"%1" is a session of its own, and no notebook of it is open here; "jupyter singularity connect" writes the file by which its kernel is reached.',
          name
        )
      );
    }
  }

  /**
   * Open the notebook of a session that is there now, whatever comes of opening it; what does not
   * work is said with where the notebook is. False: nothing was shown or said.
   */
  private async _show(back: IBack, name: string): Promise<boolean> {
    try {
      return await this._open(back);
    } catch (error) {
      Notification.warning(
        this._trans.__(
          '"%1" is there, and its notebook, %2, could not be opened (%3): open it from the file browser.',
          name,
          back.path ?? '',
          inWords(sentence(error), this._trans)
        ),
        { autoClose: false }
      );
      return true;
    }
  }

  /** What is said to a verb after all was asked; null: they changed their mind. */
  private async _asked(verb: Verb, session: ISession, said: Said): Promise<Said | null> {
    const trans = this._trans;
    const title = `${verbLabel(verb, trans)}: ${session.name}`;
    const known = Object.keys(said).length > 0;
    switch (verb) {
      case 'cancel': {
        const body = cancelText(session, Date.now(), trans);
        const sure = await this._sure(title, body, trans.__('Keep it'), trans.__('End it'));
        return sure ? said : null;
      }
      case 'checkpoint':
        return known ? said : this._name(title, trans.__('Checkpoint'));
      case 'migrate': {
        if (known) {
          return said;
        }
        const label = trans.__('Device ("cuda:1") or node; empty: any other device');
        const okLabel = verbLabel(verb, trans);
        const { button, value } = await InputDialog.getText({ title, label, okLabel });
        return button.accept ? target(value ?? '') : null;
      }
      case 'keep':
        return known ? said : this._keep(title);
      case 'tier':
        return known ? said : this._tier(title, session);
      case 'resize':
        return known ? said : this._size(title, session);
      case 'restore': {
        const stored = await this._stored(title, session, said, canRestore);
        if (!stored) {
          return null;
        }
        const body = restoreText(session, stored, said.discard === true, Date.now(), trans);
        const sure = await this._sure(title, body, trans.__('Stay'), trans.__('Go back'));
        return sure ? { ...said, checkpoint: stored.id } : null;
      }
      case 'fork': {
        const stored = await this._stored(title, session, said, canFork);
        if (!stored || said.name !== undefined) {
          return stored && { ...said, checkpoint: stored.id };
        }
        const label = trans.__('Name of the second session, which begins at this checkpoint');
        const okLabel = verbLabel(verb, trans);
        const first = session.name.replace(/\.ipynb$/, '');
        const text = stored.name ? `${first} (${stored.name})` : `${first}-fork`;
        const { button, value } = await InputDialog.getText({ title, label, text, okLabel });
        const name = value?.trim();
        return button.accept ? { checkpoint: stored.id, ...(name ? { name } : {}) } : null;
      }
      default: {
        const key = ASKED[verb];
        const missing = key !== undefined && said[key] === undefined;
        return missing ? this._line(verb, key, title, session) : said;
      }
    }
  }

  /** The argument of a verb that is a line of text; it begins with what the session has. */
  private async _line(
    verb: Verb,
    key: string,
    title: string,
    session: ISession
  ): Promise<Said | null> {
    const label = askedText(verb, this._trans);
    const okLabel = verbLabel(verb, this._trans);
    const text = key === 'name' ? session.name : '';
    const { button, value } = await InputDialog.getText({ title, label, text, okLabel });
    const line = value?.trim();
    return button.accept && line ? { [key]: line } : null;
  }

  private async _sure(title: string, body: string, no: string, yes: string): Promise<boolean> {
    const buttons = [Dialog.cancelButton({ label: no }), Dialog.warnButton({ label: yes })];
    const { button } = await showDialog({ title, body, buttons, defaultButton: 0 });
    return button.accept;
  }

  private async _name(title: string, okLabel: string): Promise<Said | null> {
    const label = this._trans.__('Name; one without a name may be deleted when newer ones exist');
    const { button, value } = await InputDialog.getText({ title, label, okLabel });
    const name = value?.trim();
    return button.accept ? (name ? { name } : {}) : null;
  }

  private async _keep(title: string): Promise<Said | null> {
    const items = KEEP_S.map(seconds => duration(seconds, this._trans));
    const never = this._trans.__('no longer');
    const { button, value } = await InputDialog.getItem({
      title,
      label: this._trans.__('From now on, though it may be idle'),
      items: [...items, never],
      okLabel: verbLabel('keep', this._trans)
    });
    const chosen = KEEP_S[items.indexOf(value ?? '')];
    return button.accept && value ? { for_s: chosen ?? 0 } : null;
  }

  private async _tier(title: string, session: ISession): Promise<Said | null> {
    const items = otherTiers(session, await this._tiers.look(session.user));
    if (!items.length) {
      throw new Nothing(
        this._trans.__(
          'No other tier is open to %1; nothing was changed: ask an administrator.',
          session.user
        )
      );
    }
    const { button, value } = await InputDialog.getItem({
      title,
      label: this._trans.__('It is %1 now', session.tier),
      items,
      okLabel: verbLabel('tier', this._trans)
    });
    return button.accept && value ? { tier: value } : null;
  }

  private async _size(title: string, session: ISession): Promise<Said | null> {
    const sizes = otherSizes(session);
    const items = sizes.map(size => sizeText(size, this._trans));
    const { button, value } = await InputDialog.getItem({
      title,
      label: this._trans.__('Its code goes on seeing %1', session.virtualDevices),
      items,
      okLabel: verbLabel('resize', this._trans)
    });
    const devices = sizes[items.indexOf(value ?? '')];
    return button.accept && devices ? { devices } : null;
  }

  /** The checkpoint that is named in `said`, or one that they choose; null: none. */
  private async _stored(
    title: string,
    session: ISession,
    said: Said,
    fits: (session: ISession, stored: IStored) => boolean
  ): Promise<IStored | null> {
    const all = await this._api.checkpoints(session.id);
    const named = all.find(each => [each.id, each.name].includes(String(said.checkpoint)));
    if (named) {
      return named; // the server says why, should it not fit
    }
    const fitting = all.filter(each => fits(session, each));
    if (!fitting.length) {
      throw new Nothing(
        this._trans.__('It has no checkpoint for this; nothing was done: store one first.')
      );
    }
    const now = Date.now();
    const names = fitting.map(each =>
      [storedName(each), causeText(each, now, this._trans), ageText(each.at, now, this._trans)]
        .filter(Boolean)
        .join(', ')
    );
    const { button, value } = await InputDialog.getItem({
      title,
      label: this._trans.__('Checkpoint'),
      items: names,
      okLabel: this._trans.__('Choose')
    });
    return (button.accept && fitting[names.indexOf(value ?? '')]) || null;
  }

  private readonly _forks = new Asked(() => UUID.uuid4());
}
