//! The screen: policies, stores and keys as tables, drawn from what was last heard.

use std::collections::{HashMap, VecDeque};

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Borders, Cell, Paragraph, Row, Table, TableState};

use super::feed::{Message, Policy, Rates, Store, Top};
use crate::figures::count;

/// Seconds of a sparkline.
const HISTORY: usize = 30;

const QUIET: Style = Style::new().fg(Color::DarkGray);
const REFUSED: Style = Style::new().fg(Color::Red);
const WATCHED: Style = Style::new().fg(Color::Magenta);
const GOOD: Style = Style::new().fg(Color::Green);
const TITLE: Style = Style::new().add_modifier(Modifier::BOLD);

/// All that is shown.
pub(super) struct Screen {
    pub(super) url: String,
    pub(super) message: Option<Message>,
    /// Why nothing comes, when nothing does.
    pub(super) lost: Option<String>,
    /// Keys of the selected policy, or why there are none.
    pub(super) top: Result<Top, String>,
    pub(super) by_requests: bool,
    pub(super) by_hour: bool,
    selected: usize,
    history: HashMap<String, VecDeque<f64>>,
}

impl Screen {
    pub(super) fn new(url: &str) -> Self {
        Self {
            url: clean(url),
            message: None,
            lost: None,
            top: Err(String::new()),
            by_requests: false,
            by_hour: false,
            selected: 0,
            history: HashMap::new(),
        }
    }

    /// Takes a message in.
    pub(super) fn take(&mut self, message: Message) {
        let mut history = HashMap::new();
        for policy in &message.policies {
            let mut rates = self.history.remove(&policy.name).unwrap_or_default();
            let all = policy.per_s.unwrap_or_default();
            rates.push_back(all.allowed + all.denied + all.would_deny);
            while rates.len() > HISTORY {
                rates.pop_front();
            }
            history.insert(policy.name.clone(), rates);
        }
        self.history = history;
        self.selected = self.selected.min(message.policies.len().saturating_sub(1));
        self.message = Some(message);
        self.lost = None;
    }

    /// The policy whose keys are shown.
    pub(super) fn policy(&self) -> Option<&str> {
        let policies = &self.message.as_ref()?.policies;
        policies.get(self.selected).map(|policy| &*policy.name)
    }

    /// Where the keys are that are to be shown.
    pub(super) fn question(&self) -> String {
        let by = if self.by_requests {
            "requests"
        } else {
            "denied"
        };
        let window = if self.by_hour { "1h" } else { "1m" };
        let policy = utf8_percent_encode(self.policy().unwrap_or_default(), NON_ALPHANUMERIC);
        format!("/v1/top/{policy}?by={by}&window={window}&n=50")
    }

    /// Selects the policy so many lines further down, or up.
    pub(super) fn select(&mut self, by: isize) {
        let count = self.message.as_ref().map_or(0, |it| it.policies.len());
        let last = count.saturating_sub(1);
        self.selected = self.selected.saturating_add_signed(by).min(last);
    }

    pub(super) fn draw(&self, frame: &mut Frame<'_>) {
        let Some(message) = &self.message else {
            return;
        };
        let stores = u16::try_from(message.stores.len())
            .unwrap_or(u16::MAX)
            .min(4)
            + 2;
        let policies = u16::try_from(message.policies.len()).unwrap_or(u16::MAX);
        // However small the terminal is, its first lines are there.
        let head = Rect {
            height: frame.area().height.min(2),
            ..frame.area()
        };
        let rest = Rect {
            y: head.bottom(),
            height: frame.area().height - head.height,
            ..head
        };
        let [policies, stores, keys, foot] = Layout::vertical([
            Constraint::Length(policies.saturating_add(2)),
            Constraint::Length(stores),
            Constraint::Fill(1),
            Constraint::Length(1),
        ])
        .areas(rest);
        frame.render_widget(Paragraph::new(self.head(message)), head);
        self.draw_policies(frame, policies, message);
        frame.render_widget(table_of_stores(&message.stores), stores);
        frame.render_widget(self.table_of_keys(), keys);
        let help = "q quit   ↑↓ policy   b by refusals or requests   w minute or hour";
        frame.render_widget(Paragraph::new(Span::styled(help, QUIET)), foot);
    }

