//! A run as one page: charts drawn here, styles within, nothing to load and no script.

mod draw;

use std::fmt::{self, Display, Write};

use super::report::{key, numbers, percent, refuses, with_them};
use super::summary::{ClientBody, Compared, PolicyBody, Suggested, Summary, share};
use crate::figures::{count, thousands};

const STYLE: &str = include_str!("style.css");

const TAKES_ALL: &str = "a string takes everything";

/// Text that is safe between tags and in attributes.
struct Safe<'t>(&'t str);

impl Display for Safe<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for letter in self.0.chars() {
            match letter {
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '&' => f.write_str("&amp;")?,
                '"' => f.write_str("&quot;")?,
                '\'' => f.write_str("&#39;")?,
                letter if letter.is_control() => f.write_char('·')?,
                letter => f.write_char(letter)?,
            }
        }
        Ok(())
    }
}

/// The page.
pub(super) fn page(summary: &Summary) -> String {
    let mut body = String::new();
    for policy in &summary.policies {
        of_policy(&mut body, policy);
    }
    let span = match (&summary.from, &summary.to) {
        (Some(from), Some(to)) => format!(
            "from {} to {}, times in UTC",
            Safe(&readable(from)),
            Safe(&readable(to))
        ),
        _ => format!("none of which can be read as {}", Safe(summary.format)),
    };
    left_out(&mut body, summary);
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta http-equiv=\"Content-Security-Policy\" \
         content=\"default-src 'none'; style-src 'unsafe-inline'; img-src data:\">\n\
         <link rel=\"icon\" href=\"data:,\">\n<title>What the limits would have done</title>\n\
         <style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n\
         <h1>What the limits would have done</h1>\n\
         <p class=\"quiet\">{} {span}</p>\n{body}\
         <p class=\"quiet\">Made by <code>tidegate simulate</code>.</p>\n\
         </main>\n</body>\n</html>\n",
        count(summary.lines, "line", "lines"),
    )
}

/// `2026-11-16 09:00:00` of what RFC 3339 writes in UTC.
fn readable(text: &str) -> String {
    text.trim_end_matches('Z').replacen('T', " ", 1)
}

fn of_policy(page: &mut String, policy: &PolicyBody) {
    let mut add = |text: String| page.push_str(&text);
    add(format!("<section>\n<h2>{}</h2>\n<p>", Safe(&policy.name)));
    let levels = policy.levels.iter().map(|level| match level.key.as_str() {
        "" => format!("<code>{}</code> for all", Safe(&level.limit)),
        key => format!(
            "<code>{}</code> per <code>{}</code>",
            Safe(&level.limit),
            Safe(key)
        ),
    });
    add(levels.collect::<Vec<_>>().join(" and "));
    add("</p>\n".into());
    let refused = percent(share(policy.denied, policy.requests));
    let clients = percent(share(policy.keys_denied, policy.keys));
    let (worst, at) = match &policy.worst_minute {
        Some(worst) => (thousands(worst.denied), readable(&worst.at)),
        None => ("none".into(), "no minute had any".into()),
    };
    let tiles = [
        ("Requests", thousands(policy.requests), String::new()),
        ("Refused", thousands(policy.denied), refused),
        ("Clients", thousands(policy.keys), String::new()),
        (
            "Clients refused at least once",
            thousands(policy.keys_denied),
            clients,
        ),
        ("Refused in the worst minute", worst, at),
    ];
    add("<dl class=\"tiles\">\n".into());
    for (label, number, more) in tiles {
        add(format!(
            "<div><dt>{label}</dt><dd>{number}<small>{}</small></dd></div>\n",
            Safe(&more)
        ));
    }
    add("</dl>\n".into());
    add(draw::over_time(&policy.over_time));
    if policy.levels.len() > 1 {
        add("<h3>Which level refused first</h3>\n".into());
        let rows = policy.levels.iter().map(|level| {
            vec![
                Cell::Code(level.name.clone()),
                Cell::Number(thousands(level.denied)),
            ]
        });
        add(table(&["level", "#refused"], rows, |_| false));
    }
    if !policy.top.is_empty() {
        add("<h3>Most refused</h3>\n".into());
        add(table_of_clients(&policy.top));
    }
    if let Some(suggested) = &policy.suggested {
        add(of_suggestion(suggested));
    }
    if let Some(why) = &policy.not_suggested {
        add(format!(
            "<h3>Suggested</h3>\n<p>Nothing: {}.</p>\n",
            Safe(why)
        ));
    }
    if let Some(compared) = &policy.compared {
        add(of_comparison(compared, policy));
    }
    let mut notes = policy.notes.clone();
    if policy.without_key > 0 {
        notes.push(format!(
            "{} lack an attribute of the key, and are not counted",
            count(policy.without_key, "request", "requests")
        ));
    }
    if !notes.is_empty() {
        let notes = notes.iter().map(|note| format!("<li>{}</li>", Safe(note)));
        add(format!("<ul>{}</ul>\n", notes.collect::<String>()));
    }
    add("</section>\n".into());
}

/// Clients, and what was refused of each.
fn table_of_clients(all: &[ClientBody]) -> String {
    let rows = all.iter().map(|client| {
        vec![
            Cell::Code(key(&client.key)),
            Cell::Number(thousands(client.denied)),
            Cell::Number(thousands(client.requests)),
            Cell::Share(share(client.denied, client.requests)),
        ]
    });
    let heads = ["client", "#refused", "#requests", "share refused"];
    table(&heads, rows, |_| false)
}

