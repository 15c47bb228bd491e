import { ISession, Listener } from '../sessions/session';
import { IStanding } from '../sessions/standing';
import { whenText } from './waits';
import { ITexts } from './words';

/** The sentence of one session is asked for again after this long at the earliest. */
export const AGAIN_MS = 30_000;

const ASKED = new Set(['queued', 'waiting']);

/** The sentence of `why` about a session, without its name and its state, which stand above it. */
export function briefSentence(session: ISession, sentence: string): string {
  const head = `${session.user}/${session.name} is ${session.state}: `;
  return sentence.startsWith(head) ? sentence.slice(head.length) : sentence;
}

/** What a card says of a session that waits: first when it goes on, as there is little room. */
export function cardReason(session: ISession, why: IWhy | null, texts: ITexts): string {
  if (!why?.sentence) {
    return session.reason;
  }
  const when = whenText(why.standing, texts);
  const brief = briefSentence(session, why.sentence);
  return when ? texts.__('%1: %2', when, brief) : brief;
}

/** Why a session waits: in a sentence, and what there is to know of its turn. */
export interface IWhy {
  sentence: string;
  standing: IStanding;
}

/** Why sessions wait and until when, asked for those that somebody looks at. */
export class Whys {
  constructor(private readonly _ask: (session: string) => Promise<IWhy>) {}

  /** The newest answer about a session that waits; null: none (yet), its reason is all there is. */
  of(session: ISession): IWhy | null {
    if (!ASKED.has(session.state)) {
      this._told.delete(session.id);
      return null;
    }
    const told = this._told.get(session.id);
    if (!told || Date.now() - told.at >= AGAIN_MS) {
      void this._look(session.id, told?.why ?? null);
    }
    return told?.why ?? null;
  }

  /** Call `listener` when a sentence changed; returns how to stop that. */
  subscribe(listener: Listener): () => void {
    this._listeners.add(listener);
    return () => this._listeners.delete(listener);
  }

  private async _look(id: string, before: IWhy | null): Promise<void> {
    const asked = { at: Date.now(), why: before };
    this._told.set(id, asked);
    try {
      asked.why = await this._ask(id);
    } catch {
      asked.why = null; // the reason in the list is shown instead
    }
    if (asked.why?.sentence !== before?.sentence && this._told.get(id) === asked) {
      this._listeners.forEach(listener => listener());
    }
  }

  private readonly _told = new Map<string, { at: number; why: IWhy | null }>();
  private readonly _listeners = new Set<Listener>();
}
