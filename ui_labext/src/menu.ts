import { JupyterFrontEnd } from '@jupyterlab/application';
import { TranslationBundle } from '@jupyterlab/translation';
import { MenuSvg } from '@jupyterlab/ui-components';
import { Menu } from '@lumino/widgets';

import { describeEntry } from './entry';
import { Choice, choices } from './model/words/choices';
import { entriesOf } from './model/words/entries';
import { ISession } from './model/sessions/session';
import { OpenTiers } from './model/words/tiers';
import { verbCaption, verbLabel } from './model/words/verbs';
import { OUTPUT_COMMAND, verbCommand, WHY_COMMAND } from './plugins/names';

class Renderer extends MenuSvg.Renderer {
  override renderItem(data: Menu.IRenderData): ReturnType<Menu.Renderer['renderItem']> {
    return describeEntry(super.renderItem(data), data.item);
  }
}

/** Show all that can be done with a session, and the commands in `more`, below an element, which
 * gets the focus back. */
export function openMenu(
  commands: JupyterFrontEnd['commands'],
  session: ISession,
  at: HTMLElement,
  trans: TranslationBundle,
  tiers: OpenTiers,
  more: readonly string[] = []
): void {
  const args = { session: session.id };
  const renderer = new Renderer();
  const menu = new MenuSvg({ commands, renderer });
  menu.title.label = session.name;
  const others = [WHY_COMMAND, ...(session.run?.output ? [OUTPUT_COMMAND] : [])];
  for (const entry of entriesOf(session, [...others, ...more])) {
    if (entry === 'line') {
      menu.addItem({ type: 'separator' });
      continue;
    }
    if ('command' in entry) {
      const { command } = entry;
      menu.addItem(others.includes(command) ? { command, args } : { command });
      continue;
    }
    const { verb } = entry;
    const command = verbCommand(verb);
    const offered = choices(verb, session, tiers.of(session.user));
    if (!offered) {
      menu.addItem({ command, args });
      continue;
    }
    const submenu = new MenuSvg({ commands, renderer });
    submenu.title.label = verbLabel(verb, trans);
    submenu.title.caption = verbCaption(verb, trans);
    const fill = (wanted: readonly Choice[]) => {
      submenu.clearItems();
      wanted.forEach(choice => submenu.addItem({ command, args: { ...args, ...choice } }));
    };
    fill(offered);
    const item = menu.addItem({ type: 'submenu', submenu });
    if (verb === 'tier') {
      void tiers.look(session.user).then(open => {
        const now = choices(verb, session, open) ?? [];
        if (menu.isDisposed || submenu.isDisposed) {
          return;
        }
        if (!now.length) {
          menu.removeItem(item);
        } else if (JSON.stringify(now) !== JSON.stringify(offered)) {
          fill(now);
        }
      });
    }
  }
  menu.aboutToClose.connect(() => at.focus());
  const { left, bottom } = at.getBoundingClientRect();
  menu.open(left, bottom);
  menu.activeIndex = 0;
}