fn of_suggestion(suggested: &Suggested) -> String {
    let less = match suggested.burst {
        Some(_) => "One less of either number",
        None => "One less",
    };
    let mut text = format!(
        "<h3>Suggested</h3>\n<p><code>{}</code> {}. {less} refuses too many.</p>\n",
        Safe(&numbers(&suggested.limit, suggested.burst)),
        refuses(suggested)
    );
    if let Some(with_them) = with_them(suggested) {
        text.push_str(&table_of_clients(&suggested.clients));
        text.push_str(&format!(
            "<p>Only the clients above are refused: {}.</p>\n",
            Safe(&with_them)
        ));
    }
    text.push_str(&draw::curve(suggested));
    let rows = suggested.curve.iter().map(|point| {
        vec![
            Cell::Code(numbers(&point.limit, point.burst)),
            Cell::Number(thousands(point.denied)),
            Cell::Number(thousands(point.keys_denied)),
            Cell::Number(percent(point.denied_share)),
        ]
    });
    let share = format!("#share of {}", suggested.of);
    let heads = ["limit", "#refused", "#clients refused", share.as_str()];
    text.push_str(&table(&heads, rows, |row| suggested.curve[row].is_best));
    text
}

fn of_comparison(compared: &Compared, policy: &PolicyBody) -> String {
    let [one, other] = compared.algorithms;
    let differ = compared.only_first_denied + compared.only_second_denied;
    let mut text = format!(
        "<h3><code>{one}</code> beside <code>{other}</code></h3>\n\
         <p>{} of {} decided differently: {}.</p>\n",
        thousands(differ),
        count(compared.requests, "request", "requests"),
        percent(compared.differ_share)
    );
    let rows = [
        (format!("only {one} refuses"), compared.only_first_denied),
        (format!("only {other} refuses"), compared.only_second_denied),
        ("both refuse".into(), compared.both_denied),
        ("both admit".into(), compared.both_allowed),
    ];
    let rows = rows.into_iter().map(|(label, number)| {
        vec![
            Cell::Text(label),
            Cell::Number(thousands(number)),
            Cell::Number(percent(share(number, compared.requests))),
        ]
    });
    text.push_str(&table(&["", "#requests", "#share"], rows, |_| false));
    if differ > 0 {
        text.push_str(&draw::differences(&policy.over_time, &compared.over_time));
        let rows = compared.top.iter().map(|client| {
            vec![
                Cell::Code(key(&client.key)),
                Cell::Number(thousands(client.differ)),
                Cell::Number(thousands(client.requests)),
            ]
        });
        let heads = ["client", "#decided differently", "#requests"];
        text.push_str(&table(&heads, rows, |_| false));
    }
    text
}

fn left_out(page: &mut String, summary: &Summary) {
    if summary.left_out_lines.is_empty() && summary.left_out_policies.is_empty() {
        return;
    }
    page.push_str("<section>\n<h2>Left out</h2>\n");
    if summary.unreadable + summary.late > 0 {
        writeln!(
            page,
            "<p>{} cannot be read as {}, {} too far out of order. The first of them:</p>",
            count(summary.unreadable, "line", "lines"),
            Safe(summary.format),
            count(summary.late, "line is", "lines are"),
        )
        .expect(TAKES_ALL);
        let rows = summary.left_out_lines.iter().map(|bad| {
            vec![
                Cell::Code(format!("{}:{}", bad.log, bad.line)),
                Cell::Text(bad.reason.clone()),
                Cell::Code(bad.text.clone()),
            ]
        });
        page.push_str(&table(&["line", "why", "text"], rows, |_| false));
    }
    for left_out in &summary.left_out_policies {
        writeln!(
            page,
            "<p>Policy <code>{}</code>: {}.</p>",
            Safe(&left_out.name),
            Safe(&left_out.reason)
        )
        .expect(TAKES_ALL);
    }
    page.push_str("</section>\n");
}

/// What a cell of a table shows.
enum Cell {
    Text(String),
    Code(String),
    Number(String),
    Share(f64),
}

/// A table. Heads that begin with `#` are above numbers.
fn table(
    heads: &[&str],
    rows: impl Iterator<Item = Vec<Cell>>,
    is_chosen: impl Fn(usize) -> bool,
) -> String {
    let mut text = "<div class=\"scroll\"><table>\n<thead><tr>".to_owned();
    for head in heads {
        match head.strip_prefix('#') {
            Some(head) => write!(
                text,
                "<th scope=\"col\" class=\"number\">{}</th>",
                Safe(head)
            ),
            None => write!(text, "<th scope=\"col\">{}</th>", Safe(head)),
        }
        .expect(TAKES_ALL);
    }
    text.push_str("</tr></thead>\n<tbody>\n");
    for (number, row) in rows.enumerate() {
        text.push_str(match is_chosen(number) {
            true => "<tr class=\"chosen\">",
            false => "<tr>",
        });
        for cell in row {
            match cell {
                Cell::Text(cell) => write!(text, "<td>{}</td>", Safe(&cell)),
                Cell::Code(cell) => write!(text, "<td><code>{}</code></td>", Safe(&cell)),
                Cell::Number(cell) => write!(text, "<td class=\"number\">{}</td>", Safe(&cell)),
                Cell::Share(share) => write!(
                    text,
                    "<td><span class=\"share\" role=\"img\" aria-label=\"{0}\" title=\"{0}\"><i style=\"width:{1:.1}%\"></i></span></td>",
                    percent(share),
                    share * 100.0
                ),
            }
            .expect(TAKES_ALL);
        }
        text.push_str("</tr>\n");
    }
    text.push_str("</tbody>\n</table></div>\n");
    text
}

#[cfg(test)]
mod tests {
    #[test]
    fn text_from_logs_cannot_become_markup() {
        let safe = super::Safe("<script>alert('x')</script>\"&\u{7}").to_string();
        let expected = "&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;&quot;&amp;·";
        assert_eq!(safe, expected);
    }
}
