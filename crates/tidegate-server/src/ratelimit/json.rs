//! Requests and responses in JSON, as protobuf writes them: names in camel case, or as in
//! the `.proto` file when they are read; numbers as numbers or text; enums by name.

use prost_types::value::Kind;
use prost_types::{Struct, Value as Any};
use serde::de::{DeserializeOwned, Error};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value, json};

use crate::envoy::wire::{
    Code, Descriptor, DescriptorStatus, Entry, HeaderValue, LimitOverride, RateLimit,
    RateLimitRequest, RateLimitResponse, Unit,
};

/// Reads a request, or says what is wrong with it.
pub(super) fn request(body: &[u8]) -> Result<RateLimitRequest, serde_json::Error> {
    let Object(request): Object<RequestText> = serde_json::from_slice(body)?;
    Ok(RateLimitRequest {
        domain: request.domain,
        descriptors: request
            .descriptors
            .into_iter()
            .map(|Object(it)| descriptor(it))
            .collect(),
        hits_addend: request.hits_addend,
    })
}

/// A message. A list of its values is none.
struct Object<T>(T);

impl<'de, T: DeserializeOwned> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let fields: Map<String, Value> = Map::deserialize(deserializer)?;
        let message = serde_json::from_value(fields.into());
        message.map(Self).map_err(D::Error::custom)
    }
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
struct RequestText {
    #[serde(deserialize_with = "or_default")]
    domain: String,
    #[serde(deserialize_with = "or_default")]
    descriptors: Vec<Object<DescriptorText>>,
    #[serde(alias = "hits_addend", deserialize_with = "number")]
    hits_addend: u32,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
struct DescriptorText {
    #[serde(deserialize_with = "or_default")]
    entries: Vec<Object<EntryText>>,
    #[serde(deserialize_with = "or_default")]
    limit: Option<Object<LimitText>>,
    #[serde(alias = "hits_addend", deserialize_with = "optional_number")]
    hits_addend: Option<u64>,
    #[serde(alias = "is_negative_hits", deserialize_with = "or_default")]
    is_negative_hits: bool,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct EntryText {
    #[serde(deserialize_with = "or_default")]
    key: String,
    #[serde(deserialize_with = "or_default")]
    value: String,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
struct LimitText {
    #[serde(alias = "requests_per_unit", deserialize_with = "number")]
    requests_per_unit: u32,
    #[serde(deserialize_with = "unit")]
    unit: i32,
}

fn descriptor(text: DescriptorText) -> Descriptor {
    let entry = |Object(text): Object<EntryText>| Entry {
        key: text.key.into(),
        value: text.value.into(),
    };
    Descriptor {
        entries: text.entries.into_iter().map(entry).collect(),
        limit: text.limit.map(|Object(limit)| LimitOverride {
            requests_per_unit: limit.requests_per_unit,
            unit: limit.unit,
        }),
        hits_addend: text.hits_addend,
        is_negative_hits: text.is_negative_hits,
    }
}

/// `null` is what a field has that is not there.
fn or_default<'de, T, D>(deserializer: D) -> Result<T, D::Error>
where
    T: Default + Deserialize<'de>,
    D: Deserializer<'de>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// A number, or a text of one.
#[derive(Deserialize)]
#[serde(untagged)]
enum Number<T> {
    Number(T),
    Text(String),
}

fn optional_number<'de, T, D>(deserializer: D) -> Result<Option<T>, D::Error>
where
    T: DeserializeOwned + std::str::FromStr,
    D: Deserializer<'de>,
{
    let wrong = || D::Error::custom("expected a whole number that is not negative");
    let number: Option<Value> = Option::deserialize(deserializer)?;
    let number = number.map(|number| match serde_json::from_value(number) {
        Ok(Number::Number(number)) => Ok(number),
        Ok(Number::Text(text)) => text.parse().map_err(|_| wrong()),
        Err(_) => Err(wrong()),
    });
    number.transpose()
}

fn number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    Ok(optional_number(deserializer)?.unwrap_or_default())
}

/// A unit, by its name or its number.
fn unit<'de, D: Deserializer<'de>>(deserializer: D) -> Result<i32, D::Error> {
    let found = match Option::<Value>::deserialize(deserializer)? {
        None => Some(0),
        Some(Value::String(name)) if name == "UNKNOWN" => Some(0),
        Some(Value::String(name)) => {
            let mut units = Unit::ALL.iter();
            let unit = units.find(|(unit, _)| unit.to_uppercase() == name);
            unit.map(|(_, unit)| i32::from(*unit))
        }
        Some(value) => value.as_i64().and_then(|number| i32::try_from(number).ok()),
    };
    found.ok_or_else(|| {
        D::Error::custom("expected SECOND, MINUTE, HOUR, DAY, WEEK, MONTH or YEAR for a unit")
    })
}

/// Writes a response. Fields without a value are left out.
pub(super) fn response(response: &RateLimitResponse) -> Value {
    let mut fields = Map::new();
    put(&mut fields, "overallCode", code(response.overall_code));
    let statuses = response.statuses.iter().map(status);
    put(&mut fields, "statuses", statuses.collect());
    for (name, headers) in [
        ("responseHeadersToAdd", &response.response_headers_to_add),
        ("requestHeadersToAdd", &response.request_headers_to_add),
    ] {
        put(&mut fields, name, headers.iter().map(header).collect());
    }
    if let Some(metadata) = &response.dynamic_metadata {
        fields.insert("dynamicMetadata".into(), object(metadata));
    }
    fields.into()
}

fn status(status: &DescriptorStatus) -> Value {
    let mut fields = Map::new();
    put(&mut fields, "code", code(status.code));
    if let Some(limit) = &status.current_limit {
        fields.insert("currentLimit".into(), current_limit(limit));
    }
    put(&mut fields, "limitRemaining", status.limit_remaining.into());
    if let Some(reset) = &status.duration_until_reset {
        let seconds = format!("{}s", reset.seconds);
        put(&mut fields, "durationUntilReset", seconds.into());
    }
    fields.into()
}

fn current_limit(limit: &RateLimit) -> Value {
    let mut fields = Map::new();
    put(&mut fields, "name", limit.name.clone().into());
    let requests = limit.requests_per_unit;
    put(&mut fields, "requestsPerUnit", requests.into());
    let mut units = Unit::ALL.iter();
    if let Some((name, _)) = units.find(|(_, unit)| i32::from(*unit) == limit.unit) {
        put(&mut fields, "unit", name.to_uppercase().into());
    }
    fields.into()
}

fn header(header: &HeaderValue) -> Value {
    json!({ "key": header.key, "value": header.value })
}

fn code(code: i32) -> Value {
    match Code::try_from(code) {
        Ok(Code::Ok) => "OK".into(),
        Ok(Code::OverLimit) => "OVER_LIMIT".into(),
        Ok(Code::Unknown) | Err(_) => Value::Null,
    }
}

/// Adds a field, unless it says nothing.
fn put(fields: &mut Map<String, Value>, name: &str, value: Value) {
    let is_empty = match &value {
        Value::Null => true,
        Value::Number(number) => number.as_u64() == Some(0),
        Value::String(text) => text.is_empty(),
        Value::Array(values) => values.is_empty(),
        Value::Bool(_) | Value::Object(_) => false,
    };
    if !is_empty {
        fields.insert(name.into(), value);
    }
}

fn object(from: &Struct) -> Value {
    let fields = from.fields.iter();
    let fields: Map<String, Value> = fields
        .map(|(name, value)| (name.clone(), any(value)))
        .collect();
    fields.into()
}

fn any(from: &Any) -> Value {
    match &from.kind {
        None | Some(Kind::NullValue(_)) => Value::Null,
        Some(Kind::NumberValue(number)) => json!(number),
        Some(Kind::StringValue(text)) => text.clone().into(),
        Some(Kind::BoolValue(flag)) => (*flag).into(),
        Some(Kind::StructValue(fields)) => object(fields),
        Some(Kind::ListValue(list)) => list.values.iter().map(any).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_read_as_protobuf_reads_them() {
        tidegate_testkit::cases::check(include_str!("json.txt"), 10, |body| {
            let request = match request(body.as_bytes()) {
                Ok(request) => request,
                Err(error) => return error.to_string(),
            };
            let descriptors = request.descriptors.iter().map(|it| format!("\n{it:?}"));
            let (domain, hits) = (&request.domain, request.hits_addend);
            format!("{domain} *{hits}{}", descriptors.collect::<String>())
        });
    }

    #[test]
    fn responses_leave_out_what_is_zero() {
        let status = DescriptorStatus {
            code: Code::OverLimit.into(),
            current_limit: Some(RateLimit {
                requests_per_unit: 3,
                unit: Unit::Minute.into(),
                name: String::new(),
            }),
            limit_remaining: 0,
            duration_until_reset: Some(prost_types::Duration {
                seconds: 12,
                nanos: 0,
            }),
        };
        let message = RateLimitResponse {
            overall_code: Code::OverLimit.into(),
            statuses: vec![status],
            ..RateLimitResponse::default()
        };
        let expected = json!({"overallCode": "OVER_LIMIT", "statuses": [{
            "code": "OVER_LIMIT", "durationUntilReset": "12s",
            "currentLimit": {"requestsPerUnit": 3, "unit": "MINUTE"}}]});
        assert_eq!(response(&message), expected);
    }
}