    fn head(&self, message: &Message) -> Vec<Line<'_>> {
        let state = match &self.lost {
            None => Span::styled("live", GOOD),
            Some(why) => Span::styled(format!("reconnecting: {why}"), REFUSED),
        };
        let facts = format!(
            "  {}  {}  up {}  {}",
            self.url,
            clean(&message.version),
            span(message.uptime_s),
            count(
                message.connections.unsigned_abs(),
                "connection",
                "connections"
            )
        );
        // Trials are asked beside another policy: their requests are counted there.
        let own = message.policies.iter().filter(|it| it.trial_of.is_none());
        let sum = own
            .filter_map(|it| it.per_s)
            .fold(Rates::default(), |sum, it| Rates {
                allowed: sum.allowed + it.allowed,
                denied: sum.denied + it.denied,
                would_deny: sum.would_deny + it.would_deny,
            });
        let all = sum.allowed + sum.denied + sum.would_deny;
        let rates = Line::from(vec![
            Span::raw(format!("allowed {}/s   ", rate(sum.allowed))),
            Span::styled(
                format!(
                    "refused {}/s ({})   ",
                    rate(sum.denied),
                    share(sum.denied, all)
                ),
                if sum.denied > 0.0 {
                    REFUSED
                } else {
                    Style::new()
                },
            ),
            Span::styled(
                format!("would refuse {}/s", rate(sum.would_deny)),
                if sum.would_deny > 0.0 {
                    WATCHED
                } else {
                    Style::new()
                },
            ),
        ]);
        let title = Span::styled("tidegate  ", TITLE);
        vec![Line::from(vec![title, state, Span::raw(facts)]), rates]
    }

    fn draw_policies(&self, frame: &mut Frame<'_>, area: Rect, message: &Message) {
        // Names come first; sparks have what the rest leaves.
        let sparks = area.width.saturating_sub(96).min(30);
        let rows = message.policies.iter().map(|it| self.row(it, sparks));
        let widths = [
            Constraint::Min(27),
            Constraint::Min(14),
            Constraint::Length(9),
            Constraint::Length(9),
            Constraint::Length(7),
            Constraint::Length(7),
            Constraint::Length(7),
            Constraint::Length(sparks),
        ];
        let titles = [
            "policy",
            "limit",
            "allowed/s",
            "refused/s",
            "would/s",
            "p50",
            "p99",
            "last 30 s",
        ];
        let title = match message.policies_left_out {
            0 => " policies ".to_owned(),
            left => format!(" policies ({left} more are not shown) "),
        };
        let table = table(rows, widths, titles, title)
            .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
        let mut state = TableState::new().with_selected(self.selected);
        frame.render_stateful_widget(table, area, &mut state);
    }

    fn row(&self, policy: &Policy, width: u16) -> Row<'_> {
        let name = clean(&policy.name);
        let name = match (&policy.trial_of, policy.shadow, policy.enabled) {
            (_, _, false) => format!("{name} (off)"),
            (Some(live), ..) => format!("{name} (trial of {})", clean(live)),
            (None, true, _) => format!("{name} (shadow)"),
            _ => name,
        };
        let limits: Vec<String> = policy.levels.iter().map(|it| clean(&it.limit)).collect();
        let number = |value: Option<f64>, style| {
            let text = value.map_or_else(|| "-".into(), rate);
            let style = if value > Some(0.0) {
                style
            } else {
                Style::new()
            };
            Cell::from(Line::from(text).right_aligned()).style(style)
        };
        let rates = policy.per_s;
        let right = |text: String| Cell::from(Line::from(text).right_aligned());
        let past = self.history.get(&policy.name);
        Row::new([
            Cell::from(name),
            Cell::from(limits.join("; ")),
            number(rates.map(|it| it.allowed), Style::new()),
            number(rates.map(|it| it.denied), REFUSED),
            number(rates.map(|it| it.would_deny), WATCHED),
            right(micros(policy.p50_us)),
            right(micros(policy.p99_us)),
            Cell::from(
                past.map(|past| sparks(past, width.into()))
                    .unwrap_or_default(),
            ),
        ])
    }

    fn table_of_keys(&self) -> Table<'_> {
        let most = if self.by_requests {
            "busiest"
        } else {
            "most refused"
        };
        let window = if self.by_hour { "hour" } else { "minute" };
        let policy = clean(self.policy().unwrap_or_default());
        let (rows, note) = match &self.top {
            Err(why) => (vec![Row::new([clean(why)])], String::new()),
            Ok(top) if top.keys.is_empty() => (vec![Row::new(["none"])], String::new()),
            Ok(top) => {
                let rows = top.keys.iter().map(|key| {
                    let named = key.key.iter();
                    let parts: Vec<String> = named
                        .map(|(name, value)| format!("{}={}", clean(name), clean(value)))
                        .collect();
                    let number =
                        |value: u64| Cell::from(Line::from(value.to_string()).right_aligned());
                    let part = share(key.denied as f64, key.requests.max(key.denied) as f64);
                    Row::new([
                        Cell::from(parts.join(" ")),
                        number(key.requests),
                        number(key.denied).style(if key.denied > 0 { REFUSED } else { QUIET }),
                        Cell::from(Line::from(part).right_aligned()),
                    ])
                });
                let note = match top.error {
                    0 => String::new(),
                    error => format!("(±{error}) "),
                };
                (rows.collect(), note)
            }
        };
        let title = format!(" {most} keys of {policy}, last {window} {note}");
        let widths = [
            Constraint::Fill(1),
            Constraint::Length(10),
            Constraint::Length(10),
            Constraint::Length(7),
        ];
        table(
            rows.into_iter(),
            widths,
            ["key", "requests", "refused", "share"],
            title,
        )
    }
}

