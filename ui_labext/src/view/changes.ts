import { useEffect, useReducer } from 'react';

type Subscribe = (listener: () => void) => () => void;

/** Draw anew, at most once per frame, when one of `subscribes` (the same at each call) tells. */
export function useChanges(subscribes: Subscribe[]): void {
  const [, draw] = useReducer((count: number) => count + 1, 0);
  useEffect(() => {
    let frame = 0;
    const later = () => {
      frame ||= requestAnimationFrame(() => {
        frame = 0;
        draw();
      });
    };
    const stops = subscribes.map(subscribe => subscribe(later));
    return () => {
      cancelAnimationFrame(frame);
      stops.forEach(stop => stop());
    };
  }, []);
}

/** The time in ms since 1970; draws anew every `everyMs`. */
export function useNow(everyMs: number): number {
  const [now, set] = useReducer(() => Date.now(), Date.now());
  useEffect(() => {
    const timer = setInterval(set, everyMs);
    return () => clearInterval(timer);
  }, [everyMs]);
  return Math.max(now, Date.now());
}
