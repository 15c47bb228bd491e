import * as React from 'react';

import { ILook } from '../model/words/words';

const PATHS: Record<ILook['icon'], string> = {
  play: 'M4 2.5v11l9-5.5z',
  ready: 'M8 3a5 5 0 1 0 0 10A5 5 0 0 0 8 3zm0 3a2 2 0 1 1 0 4 2 2 0 0 1 0-4z',
  clock: 'M8 1.5a6.5 6.5 0 1 0 0 13 6.5 6.5 0 0 0 0-13zM7.2 4h1.6v3.7l2.6 1.6-.8 1.3-3.4-2z',
  pause: 'M4 2.5h3v11H4zM9 2.5h3v11H9z',
  store: 'M2 2h12v4H2zM3 7h10v7H3zm3 2v1.5h4V9z',
  move: 'M1.5 7h9L7.6 4.1l1.1-1.1L13.5 8l-4.8 5-1.1-1.1L10.5 9h-9z',
  done: 'M6.3 12.5 2 8.2l1.3-1.3 3 3 6.4-6.4L14 4.8z',
  cross: 'm3.3 2 4.7 4.7L12.7 2 14 3.3 9.3 8l4.7 4.7-1.3 1.3L8 9.3 3.3 14 2 12.7 6.7 8 2 3.3z',
  unknown: 'M7 11h2v2H7zM5 5.5a3 3 0 1 1 4 2.8V10H7V7h1a1.5 1.5 0 1 0-1.5-1.5z'
};

/** The icon of a state, in its colour; the word beside it tells the same to screen readers. */
export function StateIcon({ look }: { look: ILook }): JSX.Element {
  return (
    <svg
      className={`jp-Singularity-icon jp-mod-${look.colour}`}
      data-icon={look.icon}
      viewBox="0 0 16 16"
      width="14"
      height="14"
      aria-hidden="true"
    >
      <path d={PATHS[look.icon]} fill="currentColor" fillRule="evenodd" />
    </svg>
  );
}

const GLYPHS = {
  closed: 'M6 3.5 10.5 8 6 12.5z',
  open: 'M3.5 6h9L8 10.5z',
  more: 'M2 6.6h2.8v2.8H2zM6.6 6.6h2.8v2.8H6.6zM11.2 6.6H14v2.8h-2.8z'
};

/** What is drawn on a small button; its label tells what it does. */
export function Glyph({ name }: { name: keyof typeof GLYPHS }): JSX.Element {
  return (
    <svg viewBox="0 0 16 16" width="14" height="14" aria-hidden="true">
      <path d={GLYPHS[name]} fill="currentColor" />
    </svg>
  );
}
