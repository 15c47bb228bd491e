/** The script of the dashboard's pages. They are whole without it; with it they follow changes. */
import { ask, LIMIT_MS } from './ask';
import { Following } from './follow';
import { Page } from './page';

const meta = (name: string) =>
  document.querySelector<HTMLMetaElement>(`meta[name="${name}"]`)?.content ?? '';

async function load(): Promise<Document> {
  const signal = AbortSignal.timeout(LIMIT_MS);
  const answer = await ask(location.href, 'text/html', meta('xsrf'), signal);
  return new DOMParser().parseFromString(await answer.text(), 'text/html');
}

async function* open(signal: AbortSignal): AsyncIterable<string> {
  const answer = await ask(meta('live'), 'text/event-stream', meta('xsrf'), signal);
  const reader = answer.body!.pipeThrough(new TextDecoderStream()).getReader();
  try {
    for (let piece = await reader.read(); !piece.done; piece = await reader.read()) {
      yield piece.value;
    }
  } finally {
    void reader.cancel().catch(() => undefined);
  }
}

const line = document.getElementById('link');
if (line && document.querySelector('[data-live]')) {
  const following = new Following(new Page(load), open, line);
  // A page that is left must not show its closing stream as a loss.
  addEventListener('pagehide', () => following.stop());
  addEventListener('pageshow', event => event.persisted && location.reload());
  void following.feed.start();
}
