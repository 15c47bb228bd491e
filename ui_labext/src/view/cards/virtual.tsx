import * as React from 'react';
import { useLayoutEffect, useReducer, useRef, useState } from 'react';

/** Rows drawn above and below those that can be seen. */
const MARGIN = 4;

/** Height in px that is assumed while the list has none yet. */
const GUESS = 600;

/** Font size in px that the heights are meant for; a larger one makes the rows higher. */
const FONT = 13;

/** Rows of the same height, one of which may be open and higher. */
export interface IRows {
  count: number;
  /** In px, as all heights. */
  height: number;
  /** Index of the open row; -1: none. */
  open: number;
  openHeight: number;
}

/** Where a row begins. */
export function topOf(index: number, rows: IRows): number {
  const more = rows.open >= 0 && index > rows.open ? rows.openHeight - rows.height : 0;
  return index * rows.height + more;
}

function rowAt(y: number, rows: IRows): number {
  const begin = rows.open * rows.height;
  if (rows.open < 0 || y < begin) {
    return Math.floor(y / rows.height);
  }
  const end = begin + rows.openHeight;
  return y < end ? rows.open : rows.open + 1 + Math.floor((y - end) / rows.height);
}

/** Which rows to draw: [first, one after the last). */
export function visible(top: number, height: number, rows: IRows): [number, number] {
  const first = Math.max(0, rowAt(top, rows) - MARGIN);
  const last = rowAt(top + height - 1, rows) + 1 + MARGIN;
  return [Math.min(first, Math.max(0, rows.count - 1)), Math.min(last, rows.count)];
}

/** Which row a key leads to from `index`; null: it is not a key of the list. */
export function rowByKey(key: string, index: number, count: number): number | null {
  switch (key) {
    case 'ArrowDown':
      return Math.min(index + 1, count - 1);
    case 'ArrowUp':
      return Math.max(index - 1, 0);
    case 'Home':
      return 0;
    case 'End':
      return count - 1;
    default:
      return null;
  }
}

/** How a row is drawn. */
export interface IRowState {
  /** Whether it is the one that Tab leads to: 0, else -1, for all that can be focused in it. */
  tabIndex: 0 | -1;
  isOpen: boolean;
}

/**
 * A list of which only the rows in sight exist, and those that are open or have the focus. The
 * arrow keys, Home and End go from row to row, Tab leads to what is in the active row, Enter opens
 * it. Keys of elements inside one with `data-keys` are left to them.
 */
