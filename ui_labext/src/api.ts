import { URLExt } from '@jupyterlab/coreutils';
import { ServerConnection } from '@jupyterlab/services';

import { ISource } from './model/feed';
import { call, Verb } from './model/verbs';

/** Where the server extension relays the scheduler's API. */
const PREFIX = 'singularity/api/v1';

/** A request that has no answer after this long is given up. */
const LIMIT_MS = 30_000;

/** Moves wait for the store: the server answers at the latest after this long. */
const MOVE_MS = 15 * 60_000;

/** A refusal; its message is the server's sentence. */
export class Refused extends Error {}

/** The scheduler's API as the Jupyter server relays it; the browser never holds its token. */
export class Api implements ISource {
  constructor(private readonly _settings: ServerConnection.ISettings) {}

  async *open(signal: AbortSignal): AsyncIterable<string> {
    const answer = await this._fetch('events', { signal, cache: 'no-store' });
    const reader = answer.body?.getReader();
    if (!reader) {
      throw new Refused('this browser cannot read streams');
    }
    const decoder = new TextDecoder();
    for (;;) {
      const { done, value } = await reader.read();
      if (done) {
        return;
      }
      yield decoder.decode(value, { stream: true });
    }
  }

  async list(signal: AbortSignal): Promise<unknown> {
    return this._json('sessions', { signal }, LIMIT_MS);
  }

  /** Why a session is in its state, as a sentence. */
  async why(session: string): Promise<string> {
    const path = `sessions/${encodeURIComponent(session)}/why`;
    const answer = (await this._json(path, {}, LIMIT_MS)) as { sentence?: unknown } | null;
    return typeof answer?.sentence === 'string' ? answer.sentence : '';
  }

  /** The session behind each kernel of this server, by kernel id. */
  async kernels(): Promise<Map<string, string>> {
    const answer = (await this._json('kernels', {}, LIMIT_MS)) as { kernels?: unknown } | null;
    const pairs = Object.entries((answer?.kernels ?? {}) as Record<string, unknown>);
    return new Map(pairs.filter((pair): pair is [string, string] => typeof pair[1] === 'string'));
  }

  /** Do something with a session; raises `Refused` with the server's sentence. */
  async act(verb: Verb, session: string, word = ''): Promise<unknown> {
    const { method, path, body } = call(verb, session, word);
    const init = { method, ...(body ? { body: JSON.stringify(body) } : {}) };
    return this._json(`sessions/${path}`, init, MOVE_MS);
  }

  private async _json(path: string, init: RequestInit, limitMs: number): Promise<unknown> {
    const limit = new AbortController();
    const end = () => limit.abort();
    const timer = setTimeout(end, limitMs);
    init.signal?.addEventListener('abort', end);
    try {
      const answer = await this._fetch(path, { ...init, signal: limit.signal });
      return await answer.json();
    } catch (error) {
      throw limit.signal.aborted ? new Refused('the server does not answer') : error;
    } finally {
      clearTimeout(timer);
      init.signal?.removeEventListener('abort', end);
    }
  }

  private async _fetch(path: string, init: RequestInit): Promise<Response> {
    const url = URLExt.join(this._settings.baseUrl, PREFIX, path);
    const answer = await ServerConnection.makeRequest(url, init, this._settings);
    if (!answer.ok) {
      throw new Refused(await refusal(answer));
    }
    return answer;
  }
}

/** The sentence of a refusal, whatever answers. */
async function refusal(answer: Response): Promise<string> {
  const text = await answer.text();
  try {
    const { message } = JSON.parse(text) as { message?: unknown };
    if (typeof message === 'string' && message) {
      return message;
    }
  } catch {
    // It is no JSON: a proxy answered, not our server.
  }
  return `${answer.status} ${answer.statusText}`.trim();
}
