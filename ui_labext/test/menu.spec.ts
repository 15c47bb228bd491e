import { CommandRegistry } from '@lumino/commands';
import { Menu } from '@lumino/widgets';

import { describeEntry } from '../src/entry';
import { entriesOf } from '../src/model/words/entries';
import { ASKS, call, SECTION_STARTS, verbLabel, VERBS } from '../src/model/words/verbs';
import { sample, TEXTS } from './support/samples';

const RUN = 'why';

function written(changes: Record<string, unknown>, more: readonly string[] = [RUN]): string[] {
  return entriesOf(sample(changes), more).map(entry =>
    entry === 'line' ? '-' : 'verb' in entry ? entry.verb : entry.command
  );
}

test('the end of a session is the last entry of its menu, and stands alone', () => {
  expect(written({}).slice(-4)).toEqual(['-', RUN, '-', 'cancel']);
  expect(written({}, [RUN, 'open']).slice(-5)).toEqual(['-', RUN, 'open', '-', 'cancel']);
  expect(verbLabel('cancel', TEXTS)).toBe('End session');
  expect(call('cancel', 'a', {}).method).toBe('DELETE');
});

test('lines stand between sections, and nowhere else', () => {
  const states = [
    {},
    { state: 'parked', device_state: 'parked' },
    { state: 'suspended', process_state: 'suspended', device_state: 'none' },
    { state: 'completed', process_state: 'completed', device_state: 'none' },
    { state: 'completed', process_state: 'completed', checkpoints: 0, last_checkpoint: null }
  ];
  for (const state of states) {
    const entries = written(state);
    expect(entries[0]).not.toBe('-');
    expect(entries[entries.length - 1]).not.toBe('-');
    expect(entries.join(' ')).not.toContain('- -');
    expect(entries).toContain(RUN);
  }
  expect(written(states[4]!)).toEqual([RUN]);
  expect(written({}).filter(entry => entry === '-')).toHaveLength(SECTION_STARTS.length + 1);
});

test('what asks something before it is done says so, and what loses something asks', () => {
  expect(ASKS).toEqual(expect.arrayContaining(['checkpoint', 'restore', 'cancel']));
  expect(ASKS).not.toContain('suspend');
  expect(VERBS.filter(verb => ASKS.includes(verb))).toEqual(ASKS);
});

test('entries have a tooltip and a role, and a line cannot have the focus', () => {
  const commands = new CommandRegistry();
  commands.addCommand('park', { label: 'Park', caption: 'Free its devices', execute: () => null });
  class Renderer extends Menu.Renderer {
    override renderItem(data: Menu.IRenderData): ReturnType<Menu.Renderer['renderItem']> {
      return describeEntry(super.renderItem(data), data.item);
    }
  }
  const renderer = new Renderer();
  const submenu = new Menu({ commands });
  submenu.title.label = 'Keep alive';
  submenu.title.caption = 'Let nobody park it';
  const menu = new Menu({ commands, renderer });
  menu.addItem({ command: 'park' });
  menu.addItem({ type: 'separator' });
  menu.addItem({ type: 'submenu', submenu });
  menu.open(0, 0);
  const drawn = [...menu.contentNode.children].map(node => ({
    role: node.getAttribute('role'),
    title: node.getAttribute('title'),
    focus: node.getAttribute('tabindex')
  }));
  expect(drawn).toEqual([
    { role: 'menuitem', title: 'Free its devices', focus: '0' },
    { role: 'separator', title: null, focus: null },
    { role: 'menuitem', title: 'Let nobody park it', focus: '0' }
  ]);
  menu.dispose();
});
