import { Widget } from '@lumino/widgets';

import { INotice } from '../model/words/notice';
import { ITexts, remaining } from '../model/words/words';

/** How often seconds are counted. */
const TICK_MS = 1_000;

/** Of the banner, in px: two lines; and so many that a long report is read without scrolling, while
 * the notebook is still seen. */
const LEAST_HEIGHT = 46;
const MOST_HEIGHT = 130;

/** Above and below the text, in px. */
const PADDING = 12;

/** What the banner's own button does about the notice. */
export type Offer = NonNullable<INotice['offers']>;

/** The line above a notebook whose session was taken, comes back or is about to be taken; hidden
 * while there is none. */
export class Banner extends Widget {
  constructor(
    private readonly _texts: ITexts,
    private readonly _do: (offer: Offer) => void
  ) {
    super();
    this.addClass('jp-Singularity-banner');
    this._text = this._part('span');
    this._text.setAttribute('role', 'status');
    // Seconds that are read aloud one by one would be a nuisance: the sentence is enough.
    this._clock = this._part('span');
    this._clock.className = 'jp-Singularity-clock';
    this._clock.setAttribute('role', 'timer');
    this._clock.setAttribute('aria-live', 'off');
    this._offer = this._part('button');
    this._offer.type = 'button';
    this._offer.addEventListener('click', () => {
      if (this._notice?.offers) {
        this._do(this._notice.offers);
      }
    });
    const close = this._part('button');
    close.type = 'button';
    close.textContent = _texts.__('Dismiss');
    close.addEventListener('click', () => {
      this._dismissed = this._notice?.key ?? '';
      this.hide();
    });
    this.hide();
  }

  get notice(): INotice | null {
    return this._notice;
  }

  /** Show a notice; null: none. One that was dismissed stays so until there is another one. */
  tell(notice: INotice | null): void {
    const before = this._notice;
    this._notice = notice;
    if (notice?.key !== this._dismissed) {
      this._dismissed = '';
    }
    this.toggleClass('jp-mod-returned', notice?.kind === 'returned');
    this.toggleClass('jp-mod-calm', notice?.isCalm === true);
    const labels = { keep: this._texts.__('Keep alive'), resume: this._texts.__('Resume') };
    this._offer.hidden = !notice?.offers;
    this._offer.textContent = notice?.offers ? labels[notice.offers] : '';
    this.setHidden(!notice || notice.key === this._dismissed);
    // Last, so that it is read aloud: what is hidden while it changes is not.
    if (notice && notice.text !== before?.text) {
      this._text.textContent = notice.text;
    }
    this._count();
    this._grow();
  }

  protected override onResize(message: Widget.ResizeMessage): void {
    super.onResize(message);
    this._grow(); // another width may take other lines
  }

  override dispose(): void {
    clearTimeout(this._timer);
    super.dispose();
  }

  /** Write how long it is until the notice's time, now and every second. */
  private _count(): void {
    clearTimeout(this._timer);
    const at = this._notice?.at ?? null;
    this._clock.textContent = at === null ? '' : remaining(at - Date.now(), this._texts);
    if (at !== null && !this.isHidden) {
      this._timer = setTimeout(() => this._count(), TICK_MS);
    }
  }

  /** The layout gives a notebook's header its least height: make that the one of the text. */
  private _grow(): void {
    const wanted = this.isHidden ? LEAST_HEIGHT : this._text.offsetHeight + PADDING;
    const height = Math.min(MOST_HEIGHT, Math.max(LEAST_HEIGHT, wanted));
    if (height !== this._height) {
      this._height = height;
      this.node.style.minHeight = `${height}px`;
      this.parent?.fit();
    }
  }

  private _part<K extends 'span' | 'button'>(tag: K): HTMLElementTagNameMap[K] {
    return this.node.appendChild(document.createElement(tag));
  }

  private _notice: INotice | null = null;
  private _dismissed = '';
  private _height = 0;
  private _timer: ReturnType<typeof setTimeout> | undefined;
  private readonly _text: HTMLElement;
  private readonly _clock: HTMLElement;
  private readonly _offer: HTMLButtonElement;
}
