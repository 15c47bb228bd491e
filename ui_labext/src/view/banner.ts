import { Widget } from '@lumino/widgets';

import { INotice } from '../model/notice';
import { ITexts } from '../model/words';

/** The line above a notebook whose session was taken or came back; hidden while there is none. */
export class Banner extends Widget {
  constructor(texts: ITexts) {
    super();
    this.addClass('jp-Singularity-banner');
    this.node.setAttribute('role', 'status');
    this._text = document.createElement('span');
    const close = document.createElement('button');
    close.type = 'button';
    close.textContent = texts.__('Dismiss');
    close.addEventListener('click', () => this.hide());
    this.node.append(this._text, close);
    this.hide();
  }

  get notice(): INotice | null {
    return this._notice;
  }

  /** Show a notice; null: none. One that was dismissed stays so until it says something else. */
  tell(notice: INotice | null): void {
    const same = notice?.text === this._notice?.text;
    this._notice = notice;
    if (same) {
      return;
    }
    this._text.textContent = notice?.text ?? '';
    this.toggleClass('jp-mod-returned', notice?.kind === 'returned');
    this.setHidden(!notice);
  }

  private _notice: INotice | null = null;
  private readonly _text: HTMLElement;
}