/// What a store has been through.
fn facts(store: &Store) -> String {
    match store.keys {
        Some(keys) => format!("{}, {} evicted", count(keys, "key", "keys"), store.evicted),
        None => format!(
            "{}, {}",
            count(store.outages, "outage", "outages"),
            count(store.errors, "error", "errors")
        ),
    }
}

fn table_of_stores(stores: &[Store]) -> Table<'_> {
    let rows = stores.iter().map(|store| {
        let state = match (store.up, store.breaker_open) {
            (true, false) => Cell::from("up").style(GOOD),
            (true, true) => Cell::from("up, breaker open").style(REFUSED),
            (false, _) => {
                let text = format!("down for {}", span(store.down_s.unwrap_or(0)));
                Cell::from(text).style(REFUSED)
            }
        };
        let right = |text: String| Cell::from(Line::from(text).right_aligned());
        Row::new([
            Cell::from(clean(&store.name)),
            Cell::from(clean(&store.kind)),
            state,
            Cell::from(facts(store)),
            right(micros(store.p50_us)),
            right(micros(store.p99_us)),
        ])
    });
    let widths = [
        Constraint::Fill(1),
        Constraint::Length(7),
        Constraint::Length(17),
        Constraint::Fill(2),
        Constraint::Length(8),
        Constraint::Length(8),
    ];
    let titles = ["store", "kind", "state", "", "p50", "p99"];
    table(rows, widths, titles, " stores ".into())
}

