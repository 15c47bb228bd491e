import { ISession, Listener } from '../sessions/session';

/** The sentence of one session is asked for again after this long at the earliest. */
export const AGAIN_MS = 30_000;

const ASKED = new Set(['queued', 'waiting']);

/** The sentence of `why` about a session, without its name and its state, which stand above it. */
export function briefSentence(session: ISession, sentence: string): string {
  const head = `${session.user}/${session.name} is ${session.state}: `;
  return sentence.startsWith(head) ? sentence.slice(head.length) : sentence;
}

/** Why sessions wait and until when, asked for those that somebody looks at. */
export class Whys {
  constructor(private readonly _ask: (session: string) => Promise<string>) {}

  /** The newest sentence about a session that waits; "": none (yet), its reason is all there is. */
  sentence(session: ISession): string {
    if (!ASKED.has(session.state)) {
      this._told.delete(session.id);
      return '';
    }
    const told = this._told.get(session.id);
    if (!told || Date.now() - told.at >= AGAIN_MS) {
      void this._look(session.id, told?.sentence ?? '');
    }
    return told?.sentence ?? '';
  }

  /** Call `listener` when a sentence changed; returns how to stop that. */
  subscribe(listener: Listener): () => void {
    this._listeners.add(listener);
    return () => this._listeners.delete(listener);
  }

  private async _look(id: string, before: string): Promise<void> {
    const asked = { at: Date.now(), sentence: before };
    this._told.set(id, asked);
    try {
      asked.sentence = await this._ask(id);
    } catch {
      asked.sentence = ''; // the reason in the list is shown instead
    }
    if (asked.sentence !== before && this._told.get(id) === asked) {
      this._listeners.forEach(listener => listener());
    }
  }

  private readonly _told = new Map<string, { at: number; sentence: string }>();
  private readonly _listeners = new Set<Listener>();
}
