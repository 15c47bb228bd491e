import { act } from 'react';
import { createRoot, Root } from 'react-dom/client';

/** A place in the document where a test renders, with timers that the test moves. */
export class Page {
  open(now = Date.UTC(2026, 0, 1, 10, 5)): void {
    jest.useFakeTimers({ now });
    this.node = document.body.appendChild(document.createElement('div'));
    this._root = createRoot(this.node);
  }

  async close(): Promise<void> {
    await act(async () => this._root.unmount());
    this.node.remove();
    jest.useRealTimers();
  }

  async show(element: JSX.Element): Promise<void> {
    await act(async () => this._root.render(element));
  }

  async pass(ms: number): Promise<void> {
    await act(async () => {
      await jest.advanceTimersByTimeAsync(ms);
    });
  }

  /** Do something, and wait until what follows from it is drawn. */
  async do(what: () => unknown): Promise<void> {
    await act(async () => {
      what();
      await jest.advanceTimersByTimeAsync(50);
    });
    await this.pass(50);
  }

  query(selector: string): HTMLElement {
    const found = this.node.querySelector<HTMLElement>(selector);
    if (!found) {
      throw new Error(`no ${selector} in ${this.node.innerHTML}`);
    }
    return found;
  }

  all(selector: string): HTMLElement[] {
    return [...this.node.querySelectorAll<HTMLElement>(selector)];
  }

  /** The button with this label or text. */
  button(label: string): HTMLElement {
    const found = this.all('button').find(
      button => (button.getAttribute('aria-label') ?? button.textContent) === label
    );
    if (!found) {
      throw new Error(`no button ${label} in ${this.node.innerHTML}`);
    }
    return found;
  }

  async key(key: string): Promise<void> {
    const event = new KeyboardEvent('keydown', { key, bubbles: true, cancelable: true });
    await this.do(() => (document.activeElement ?? document.body).dispatchEvent(event));
  }

  node!: HTMLElement;
  private _root!: Root;
}
