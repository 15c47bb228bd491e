/** The shortest time between two loads of the page; the service says less often when it is busy. */
export const GAP_MS = 200;

/** Gets the page as it is now; raises an error with a sentence for people. */
export type Load = () => Promise<Document>;

/**
 * Keeps the parts of the page that say so (`data-live`, with an id) as the server has them: loads
 * the page again after a change and puts in what is different. What a person is just doing stays:
 * the focus, what is unfolded, and how far something is scrolled.
 */
export class Page {
  constructor(
    private readonly _load: Load,
    private readonly _document: Document = document
  ) {}

  /** Something has changed: load the page, now or as soon as it is time. */
  changed(): Promise<void> {
    this._due = true;
    this._working ??= this._work().finally(() => {
      this._working = null;
    });
    return this._working;
  }

  private async _work(): Promise<void> {
    while (this._due) {
      await new Promise(resolve => setTimeout(resolve, Math.max(0, this._next - Date.now())));
      this._due = false;
      try {
        this.take(await this._load());
      } finally {
        this._next = Date.now() + GAP_MS;
      }
    }
  }

  /** Show what another load of the page has; raises an error when that is another kind of page. */
  take(fresh: Document): void {
    if (!fresh.querySelector('[data-live][id]')) {
      throw new Error('what answered is no page of this version: load the page again');
    }
    for (const part of this._document.querySelectorAll<HTMLElement>('[data-live][id]')) {
      const now = fresh.getElementById(part.id);
      if (now && now.innerHTML !== part.innerHTML) {
        this._replace(part, now);
      }
    }
  }

  private _replace(part: HTMLElement, now: HTMLElement): void {
    const focus = part.contains(this._document.activeElement)
      ? nameOf(this._document.activeElement)
      : null;
    const scrolled = [...part.querySelectorAll('.wide')].map(each => each.scrollLeft);
    part.replaceChildren(...[...now.childNodes].map(node => this._document.importNode(node, true)));
    part.querySelectorAll('.wide').forEach((each, n) => (each.scrollLeft = scrolled[n] ?? 0));
    if (focus) {
      const again = [...part.querySelectorAll<HTMLElement>('a, button, [tabindex]')].find(
        each => nameOf(each) === focus
      );
      again?.focus({ preventScroll: true });
    }
  }

  private _due = false;
  private _next = 0;
  private _working: Promise<void> | null = null;
}

/** By what an element is found again in a newer copy of the page. */
function nameOf(element: Element | null): string | null {
  return element && (element.getAttribute('href') ?? element.getAttribute('aria-label'));
}
