import { GAP_MS, Page } from '../src/dashboard/page';
import { ask } from '../src/dashboard/ask';
import { Following, RETRY_MS, said } from '../src/dashboard/follow';

const HTML = (rows: string) => `
  <h1>Queue</h1>
  <form><input name="text" value="filled in"></form>
  <section id="rows" data-live>${rows}</section>
  <section id="still">${rows}</section>`;

const parsed = (html: string) => new DOMParser().parseFromString(html, 'text/html');

beforeEach(() => {
  document.body.innerHTML = HTML('<a href="/a">one</a>');
});

describe('a page that follows', () => {
  it('shows what is different in the parts that say so, and leaves the rest alone', () => {
    const input = document.querySelector('input')!;
    input.value = 'typed';
    new Page(() => Promise.reject(new Error())).take(parsed(HTML('<a href="/b">two</a>')));
    expect(document.getElementById('rows')!.textContent).toBe('two');
    expect(document.getElementById('still')!.textContent).toBe('one');
    expect(document.querySelector('input')).toBe(input);
    expect(input.value).toBe('typed');
  });

  it('touches nothing when nothing is different', () => {
    const link = document.querySelector('a');
    new Page(() => Promise.reject(new Error())).take(parsed(document.body.innerHTML));
    expect(document.querySelector('a')).toBe(link);
  });

  it('keeps the focus and how far a table is scrolled', () => {
    const table = (text: string) =>
      `<div class="wide" tabindex="0" aria-label="Rows"><a href="/a">${text}</a></div>`;
    document.body.innerHTML = HTML(table('old'));
    const page = new Page(() => Promise.reject(new Error()));
    document.querySelector<HTMLElement>('#rows a')!.focus();
    document.querySelector('#rows .wide')!.scrollLeft = 40;
    page.take(parsed(HTML(table('new'))));
    expect(document.activeElement!.textContent).toBe('new');
    expect(document.querySelector('#rows .wide')!.scrollLeft).toBe(40);
    document.querySelector<HTMLElement>('#rows .wide')!.focus();
    page.take(parsed(HTML(table('newer'))));
    expect(document.activeElement!.getAttribute('aria-label')).toBe('Rows');
  });

  it('loads once for changes that come together, and again for one during a load', async () => {
    jest.useFakeTimers();
    try {
      const loads: ((page: Document) => void)[] = [];
      const page = new Page(() => new Promise(resolve => loads.push(resolve)));
      const done = Promise.all([page.changed(), page.changed()]);
      await jest.advanceTimersByTimeAsync(0);
      expect(loads.length).toBe(1);
      void page.changed();
      loads[0]!(parsed(HTML('first')));
      await jest.advanceTimersByTimeAsync(GAP_MS - 1);
      expect(loads.length).toBe(1);
      await jest.advanceTimersByTimeAsync(1);
      expect(loads.length).toBe(2);
      loads[1]!(parsed(HTML('second')));
      await done;
      expect(document.getElementById('rows')!.textContent).toBe('second');
      await jest.advanceTimersByTimeAsync(10 * GAP_MS);
      expect(loads.length).toBe(2);
    } finally {
      jest.useRealTimers();
    }
  });

  it('goes on after a load that failed', async () => {
    let fails = true;
    const page = new Page(() =>
      fails
        ? Promise.reject(new Error('the scheduler does not answer'))
        : Promise.resolve(parsed(HTML('back')))
    );
    await expect(page.changed()).rejects.toThrow('does not answer');
    fails = false;
    await page.changed();
    expect(document.getElementById('rows')!.textContent).toBe('back');
  });
});

it('says how current it is', () => {
  expect(said({ state: 'live', known: 1, why: '' })).toBe('Live: changes appear by themselves.');
  expect(said({ state: 'lost', known: null, why: 'the scheduler does not answer' })).toBe(
    'No connection to the scheduler (the scheduler does not answer). It is tried again.'
  );
  expect(said({ state: 'lost', known: Date.UTC(2027, 0, 1), why: '' })).toMatch(
    /^Connection lost, last known state of .*\. It is tried again\.$/
  );
});