export function VirtualList(props: {
  keys: readonly string[];
  /** In px, for a font of 13 px. */
  rowHeight: number;
  openHeight: number;
  /** Key of the open row; null: none. */
  open: string | null;
  label: string;
  /** A row to bring into sight each time that `times` grows. */
  reveal: { key: string; times: number };
  row: (key: string, state: IRowState) => JSX.Element;
  /** What names a row, as the id of an element in it. */
  titleId: (key: string) => string;
  toggle: (key: string) => void;
}): JSX.Element {
  const { keys, open, label, reveal, row, titleId, toggle } = props;
  const list = useRef<HTMLDivElement>(null);
  const [, draw] = useReducer((times: number) => times + 1, 0);
  const [active, activate] = useState('');
  /** Whether the focus is in the active row, which may go away under it. */
  const focused = useRef(false);
  const wanted = useRef('');
  const revealed = useRef(0);
  const at = useRef(0);

  useLayoutEffect(() => {
    const watch = new ResizeObserver(() => draw());
    if (list.current) {
      watch.observe(list.current);
      draw();
    }
    return () => watch.disconnect();
  }, []);

  const font = list.current ? parseFloat(getComputedStyle(list.current).fontSize) : NaN;
  const scale = font > 0 ? font / FONT : 1;
  const rows: IRows = {
    count: keys.length,
    height: Math.round(props.rowHeight * scale),
    open: open === null ? -1 : keys.indexOf(open),
    openHeight: Math.round(props.openHeight * scale)
  };
  // The row that was active is gone: the one that is in its place now is.
  const place = keys.indexOf(active);
  const current = place >= 0 ? place : Math.min(at.current, keys.length - 1);
  at.current = Math.max(0, current);

  const heightOf = (index: number) => (index === rows.open ? rows.openHeight : rows.height);

  const scrollTo = (index: number) => {
    const box = list.current;
    if (!box || index < 0) {
      return;
    }
    const top = topOf(index, rows);
    const end = top + heightOf(index);
    if (top < box.scrollTop || heightOf(index) > box.clientHeight) {
      box.scrollTop = top;
    } else if (end > box.scrollTop + box.clientHeight) {
      box.scrollTop = end - box.clientHeight;
    }
  };

  useLayoutEffect(() => {
    if (reveal.times !== revealed.current && keys.includes(reveal.key)) {
      revealed.current = reveal.times;
      activate(reveal.key);
      wanted.current = reveal.key;
      scrollTo(keys.indexOf(reveal.key));
      draw();
    }
  });

  useLayoutEffect(() => {
    const lost = focused.current && document.activeElement === document.body;
    const key = lost ? keys[current] : wanted.current;
    const drawn = list.current?.querySelectorAll<HTMLElement>('[data-key]') ?? [];
    const found = [...drawn].find(element => key && element.dataset.key === key);
    if (found) {
      wanted.current = '';
      found.focus({ preventScroll: true });
    }
  });

  const go = (index: number) => {
    const key = keys[index];
    if (key !== undefined) {
      wanted.current = key;
      activate(key);
      scrollTo(index);
      draw();
    }
  };

  const pressed = (event: React.KeyboardEvent<HTMLElement>, index: number) => {
    const target = event.target as HTMLElement;
    const own = target.closest('[data-keys]') !== null;
    const key = keys[index];
    if (key === undefined || event.altKey || event.ctrlKey || event.metaKey) {
      return;
    }
    const next = own ? null : rowByKey(event.key, index, keys.length);
    if (next !== null) {
      go(next);
    } else if (event.key === 'Enter' && target === event.currentTarget) {
      toggle(key);
    } else if (event.key === 'Escape' && key === open) {
      go(index);
      toggle(key);
    } else {
      return;
    }
    event.preventDefault();
    event.stopPropagation();
  };

  const [first, last] = visible(
    list.current?.scrollTop ?? 0,
    list.current?.clientHeight || GUESS,
    rows
  );
  const drawn = new Set(Array.from({ length: last - first }, (_, n) => first + n));
  [rows.open, current].filter(index => index >= 0).forEach(index => drawn.add(index));
  return (
    <div
      ref={list}
      className="jp-Singularity-list"
      role="list"
      aria-label={label}
      onScroll={draw}
      onBlur={event => {
        focused.current = event.currentTarget.contains(event.relatedTarget);
      }}
    >
      <div
        className="jp-Singularity-rows"
        role="presentation"
        style={{ height: topOf(rows.count, rows) }}
      >
        {[...drawn]
          .sort((a, b) => a - b)
          .map(index => {
            const key = keys[index] ?? '';
            const isOpen = index === rows.open;
            const tabIndex = index === current ? 0 : -1;
            return (
              <div
                key={key}
                data-key={key}
                role="listitem"
                aria-setsize={keys.length}
                aria-posinset={index + 1}
                aria-labelledby={titleId(key)}
                tabIndex={tabIndex}
                className={`jp-Singularity-row${isOpen ? ' jp-mod-open' : ''}`}
                style={{ top: topOf(index, rows), height: heightOf(index) }}
                onFocus={() => {
                  focused.current = true;
                  activate(key);
                }}
                onKeyDown={event => pressed(event, index)}
              >
                {row(key, { tabIndex, isOpen })}
              </div>
            );
          })}
      </div>
    </div>
  );
}
