import * as React from 'react';
import { useLayoutEffect, useReducer, useRef } from 'react';

/** Rows drawn above and below those that can be seen. */
const MARGIN = 4;

/** Height in px that is assumed while the list has none yet. */
const GUESS = 600;

/** Which rows to draw: [first, one after the last). */
export function visible(
  top: number,
  height: number,
  rowHeight: number,
  count: number
): [number, number] {
  const first = Math.max(0, Math.floor(top / rowHeight) - MARGIN);
  const last = Math.ceil((top + height) / rowHeight) + MARGIN;
  return [Math.min(first, Math.max(0, count - 1)), Math.min(last, count)];
}

/** A list of rows of the same height, of which only those in sight exist. */
export function VirtualList(props: {
  count: number;
  /** In px. */
  rowHeight: number;
  label: string;
  row: (index: number) => JSX.Element;
  rowKey: (index: number) => string;
}): JSX.Element {
  const { count, rowHeight, label, row, rowKey } = props;
  const list = useRef<HTMLDivElement>(null);
  const [, draw] = useReducer((times: number) => times + 1, 0);
  useLayoutEffect(() => {
    const watch = new ResizeObserver(() => draw());
    if (list.current) {
      watch.observe(list.current);
      draw();
    }
    return () => watch.disconnect();
  }, []);
  const [first, last] = visible(
    list.current?.scrollTop ?? 0,
    list.current?.clientHeight || GUESS,
    rowHeight,
    count
  );
  const rows = [];
  for (let index = first; index < last; index++) {
    rows.push(
      <div
        key={rowKey(index)}
        role="listitem"
        aria-setsize={count}
        aria-posinset={index + 1}
        className="jp-Singularity-row"
        style={{ top: index * rowHeight, height: rowHeight }}
      >
        {row(index)}
      </div>
    );
  }
  return (
    <div
      ref={list}
      className="jp-Singularity-list"
      role="list"
      aria-label={label}
      tabIndex={0}
      onScroll={draw}
    >
      <div className="jp-Singularity-rows" style={{ height: count * rowHeight }}>
        {rows}
      </div>
    </div>
  );
}
