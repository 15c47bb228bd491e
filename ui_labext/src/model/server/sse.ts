/** One server-sent event; a comment (a heartbeat) has the name "". */
export interface IEvent {
  name: string;
  data: unknown;
}

/** Cuts a text/event-stream, which arrives in any pieces, into events with JSON data. */
export class EventParser {
  /** The events that are complete with `piece`. One whose data is no JSON is left out. */
  push(piece: string): IEvent[] {
    // Complete lines only: the last one may go on in the next piece.
    const lines = (this._rest + piece).split('\n');
    this._rest = lines.pop() ?? '';
    const events: IEvent[] = [];
    for (const whole of lines) {
      const line = whole.endsWith('\r') ? whole.slice(0, -1) : whole;
      if (line === '') {
        this._finish(events);
      } else if (line.startsWith(':')) {
        events.push({ name: '', data: null });
      } else if (line.startsWith('event:')) {
        this._name = line.slice(6).trim();
      } else if (line.startsWith('data:')) {
        this._data.push(line.slice(5).replace(/^ /, ''));
      }
    }
    return events;
  }

  private _finish(events: IEvent[]): void {
    if (this._data.length) {
      try {
        events.push({ name: this._name || 'message', data: JSON.parse(this._data.join('\n')) });
      } catch (error) {
        if (!(error instanceof SyntaxError)) {
          throw error;
        }
      }
    }
    this._name = '';
    this._data = [];
  }

  private _rest = '';
  private _name = '';
  private _data: string[] = [];
}
