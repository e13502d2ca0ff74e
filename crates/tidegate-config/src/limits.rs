//! The fields that make a limit, of a policy, a level or an override.

use tidegate::draft::LimitFields;
use tidegate::{Algorithm, Align, Rate};

use crate::read::Fields;

/// The names of those fields.
pub(crate) const FIELDS: [&str; 6] = ["limit", "algorithm", "burst", "strict", "align", "block"];

/// The names that `algorithm` may have; `None` is a script. A level that refuses
/// everything has `block = true` instead.
fn algorithms() -> Vec<(&'static str, Option<Algorithm>)> {
    let counting = Algorithm::ALL.iter().filter(|it| **it != Algorithm::Block);
    let named = counting.map(|it| (it.as_str(), Some(*it)));
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
    let expected = "a rate in quotes, such as \"100r/s\" or \"5/10s\"";
    let rate = fields.text("limit", expected).and_then(|text| {
        let rate = text.parse::<Rate>();
        rate.map_err(|error| fields.error("limit", error.to_string()))
            .ok()
    });
    let algorithm = fields.choice("algorithm", &algorithms());
    let limit = LimitFields {
        rate,
        algorithm: algorithm.flatten(),
        burst: fields.number_in("burst", 1..1 << 32),
        strict: fields.flag("strict"),
        align: fields.choice("align", &[("first", Align::First), ("epoch", Align::Epoch)]),
        block: fields.flag("block"),
    };
    (limit, algorithm == Some(None))
}
