import * as React from 'react';

import { ISample, PAST_MS } from '../../model/server/usage';
import { ITexts, useText } from '../../model/words/words';

const WIDTH = 100;
const HEIGHT = 20;

/** A value from 0 to 1 at each time, as the points of a line of steps up to `now`; "": none. */
export function steps(
  samples: readonly ISample[],
  value: (sample: ISample) => number | null,
  now: number
): string {
  const x = (at: number) => Math.max(0, (1 - (now - at) / PAST_MS) * WIDTH);
  const y = (part: number) => HEIGHT - 1 - Math.min(1, Math.max(0, part)) * (HEIGHT - 2);
  const points: string[] = [];
  let before: string | null = null;
  for (const sample of samples) {
    const part = value(sample);
    if (part === null) {
      continue;
    }
    const at = x(sample.at).toFixed(1);
    const level = y(part).toFixed(1);
    points.push(...(before === null ? [] : [`${at},${before}`]), `${at},${level}`);
    before = level;
  }
  return before === null ? '' : [...points, `${WIDTH},${before}`].join(' ');
}

/** The last minutes of a session's devices: used memory as an area, utilisation as a line. */
export function Spark(props: {
  samples: readonly ISample[];
  now: number;
  texts: ITexts;
}): JSX.Element | null {
  const { samples, now, texts } = props;
  const last = samples[samples.length - 1];
  const text = last ? useText(last, texts) : '';
  if (!text) {
    return null;
  }
  const memory = steps(
    samples,
    each =>
      each.memoryUsed !== null && each.memoryTotal ? each.memoryUsed / each.memoryTotal : null,
    now
  );
  const busy = steps(
    samples,
    each => (each.utilisation === null ? null : each.utilisation / 100),
    now
  );
  const from = memory.split(',')[0];
  return (
    <svg
      className="jp-Singularity-spark"
      role="img"
      aria-label={texts.__('Devices, the last 5 min: now %1', text)}
      viewBox={`0 0 ${WIDTH} ${HEIGHT}`}
      preserveAspectRatio="none"
    >
      <title>{text}</title>
      {memory && (
        <polygon
          className="jp-Singularity-memory"
          points={`${from},${HEIGHT} ${memory} ${WIDTH},${HEIGHT}`}
        />
      )}
      {busy && <polyline className="jp-Singularity-busy" points={busy} />}
    </svg>
  );
}
