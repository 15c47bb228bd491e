import { hasEnded, ISession } from './session';
import { ITexts } from './words';

/** What a person can do with a session. */
export type Verb = 'checkpoint' | 'suspend' | 'resume' | 'migrate' | 'cancel';

export const VERBS: readonly Verb[] = ['checkpoint', 'suspend', 'resume', 'migrate', 'cancel'];

/** What the person says to a verb: the name of a checkpoint, where to migrate to; "": nothing. */
export interface ICall {
  method: 'POST' | 'DELETE';
  /** Below `sessions/`. */
  path: string;
  body: Record<string, unknown> | null;
}

/** Whether a verb makes sense in the session's state; the server has the last word. */
export function isOffered(verb: Verb, session: ISession): boolean {
  const live = session.processState === 'live';
  switch (verb) {
    case 'checkpoint':
    case 'suspend':
      return live;
    case 'migrate':
      return live || session.processState === 'suspended';
    case 'resume':
      return (
        session.heldBack ||
        session.processState === 'suspended' ||
        (live && (session.deviceState === 'none' || session.deviceState === 'parked'))
      );
    case 'cancel':
      return !hasEnded(session);
  }
}

/** The request behind a verb. A migration goes to a device where `word` has a colon or is a
 * number ("cuda:1", "1"), else to a node. */
export function call(verb: Verb, id: string, word: string): ICall {
  const session = encodeURIComponent(id);
  const said = word.trim();
  if (verb === 'cancel') {
    return { method: 'DELETE', path: session, body: null };
  }
  const bodies: Record<Exclude<Verb, 'cancel'>, Record<string, unknown>> = {
    checkpoint: said ? { name: said } : {},
    suspend: said ? { name: said } : {},
    resume: {},
    migrate: !said
      ? {}
      : /^\d+$/.test(said)
        ? { device: Number(said) }
        : said.includes(':')
          ? { device: said }
          : { node: said }
  };
  return { method: 'POST', path: `${session}/${verb}`, body: bodies[verb] };
}

/** The verb as a button has it. */
export function verbLabel(verb: Verb, texts: ITexts): string {
  switch (verb) {
    case 'checkpoint':
      return texts.__('Checkpoint');
    case 'suspend':
      return texts.__('Suspend');
    case 'resume':
      return texts.__('Resume');
    case 'migrate':
      return texts.__('Migrate');
    case 'cancel':
      return texts.__('Cancel');
  }
}

/** What the verb does, in a sentence. */
export function verbCaption(verb: Verb, texts: ITexts): string {
  switch (verb) {
    case 'checkpoint':
      return texts.__('Store it; execution goes on');
    case 'suspend':
      return texts.__('Put everything of it into the store and free its node; nothing is lost');
    case 'resume':
      return texts.__('Take devices now; a suspended session comes back');
    case 'migrate':
      return texts.__('Go on with other devices or on another node');
    case 'cancel':
      return texts.__('End it; its variables are lost');
  }
}
