import { URLExt } from '@jupyterlab/coreutils';
import { ServerConnection } from '@jupyterlab/services';

import { ISource } from './model/server/feed';
import { IBack, readBack } from './model/sessions/back';
import { IChange, readHistory } from './model/sessions/history';
import { isObject, list, text, texts } from './model/server/json';
import { IPage } from './model/server/load';
import { ILogSource, TAIL_BYTES } from './model/server/log';
import { IOutput, readOutput } from './model/server/output';
import { IPlans, readPlans } from './model/server/plans';
import { Own, Refused } from './model/server/refused';
import { ISession, readSession } from './model/sessions/session';
import { readStanding } from './model/sessions/standing';
import { IWhy } from './model/words/whys';
import { IStored, readStored } from './model/sessions/stored';
import { call, Said, Verb } from './model/words/verbs';

/** Where the server extension relays the scheduler's API. */
const PREFIX = 'singularity/api/v1';

/** Changes of a session that are asked for at a time. */
const HISTORY_PAGE = 30;

/** Sessions, ended ones too, that are asked for at a time. */
const PAST_PAGE = 200;

/** A request that has no answer after this long is given up. */
const LIMIT_MS = 30_000;

/** Moves wait for the store: the server answers at the latest after this long. */
const MOVE_MS = 15 * 60_000;

/** The scheduler's API as the Jupyter server relays it; the browser never holds its token. */
export class Api implements ISource, ILogSource {
  constructor(private readonly _settings: ServerConnection.ISettings) {}

  open(signal: AbortSignal): AsyncIterable<string> {
    return this._stream('events', signal);
  }

  log(session: string, offset: number | null, signal: AbortSignal): AsyncIterable<string> {
    const from = offset === null ? `tail=${TAIL_BYTES}` : `offset=${offset}`;
    return this._stream(`${of(session)}/log?follow=true&${from}`, signal);
  }

  async list(signal: AbortSignal): Promise<unknown> {
    return this._json('sessions', { signal }, LIMIT_MS);
  }

  /** Why a session is in its state, and when it may have devices again. */
  async why(session: string): Promise<IWhy> {
    const answer = await this._json(`${of(session)}/why`, {}, LIMIT_MS);
    const sentence = isObject(answer) ? text(answer.sentence) : '';
    return { sentence, standing: readStanding(answer) };
  }

  /** What the store has of a session, newest first. */
  async checkpoints(session: string, signal?: AbortSignal): Promise<IStored[]> {
    const answer = await this._json(`${of(session)}/checkpoints`, init(signal), LIMIT_MS);
    return understood(list(answer, 'checkpoints', readStored));
  }

  /** A page of a session's changes: the newest, or those before `cursor`. */
  async history(
    session: string,
    cursor: string | null,
    signal?: AbortSignal
  ): Promise<IPage<IChange>> {
    const path = `${of(session)}/history?${query(HISTORY_PAGE, cursor)}`;
    return understood(readHistory(await this._json(path, init(signal), LIMIT_MS)));
  }

  /** A page of all sessions, ended ones too: the newest, or those before `cursor`. */
  async past(cursor: string | null, signal?: AbortSignal): Promise<IPage<ISession>> {
    const answer = await this._json(`sessions?${query(PAST_PAGE, cursor)}`, init(signal), LIMIT_MS);
    const items = understood(list(answer, 'sessions', readSession));
    return { items, next: (isObject(answer) && text(answer.next)) || null };
  }

  /** Where the notebook that a run writes is. */
  async output(session: string): Promise<IOutput> {
    return readOutput(await this._json(`${of(session)}/output`, {}, LIMIT_MS));
  }

  /** The JSON of what the devices of a session do. */
  async devices(session: string): Promise<unknown> {
    return this._json(`${of(session)}/devices`, {}, LIMIT_MS);
  }

  /** The tiers that are open to a user's sessions. */
  async tiers(user: string): Promise<string[]> {
    const path = `users/${encodeURIComponent(user)}/tiers`;
    const answer = await this._json(path, {}, LIMIT_MS);
    return understood(isObject(answer) && Array.isArray(answer.tiers) ? texts(answer.tiers) : null);
  }

  /** The session behind each kernel of this server, by kernel id. */
  async kernels(): Promise<Map<string, string>> {
    const answer = (await this._json('kernels', {}, LIMIT_MS)) as { kernels?: unknown } | null;
    const pairs = Object.entries((answer?.kernels ?? {}) as Record<string, unknown>);
    return new Map(pairs.filter((pair): pair is [string, string] => typeof pair[1] === 'string'));
  }

  /** What is planned for the kernels of this server by who stops servers and kernels. */
  async planned(): Promise<IPlans> {
    return readPlans(await this._json('planned', {}, LIMIT_MS));
  }

  /** Take the end of a session back; how a page opens its notebook then. */
  async reopen(session: string): Promise<IBack> {
    return readBack(await this.act('reopen', session));
  }

  /** Begin a second session at a checkpoint of this one; how a page opens its notebook. With the
   * same `key` again it is the one that was begun already. */
  async fork(session: string, said: Said, key: string): Promise<IBack> {
    return readBack(await this.act('fork', session, said, { 'Idempotency-Key': key }));
  }

  /** Do something with a session; raises `Refused` with the server's sentence. */
  async act(
    verb: Verb,
    session: string,
    said: Said = {},
    headers: Record<string, string> = {}
  ): Promise<unknown> {
    const { method, path, body } = call(verb, session, said);
    const init = { method, headers, ...(body ? { body: JSON.stringify(body) } : {}) };
    return this._json(`sessions/${path}`, init, MOVE_MS);
  }

  private async *_stream(path: string, signal: AbortSignal): AsyncIterable<string> {
    const answer = await this._fetch(path, { signal, cache: 'no-store' });
    const reader = answer.body?.getReader();
    if (!reader) {
      throw new Refused(Own.noStreams);
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

  private async _json(path: string, init: RequestInit, limitMs: number): Promise<unknown> {
    const limit = new AbortController();
    const end = () => limit.abort();
    const timer = setTimeout(end, limitMs);
    init.signal?.addEventListener('abort', end);
    try {
      const answer = await this._fetch(path, { ...init, signal: limit.signal });
      return await answer.json();
    } catch (error) {
      throw limit.signal.aborted ? new Refused(Own.noAnswer) : error;
    } finally {
      clearTimeout(timer);
      init.signal?.removeEventListener('abort', end);
    }
  }

  private async _fetch(path: string, init: RequestInit): Promise<Response> {
    const url = URLExt.join(this._settings.baseUrl, PREFIX, path);
    const answer = await ServerConnection.makeRequest(url, init, this._settings);
    if (!answer.ok) {
      throw new Refused(await refusal(answer), answer.status);
    }
    return answer;
  }
}

/** The path of a session. */
function of(session: string): string {
  return `sessions/${encodeURIComponent(session)}`;
}

function init(signal?: AbortSignal): RequestInit {
  return signal ? { signal } : {};
}

function query(limit: number, cursor: string | null): string {
  return new URLSearchParams({ limit: String(limit), ...(cursor ? { cursor } : {}) }).toString();
}

/** What was read from an answer; raises a sentence when that was nothing. */
function understood<T>(found: T | null): T {
  if (found === null) {
    throw new Refused(Own.otherVersion);
  }
  return found;
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
