import { GAP_MS, Page } from '../src/dashboard/page';
import { said } from '../src/dashboard';

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
  expect(said({ state: 'live', known: 1, why: '' })).toBe('Follows what happens.');
  expect(said({ state: 'lost', known: null, why: 'the scheduler does not answer' })).toBe(
    'No connection to the scheduler (the scheduler does not answer). It is tried again.'
  );
  expect(said({ state: 'lost', known: Date.UTC(2027, 0, 1), why: '' })).toMatch(
    /^Connection lost, last known state of .*\. It is tried again\.$/
  );
});
