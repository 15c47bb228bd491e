/** A page that has not come after this long is given up. */
export const LIMIT_MS = 30_000;

/** Ask the service; `Error` with a sentence when it refuses, or does not answer before `signal`. */
export async function ask(
  url: string,
  accept: string,
  xsrf: string,
  signal: AbortSignal
): Promise<Response> {
  const headers = { 'X-XSRFToken': xsrf, Accept: accept };
  let answer: Response;
  try {
    answer = await fetch(url, { headers, signal, credentials: 'same-origin' });
  } catch {
    throw new Error('the scheduler does not answer');
  }
  if (answer.status === 401 || answer.status === 403) {
    throw new Error('your login is over: load the page again');
  }
  if (!answer.ok) {
    throw new Error(`the scheduler answered ${answer.status}`);
  }
  return answer;
}
