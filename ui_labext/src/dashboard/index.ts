/** The script of the dashboard's pages. They are whole without it; with it they follow changes. */
import { Feed, ILink, ISource } from '../model/feed';
import { clock } from '../model/words';
import { Page } from './page';

/** After a load that failed the next one is this far away. */
const RETRY_MS = 5_000;

const meta = (name: string) =>
  document.querySelector<HTMLMetaElement>(`meta[name="${name}"]`)?.content ?? '';

/** Ask the service; `Error` with a sentence when it refuses. */
async function ask(url: string, accept: string, signal?: AbortSignal): Promise<Response> {
  const headers = { 'X-XSRFToken': meta('xsrf'), Accept: accept };
  const options: RequestInit = { headers, signal: signal ?? null, credentials: 'same-origin' };
  let answer: Response;
  try {
    answer = await fetch(url, options);
  } catch (error) {
    throw signal?.aborted ? error : new Error('the scheduler does not answer');
  }
  if (answer.status === 401 || answer.status === 403) {
    throw new Error('your login is over: load the page again');
  }
  if (!answer.ok) {
    throw new Error(`the scheduler answered ${answer.status}`);
  }
  return answer;
}

async function load(): Promise<Document> {
  const answer = await ask(location.href, 'text/html');
  return new DOMParser().parseFromString(await answer.text(), 'text/html');
}

/** What the line below the title says. */
export function said(link: ILink): string {
  if (link.state === 'live') {
    return 'Follows what happens.';
  }
  if (link.state === 'connecting') {
    return 'Connecting to the scheduler.';
  }
  const lost =
    link.known === null
      ? 'No connection to the scheduler'
      : `Connection lost, last known state of ${clock(link.known)}`;
  return `${lost}${link.why ? ` (${link.why})` : ''}. It is tried again.`;
}

function start(): void {
  const line = document.getElementById('link');
  if (!line || !document.querySelector('[data-live]')) {
    return;
  }
  const page = new Page(load);
  // The stream may go on while a load fails: what changed must be shown all the same.
  const follow = (): void => {
    page.changed().catch(() => setTimeout(follow, RETRY_MS));
  };
  const source: ISource = {
    async *open(signal: AbortSignal) {
      const answer = await ask(meta('live'), 'text/event-stream', signal);
      const reader = answer.body!.pipeThrough(new TextDecoderStream()).getReader();
      try {
        for (let piece = await reader.read(); !piece.done; piece = await reader.read()) {
          yield piece.value;
        }
      } finally {
        void reader.cancel().catch(() => undefined);
      }
    },
    list: () => page.changed().then(() => null)
  };
  const reader = {
    // A heartbeat changes nothing; all else may be shown here.
    take: (name: string) => {
      if (name) {
        follow();
      }
    },
    replace: () => undefined
  };
  const feed = new Feed(source, reader);
  feed.subscribe(() => {
    line.dataset.state = feed.link.state;
    line.textContent = said(feed.link);
  });
  // A page that is left must not show its closing stream as a loss.
  addEventListener('pagehide', () => feed.stop());
  addEventListener('pageshow', event => event.persisted && location.reload());
  void feed.start();
}

start();
