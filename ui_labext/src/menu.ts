import { JupyterFrontEnd } from '@jupyterlab/application';
import { TranslationBundle } from '@jupyterlab/translation';
import { MenuSvg } from '@jupyterlab/ui-components';
import { Menu } from '@lumino/widgets';

import { Choice, choices } from './model/words/choices';
import { ISession } from './model/sessions/session';
import { OpenTiers } from './model/words/tiers';
import { isOffered, verbLabel, VERBS } from './model/words/verbs';
import { OUTPUT_COMMAND, verbCommand, WHY_COMMAND } from './plugins/names';

/** Lumino gives an entry that opens a menu no role: screen readers do not take it for an entry. (Nor
 * its lines between entries, which can have the focus; so there is none here.) */
class Renderer extends MenuSvg.Renderer {
  override createItemARIA(data: Menu.IRenderData): ReturnType<Menu.Renderer['createItemARIA']> {
    return { role: 'menuitem', ...super.createItemARIA(data) };
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
  const menu = new MenuSvg({ commands, renderer: new Renderer() });
  menu.title.label = session.name;
  for (const verb of VERBS.filter(each => isOffered(each, session))) {
    const command = verbCommand(verb);
    const offered = choices(verb, session, tiers.of(session.user));
    if (!offered) {
      menu.addItem({ command, args });
      continue;
    }
    const submenu = new MenuSvg({ commands });
    submenu.title.label = verbLabel(verb, trans);
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
  menu.addItem({ command: WHY_COMMAND, args });
  if (session.run?.output) {
    menu.addItem({ command: OUTPUT_COMMAND, args });
  }
  more.forEach(command => menu.addItem({ command }));
  menu.aboutToClose.connect(() => at.focus());
  const { left, bottom } = at.getBoundingClientRect();
  menu.open(left, bottom);
  menu.activeIndex = 0;
}
