import { Feed, ILink, ISource } from '../model/server/feed';
import { sentence } from '../model/server/refused';
import { clock } from '../model/words/words';
import { Page } from './page';

/** After a load that failed the next one is this far away. */
export const RETRY_MS = 5_000;

/** What the line below the title says. `trouble`: why the page could not be loaded, though the
 * connection lives; `shown`: when what it shows was right, in ms since 1970. */
export function said(link: ILink, trouble = '', shown = 0): string {
  if (link.state === 'live' && trouble) {
    return `What is shown is of ${clock(shown)} (${trouble}). It is tried again.`;
  }
  if (link.state === 'live') {
    return 'Live: changes appear by themselves.';
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

/**
 * Follows what happens: shows the page anew after each change, and in `line` how current it is, with
 * a button to try at once when it is not. `open` is the text of the event stream.
 */
export class Following {
  constructor(
    private readonly _page: Page,
    open: ISource['open'],
    private readonly _line: HTMLElement
  ) {
    // A heartbeat changes nothing; all else may be shown here.
    const take = (name: string) => {
      if (name) {
        void this._load();
      }
    };
    const list = async () => {
      await _page.changed();
      this._loaded();
      return null;
    };
    this.feed = new Feed({ open, list }, { take, replace: () => undefined });
    this.feed.subscribe(() => this._tell());
    this._again = _line.ownerDocument.createElement('button');
    this._again.type = 'button';
    this._again.textContent = 'Try now';
    this._again.hidden = true;
    this._again.addEventListener('click', () => this._retry());
    _line.after(this._again);
  }

  readonly feed: Feed;

  stop(): void {
    clearTimeout(this._timer);
    this.feed.stop();
  }

  /** The stream may go on while a load fails: what changed must be shown all the same. */
  private async _load(): Promise<void> {
    clearTimeout(this._timer);
    try {
      await this._page.changed();
      this._loaded();
    } catch (error) {
      clearTimeout(this._timer);
      this._timer = setTimeout(() => void this._load(), RETRY_MS);
      this._trouble = sentence(error);
      this._tell();
    }
  }

  private _loaded(): void {
    this._trouble = '';
    this._shown = Date.now();
    this._tell();
  }

  private _retry(): void {
    this.feed.retry();
    void this._load();
  }

  private _tell(): void {
    const { link } = this.feed;
    const current = link.state !== 'lost' && !this._trouble;
    const text = said(link, this._trouble, this._shown);
    this._line.dataset.state = current ? link.state : 'lost';
    if (this._line.textContent !== text) {
      this._line.textContent = text; // read aloud: only what is new
    }
    this._again.hidden = current;
  }

  private _trouble = '';
  private _shown = Date.now();
  private _timer: ReturnType<typeof setTimeout> | undefined;
  private readonly _again: HTMLButtonElement;
}
