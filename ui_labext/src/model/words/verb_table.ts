// Written by tools/derive.py from the tables in `model`; change those, then run ./dev docs.

import { ITexts } from './words';

/** What a person can do with a session. */
export type Verb =
  | 'checkpoint'
  | 'suspend'
  | 'resume'
  | 'migrate'
  | 'resize'
  | 'park'
  | 'keep'
  | 'tier'
  | 'restore'
  | 'fork'
  | 'reopen'
  | 'cancel';

/** When a verb makes sense. */
export type Condition =
  | 'live'
  | 'resumable'
  | 'liveOrSuspended'
  | 'resizable'
  | 'withDevices'
  | 'notEnded'
  | 'returnable'
  | 'forkable'
  | 'reopenable';

/** In the order of menus. */
export const VERBS: readonly Verb[] = [
  'checkpoint',
  'suspend',
  'resume',
  'migrate',
  'resize',
  'park',
  'keep',
  'tier',
  'restore',
  'fork',
  'reopen',
  'cancel'
];

/** Those with a button on the card; the others are in its menu. */
export const BUTTONS: readonly Verb[] = ['checkpoint', 'suspend', 'resume', 'reopen'];

/** Those that a menu has a line above. */
export const SECTION_STARTS: readonly Verb[] = ['migrate', 'restore', 'cancel'];

/** Those that ask something before they are done. */
export const ASKS: readonly Verb[] = [
  'checkpoint',
  'migrate',
  'resize',
  'keep',
  'tier',
  'restore',
  'fork',
  'cancel'
];

/** The keys that each verb takes. */
export const KEYS: Record<Verb, readonly string[]> = {
  checkpoint: ['name'],
  suspend: ['name'],
  resume: ['checkpoint', 'node'],
  migrate: ['device', 'node', 'cluster'],
  resize: ['devices'],
  park: [],
  keep: ['for_s'],
  tier: ['tier'],
  restore: ['checkpoint', 'discard'],
  fork: ['checkpoint', 'name'],
  reopen: [],
  cancel: []
};

/** When each verb is offered. */
export const OFFERED: Record<Verb, Condition> = {
  checkpoint: 'live',
  suspend: 'live',
  resume: 'resumable',
  migrate: 'liveOrSuspended',
  resize: 'resizable',
  park: 'withDevices',
  keep: 'live',
  tier: 'notEnded',
  restore: 'returnable',
  fork: 'forkable',
  reopen: 'reopenable',
  cancel: 'notEnded'
};

/** The key that a person is asked for with a line of text, where it is missing. */
export const ASKED: Partial<Record<Verb, string>> = {};

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
    case 'resize':
      return texts.__('Resize');
    case 'park':
      return texts.__('Park');
    case 'keep':
      return texts.__('Keep alive');
    case 'tier':
      return texts.__('Change tier');
    case 'restore':
      return texts.__('Restore');
    case 'fork':
      return texts.__('Fork');
    case 'reopen':
      return texts.__('Take back');
    case 'cancel':
      return texts.__('End session');
  }
}

/** The verb as a command has it, where it is not plain what it is done with. */
export function commandLabel(verb: Verb, texts: ITexts): string {
  switch (verb) {
    case 'keep':
      return texts.__('Keep session alive');
    case 'tier':
      return texts.__('Change tier of session');
    case 'reopen':
      return texts.__('Take back the end of session');
    case 'cancel':
      return texts.__('End session');
    default:
      return texts.__('%1 session', verbLabel(verb, texts));
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
    case 'resize':
      return texts.__(
        'Go on with more or fewer physical devices; what its code sees stays the same'
      );
    case 'park':
      return texts.__('Free its devices until the next device call; nothing is lost');
    case 'keep':
      return texts.__('Let nobody park or suspend it because it is idle, for a while');
    case 'tier':
      return texts.__('Give it another tier: what it is promised, and who goes before it');
    case 'restore':
      return texts.__('Go back to one of its checkpoints');
    case 'fork':
      return texts.__('Begin a second session where a checkpoint of this one is');
    case 'reopen':
      return texts.__('Take its end back: it is suspended again as of its newest checkpoint');
    case 'cancel':
      return texts.__('End it; its variables are lost, but for its newest checkpoint');
  }
}

/** What a person is asked for. */
export function askedText(_verb: Verb, _texts: ITexts): string {
  return '';
}