/// A table with a line above it that has its title.
fn table<'t, const N: usize>(
    rows: impl Iterator<Item = Row<'t>>,
    widths: [Constraint; N],
    titles: [&'static str; N],
    title: String,
) -> Table<'t> {
    let is_number = |title: &str| {
        matches!(title, "p50" | "p99" | "requests" | "refused" | "share") || title.ends_with("/s")
    };
    let titles = titles.map(|title| match is_number(title) {
        true => Line::from(title).right_aligned(),
        false => Line::from(title),
    });
    let block = Block::new().borders(Borders::TOP).border_style(QUIET);
    Table::new(rows, widths)
        .header(Row::new(titles).style(QUIET))
        .block(block.title(Span::styled(title, TITLE)))
        .column_spacing(1)
}

/// Text of others, without what would steer a terminal.
fn clean(text: &str) -> String {
    let is_unseen = |sign: char| {
        sign.is_control()
            || matches!(sign, '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    text.replace(is_unseen, "\u{fffd}")
}

/// The last rates, in eight heights of a block.
fn sparks(rates: &VecDeque<f64>, width: usize) -> String {
    const HEIGHTS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let most = rates.iter().copied().fold(0.0, f64::max);
    let height = |rate: &f64| {
        // The lowest height that reaches it.
        let fits = |step: &usize| *rate * 8.0 <= most * (*step + 1) as f64;
        HEIGHTS[(0..8).find(fits).unwrap_or(7)]
    };
    let first = rates.len().saturating_sub(width);
    rates.iter().skip(first).map(height).collect()
}

fn rate(number: f64) -> String {
    match number {
        number if number >= 1e6 => format!("{:.2}M", number / 1e6),
        number if number >= 1e5 => format!("{:.0}k", number / 1e3),
        number if number >= 10.0 => format!("{number:.0}"),
        number => format!("{number:.1}"),
    }
}

fn share(part: f64, all: f64) -> String {
    match all > 0.0 {
        true => format!("{:.1}%", part / all * 100.0),
        false => "0.0%".into(),
    }
}

fn micros(us: Option<f64>) -> String {
    match us {
        None => "-".into(),
        Some(us) if us < 1e3 => format!("{us:.0} us"),
        Some(us) if us < 1e6 => format!("{:.1} ms", us / 1e3),
        Some(us) => format!("{:.1} s", us / 1e6),
    }
}

fn span(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3_600 => format!("{} min", seconds / 60),
        3_600..86_400 => format!("{} h {} min", seconds / 3_600, seconds % 3_600 / 60),
        _ => format!("{} d {} h", seconds / 86_400, seconds % 86_400 / 3_600),
    }
}

#[cfg(test)]
mod tests {
    use tidegate_testkit::cases::rows;

    use super::*;

    const ROWS: &str = include_str!("../rows.txt");

    #[test]
    fn numbers_are_short() {
        rows(ROWS, "numbers on the screen of top", |row| {
            let (what, text) = row.split_once(' ').unwrap();
            let number: f64 = text.parse().unwrap();
            match what {
                "rate" => rate(number),
                "micros" => micros(Some(number)),
                "span" => span(text.parse().unwrap()),
                _ => share(number, 8.0),
            }
        });
        rows(ROWS, "u9 one key is not 1 keys", |keys| {
            let store = format!(
                r#"{{"name":"default","kind":"memory","up":true,"breaker_open":false,"keys":{keys},"evicted":0,"errors":2,"outages":1}}"#
            );
            facts(&serde_json::from_str(&store).unwrap())
        });
    }

    #[test]
    fn text_of_others_cannot_steer_the_terminal() {
        let nasty = "a\u{1b}[2Jb\u{202e}c\n";
        assert_eq!(clean(nasty), "a\u{fffd}[2Jb\u{fffd}c\u{fffd}");
    }

    #[test]
    fn sparks_reach_from_the_lowest_to_the_highest() {
        assert_eq!(sparks(&[0.0, 4.0, 8.0].into(), 9), "▁▄█");
        assert_eq!(sparks(&[8.0, 0.0].into(), 1), "▁");
    }
}