// -- trouble -------------------------------------------------------------------------------------

describe('a page whose service is in trouble', () => {
  let failure: Error | null;
  let following: Following;
  let events: (text: string) => void;
  let loads: number;
  const line = () => document.getElementById('link')!;
  const button = () => document.querySelector('button')!;
  const pass = (ms: number) => jest.advanceTimersByTimeAsync(ms);

  beforeEach(async () => {
    jest.useFakeTimers({ now: Date.UTC(2026, 0, 1, 10, 5) });
    document.body.innerHTML = `<p id="link"></p>${HTML('old')}`;
    failure = null;
    loads = 0;
    const page = new Page(async () => {
      loads += 1;
      if (failure) {
        throw failure;
      }
      return parsed(HTML(`load ${loads}`));
    });
    const queue: string[] = [];
    let wake = () => undefined as void;
    events = text => {
      queue.push(text);
      wake();
    };
    following = new Following(
      page,
      async function* () {
        for (;;) {
          while (queue.length) {
            yield queue.shift()!;
          }
          await new Promise<void>(resolve => (wake = resolve));
        }
      },
      line()
    );
    void following.feed.start();
    events('event: snapshot\ndata: {}\n\n');
    await pass(GAP_MS);
  });

  afterEach(() => {
    following.stop();
    jest.useRealTimers();
  });

  it('says nothing while all is well', () => {
    expect(line().textContent).toBe('Live: changes appear by themselves.');
    expect(line().dataset.state).toBe('live');
    expect(button().hidden).toBe(true);
    expect(document.getElementById('rows')!.textContent).toBe('load 1');
  });

  it('says of when its content is and why, and tries again by itself', async () => {
    failure = new Error('the scheduler answered 500');
    events('event: state\ndata: {}\n\n');
    await pass(GAP_MS);
    expect(line().textContent).toMatch(
      /^What is shown is of .* \(the scheduler answered 500\)\. It is tried again\.$/
    );
    expect(line().dataset.state).toBe('lost');
    failure = null;
    await pass(RETRY_MS + GAP_MS);
    expect(line().textContent).toBe('Live: changes appear by themselves.');
    expect(document.getElementById('rows')!.textContent).toBe('load 3');
  });

  it('tries at once on demand', async () => {
    failure = new Error('the scheduler answered 500');
    events('event: state\ndata: {}\n\n');
    await pass(GAP_MS);
    expect(button().hidden).toBe(false);
    failure = null;
    button().click();
    await pass(GAP_MS);
    expect(line().dataset.state).toBe('live');
    expect(button().hidden).toBe(true);
    await pass(2 * RETRY_MS);
    expect(loads).toBe(3);
  });

  it('shows nothing of a page of another kind', () => {
    const other = () => new Page(() => Promise.reject(new Error())).take(parsed('<h1>Log in</h1>'));
    expect(other).toThrow('what answered is no page of this version: load the page again');
    expect(document.getElementById('rows')!.textContent).toBe('load 1');
  });
});

it('has a sentence for each way in which the service does not answer', async () => {
  const signal = new AbortController().signal;
  const answers = (status: number) =>
    Object.assign(globalThis, {
      fetch: async () => ({ status, ok: status < 400 })
    });
  for (const [status, sentence] of [
    [401, 'your login is over: load the page again'],
    [403, 'your login is over: load the page again'],
    [500, 'the scheduler answered 500'],
    [503, 'the scheduler answered 503']
  ] as const) {
    answers(status);
    await expect(ask('/', 'text/html', 'x', signal)).rejects.toThrow(sentence);
  }
  answers(200);
  expect((await ask('/', 'text/html', 'x', signal)).status).toBe(200);
  Object.assign(globalThis, { fetch: () => Promise.reject(new DOMException('', 'TimeoutError')) });
  await expect(ask('/', 'text/html', 'x', signal)).rejects.toThrow('the scheduler does not answer');
});
