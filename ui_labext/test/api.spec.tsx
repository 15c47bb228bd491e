import { ServerConnection } from '@jupyterlab/services';
import * as React from 'react';

import { Api } from '../src/api';
import { Details } from '../src/model/sessions/details';
import { Sessions } from '../src/model/sessions/sessions';
import { DetailsView } from '../src/view/cards/details';
import { Page } from './support/page';
import { sample, TEXTS } from './support/samples';

const STORED = {
  id: 'c1',
  name: 'before lr',
  at: '2026-01-01T10:00:00Z',
  level: 'process',
  bytes: 1024,
  restorable: true
};

/** What a server does with a request: it answers, it never does, or it never ends its answer. */
type Manner = 'answers' | 'silent' | 'stalled';

/** Never resolves; is rejected as `fetch` does it when its request is given up. */
function forever<T>(signal: AbortSignal): Promise<T> {
  return new Promise((_, reject) => {
    signal.addEventListener('abort', () => reject(new TypeError('aborted')));
  });
}

class Request {
  readonly headers = new Map<string, string>();

  constructor(
    readonly url: string,
    init: RequestInit
  ) {
    this.method = init.method ?? 'GET';
    this.signal = init.signal as AbortSignal;
    this.body = String(init.body ?? '');
    this.given = (init.headers ?? {}) as Record<string, string>;
  }

  readonly body: string;
  readonly given: Record<string, string>;
  readonly method: string;
  readonly signal: AbortSignal;
}

class Server {
  manner: Manner = 'answers';
  asked: Request[] = [];

  readonly settings = {
    baseUrl: 'http://localhost/user/alice/',
    token: '',
    init: {},
    Request,
    fetch: (request: Request) => this._answer(request)
  } as unknown as ServerConnection.ISettings;

  private _answer(request: Request): Promise<unknown> {
    this.asked.push(request);
    const { signal } = request;
    switch (this.manner) {
      case 'silent':
        return forever(signal);
      case 'stalled':
        return Promise.resolve({ ok: true, status: 200, json: () => forever(signal) });
      case 'answers': {
        const body = { checkpoints: [STORED] };
        return Promise.resolve({ ok: true, status: 200, json: async () => body });
      }
    }
  }
}

const page = new Page();
let server: Server;
let api: Api;

beforeEach(() => {
  page.open();
  server = new Server();
  api = new Api(server.settings);
});

afterEach(() => page.close());

/** How a question ended: its answer, its sentence; null: it did not so far. */
function ending(question: Promise<unknown>): { text: string | null } {
  const found: { text: string | null } = { text: null };
  question.then(
    answer => (found.text = JSON.stringify(answer)),
    (error: Error) => (found.text = error.message)
  );
  return found;
}

async function showCheckpoints(): Promise<Details> {
  const details = new Details('a1', api, new Sessions(), 'checkpoints');
  await page.show(
    <DetailsView
      details={details}
      session={sample()}
      usage={new Sessions().usage}
      now={Date.now()}
      texts={TEXTS}
      actions={{ restore: () => undefined, fork: () => undefined, output: () => undefined }}
    />
  );
  return details;
}

test.each<Manner>(['silent', 'stalled'])(
  'what a %s server was asked is given up after 30 s, in one line, and asked again on demand',
  async manner => {
    server.manner = manner;
    const details = await showCheckpoints();
    await page.pass(29_900);
    expect(page.node.textContent).toContain('asking the scheduler');
    expect(page.all('.jp-Singularity-trouble')).toHaveLength(0);
    await page.pass(200);
    expect(page.all('.jp-Singularity-trouble span').map(line => line.textContent)).toEqual([
      'the server does not answer'
    ]);
    expect(page.node.textContent).not.toContain('asking the scheduler');
    expect(server.asked.map(request => request.signal.aborted)).toEqual([true]);

    await page.do(() => page.button('Try again').click());
    expect(server.asked).toHaveLength(2);
    await page.pass(30_100);
    expect(page.all('.jp-Singularity-trouble')).toHaveLength(1);

    server.manner = 'answers';
    await page.do(() => page.button('Try again').click());
    expect(page.all('.jp-Singularity-trouble')).toHaveLength(0);
    expect(page.query('.jp-Singularity-stored').textContent).toContain('before lr');
    await page.pass(60_000);
    expect(server.asked[2]?.signal.aborted).toBe(false);
    details.stop();
  }
);

test('a verb may take as long as its move: it is not given up with the questions', async () => {
  server.manner = 'silent';
  const ended = ending(api.act('suspend', 'a1'));
  await page.pass(14 * 60_000);
  expect(ended.text).toBe(null);
  await page.pass(61_000);
  expect(ended.text).toBe('the server does not answer');
  const [request] = server.asked;
  expect(request?.url).toContain('/user/alice/singularity/api/v1/sessions/a1/suspend');
  expect([request?.method, request?.signal.aborted]).toEqual(['POST', true]);
});

test('a question that nobody waits for any more is given up at once', async () => {
  server.manner = 'silent';
  const stop = new AbortController();
  const ended = ending(api.checkpoints('a1', stop.signal));
  await page.pass(1_000);
  expect(ended.text).toBe(null);
  stop.abort();
  await page.pass(0);
  expect(server.asked[0]?.signal.aborted).toBe(true);
  expect(ended.text).not.toBe(null);
});

test('a fork carries its key', async () => {
  await api.fork('a1', { name: 'b' }, 'k1');
  const [request] = server.asked;
  expect(request?.url).toContain('/sessions/a1/fork');
  expect([request?.body, request?.given['Idempotency-Key']]).toEqual(['{"name":"b"}', 'k1']);
});
