//! The fields that make a limit, of a policy, a level or an override.

use tidegate::draft::LimitFields;
use tidegate::{Algorithm, Align, Rate};

use crate::read::Fields;
use crate::schema::{Rows, Table};
use crate::write::quoted;

/// The names of those fields.
pub(crate) const FIELDS: [&str; 6] = ["limit", "algorithm", "burst", "strict", "align", "block"];

/// The rows of a level or an override, which cannot be a script alone.
pub(crate) fn rows(limit: &mut LimitFields, rows: &mut Rows<'_>) {
    limit.rows(rows);
    if let Some(fields) = rows.fields.filter(|fields| is_script(fields)) {
        let expected = "expected it in the policy, which it decides as a whole";
        fields.error("algorithm", format!("\"script\": {expected}"));
    }
}

/// Whether a script decides instead of a limit.
pub(crate) fn is_script(fields: &Fields<'_>) -> bool {
    fields.peek_text("algorithm") == Some("script")
}

impl Table for LimitFields {
    fn rows(&mut self, rows: &mut Rows<'_>) {
        let rate = |fields: &Fields<'_>, name| {
            let expected = "a rate in quotes, such as \"100r/s\" or \"5/10s\"";
            let parse = |text: &str| text.parse::<Rate>().map_err(|error| error.to_string());
            fields.parsed(name, expected, parse)
        };
        let print = |rate: Rate| quoted(&rate.to_string());
        rows.row("limit", &mut self.rate, rate, print);
        // A script is none. A level that refuses everything has `block = true` instead.
        let algorithms = Algorithm::counting().map(|it| (it.as_str(), Some(it)));
        let algorithms: Vec<_> = algorithms.chain([("script", None)]).collect();
        let read = |fields: &Fields<'_>, name| fields.choice(name, &algorithms)?;
        let print = |algorithm: Algorithm| quoted(algorithm.as_str());
        rows.row("algorithm", &mut self.algorithm, read, print);
        rows.number::<u64>("burst", 1..1 << 32, &mut self.burst);
        rows.flag("strict", &mut self.strict);
        let edges = [("first", Align::First), ("epoch", Align::Epoch)];
        rows.choice("align", &edges, &mut self.align);
        rows.flag("block", &mut self.block);
    }
}
