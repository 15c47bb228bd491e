import * as React from 'react';

import { ISession } from '../../model/sessions/session';
import { IDeviceUse } from '../../model/server/usage';
import { deviceText, ITexts, useText } from '../../model/words/words';

function Bar(props: { part: number; label: string; text: string }): JSX.Element {
  const { part, label, text } = props;
  return <progress aria-label={label} aria-valuetext={text} max={1} value={Math.min(1, part)} />;
}

/** Each device of a session: the virtual one, the physical one behind it, what it does. */
export function Devices(props: {
  devices: readonly IDeviceUse[];
  session: ISession;
  texts: ITexts;
}): JSX.Element {
  const { devices, session, texts } = props;
  if (!session.devices.length) {
    return <p>{deviceText(session, texts)}</p>;
  }
  const known = session.devices.map(
    (device, virtual): IDeviceUse =>
      devices.find(each => each.virtual === virtual && each.device === device) ?? {
        virtual,
        device,
        name: '',
        memoryUsed: null,
        memoryTotal: null,
        utilisation: null
      }
  );
  return (
    <ul className="jp-Singularity-stored" aria-label={texts.__('Devices')}>
      {known.map(each => {
        const text = useText(each, texts);
        return (
          <li key={each.virtual}>
            <div className="jp-Singularity-entryHead">
              <strong>{texts.__('cuda:%1 on %2', each.virtual, each.device)}</strong>
              <span>{each.name}</span>
            </div>
            <p>{text || texts.__('its node has not reported yet')}</p>
            {each.memoryUsed !== null && each.memoryTotal ? (
              <Bar
                part={each.memoryUsed / each.memoryTotal}
                label={texts.__('Memory of cuda:%1', each.virtual)}
                text={text}
              />
            ) : null}
          </li>
        );
      })}
    </ul>
  );
}
