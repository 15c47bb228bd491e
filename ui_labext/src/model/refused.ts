/** A refusal; its message is the server's sentence. */
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

/** The sentence of an error. */
export function sentence(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
