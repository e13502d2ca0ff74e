//! The fields that make a limit, of a policy, a level or an override.

use tidegate::draft::LimitFields;
use tidegate::{Algorithm, Align, Rate};

use crate::read::Fields;
use crate::schema::{Rows, Table};
use crate::write::quoted;

/// The names of those fields.
pub(crate) const FIELDS: [&str; 6] = ["limit", "algorithm", "burst", "strict", "align", "block"];

/// The names that `algorithm` may have; `None` is a script. A level that refuses
/// everything has `block = true` instead.
fn algorithms() -> Vec<(&'static str, Option<Algorithm>)> {
    let named = Algorithm::counting().map(|it| (it.as_str(), Some(it)));
    named.chain([("script", None)]).collect()
}

/// The fields of a level or an override, which cannot be a script alone.
pub(crate) fn read(fields: &Fields<'_>) -> LimitFields {
    let (limit, is_script) = read_policy(fields);
    if is_script {
        fields.error(
            "algorithm",
            "\"script\": expected it in the policy, which it decides as a whole",
        );
    }
    limit
}

/// The fields of a policy, and whether a script decides it.
pub(crate) fn read_policy(fields: &Fields<'_>) -> (LimitFields, bool) {
    let is_script = fields.peek_text("algorithm") == Some("script");
    (fields.rows(LimitFields::default()), is_script)
}

impl Table for LimitFields {
    fn rows(&mut self, rows: &mut Rows<'_>) {
        let print = |rate: Rate| format!("\"{rate}\"");
        rows.row("limit", &mut self.rate, rate, print);
        let algorithms = algorithms();
        let read = |fields: &Fields<'_>, name| fields.choice(name, &algorithms)?;
        let print = |algorithm: Algorithm| quoted(algorithm.as_str());
        rows.row("algorithm", &mut self.algorithm, read, print);
        let read = |fields: &Fields<'_>, name| fields.number_in(name, 1..1 << 32);
        rows.row("burst", &mut self.burst, read, |burst| burst.to_string());
        rows.flag("strict", &mut self.strict);
        let edges = [("first", Align::First), ("epoch", Align::Epoch)];
        rows.choice("align", &edges, &mut self.align);
        rows.flag("block", &mut self.block);
    }
}

fn rate(fields: &Fields<'_>, name: &'static str) -> Option<Rate> {
    let rate = fields.text(name, "a rate in quotes, such as \"100r/s\" or \"5/10s\"")?;
    let rate = rate.parse::<Rate>();
    rate.map_err(|error| fields.error(name, error.to_string()))
        .ok()
}
