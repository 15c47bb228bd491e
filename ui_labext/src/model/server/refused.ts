import { ITexts } from '../words/words';

/** A refusal; its message is the server's sentence, or one of `Own`. */
export class Refused extends Error {
  /** `status`: of HTTP; 0: there was no answer. */
  constructor(
    message: string,
    readonly status = 0
  ) {
    super(message);
  }

  /** Whether the same question gets the same answer: nothing but a change makes it worth asking. */
  get final(): boolean {
    return this.status >= 400 && this.status < 500 && this.status !== 429;
  }
}

/** What this page itself says of a server that says nothing. */
export const Own = {
  silent: 'the server is silent',
  noAnswer: 'the server does not answer',
  streamEnded: 'the event stream ended',
  noStreams: 'this browser cannot read streams',
  otherVersion: 'the scheduler is of another version: its answer cannot be read'
} as const;

/** The sentence of an error. */
export function sentence(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}

/** A sentence as people read it: the page's own ones in their language, the server's as they are. */
export function inWords(why: string, texts: ITexts): string {
  switch (why) {
    case Own.silent:
      return texts.__('the server is silent');
    case Own.noAnswer:
      return texts.__('the server does not answer');
    case Own.streamEnded:
      return texts.__('the event stream ended');
    case Own.noStreams:
      return texts.__('this browser cannot read streams');
    case Own.otherVersion:
      return texts.__('the scheduler is of another version: its answer cannot be read');
    default:
      return why;
  }
}
