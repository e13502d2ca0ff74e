//! The services and their messages as descriptors: for reflection, and for messages in
//! JSON. They are written down as a table, in the words of a `.proto` file, and hold the
//! fields that [`wire`](super::wire) knows.

use std::collections::HashMap;

use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{
    DescriptorProto, EnumDescriptorProto, EnumValueDescriptorProto, FieldDescriptorProto,
    FileDescriptorProto, FileDescriptorSet, MessageOptions, MethodDescriptorProto,
    OneofDescriptorProto, ServiceDescriptorProto,
};

/// One line each: a file with its package and what it imports; a message or an enum, by its
/// name in the package; a field of the last message (`repeated`, `map` or nothing, a type, a
/// name, a number, and the oneof it belongs to); a value of the last enum; a service and
/// its methods.
const FILES: &str = "
file google/protobuf/duration.proto google.protobuf
message Duration
  int64 seconds 1
  int32 nanos 2
file google/protobuf/wrappers.proto google.protobuf
message UInt64Value
  uint64 value 1
message UInt32Value
  uint32 value 1
file google/protobuf/struct.proto google.protobuf
message Struct
  map .google.protobuf.Value fields 1
enum NullValue
  NULL_VALUE 0
message Value
  enum:.google.protobuf.NullValue null_value 1 kind
  double number_value 2 kind
  string string_value 3 kind
  bool bool_value 4 kind
  .google.protobuf.Struct struct_value 5 kind
  .google.protobuf.ListValue list_value 6 kind
message ListValue
  repeated .google.protobuf.Value values 1
file envoy/type/v3/ratelimit_unit.proto envoy.type.v3
enum RateLimitUnit
  UNKNOWN 0
  SECOND 1
  MINUTE 2
  HOUR 3
  DAY 4
  MONTH 5
  YEAR 6
file envoy/config/core/v3/base.proto envoy.config.core.v3
message HeaderValue
  string key 1
  string value 2
file envoy/extensions/common/ratelimit/v3/ratelimit.proto envoy.extensions.common.ratelimit.v3 envoy/type/v3/ratelimit_unit.proto google/protobuf/wrappers.proto
message RateLimitDescriptor
  repeated .envoy.extensions.common.ratelimit.v3.RateLimitDescriptor.Entry entries 1
  .envoy.extensions.common.ratelimit.v3.RateLimitDescriptor.RateLimitOverride limit 2
  .google.protobuf.UInt64Value hits_addend 3
  bool is_negative_hits 4
message RateLimitDescriptor.Entry
  string key 1
  string value 2
message RateLimitDescriptor.RateLimitOverride
  uint32 requests_per_unit 1
  enum:.envoy.type.v3.RateLimitUnit unit 2
file envoy/service/ratelimit/v3/rls.proto envoy.service.ratelimit.v3 envoy/extensions/common/ratelimit/v3/ratelimit.proto envoy/config/core/v3/base.proto google/protobuf/duration.proto google/protobuf/struct.proto
message RateLimitRequest
  string domain 1
  repeated .envoy.extensions.common.ratelimit.v3.RateLimitDescriptor descriptors 2
  uint32 hits_addend 3
message RateLimitResponse
  enum:.envoy.service.ratelimit.v3.RateLimitResponse.Code overall_code 1
  repeated .envoy.service.ratelimit.v3.RateLimitResponse.DescriptorStatus statuses 2
  repeated .envoy.config.core.v3.HeaderValue response_headers_to_add 3
  repeated .envoy.config.core.v3.HeaderValue request_headers_to_add 4
  bytes raw_body 5
  .google.protobuf.Struct dynamic_metadata 6
enum RateLimitResponse.Code
  UNKNOWN 0
  OK 1
  OVER_LIMIT 2
message RateLimitResponse.RateLimit
  string name 3
  uint32 requests_per_unit 1
  enum:.envoy.service.ratelimit.v3.RateLimitResponse.RateLimit.Unit unit 2
enum RateLimitResponse.RateLimit.Unit
  UNKNOWN 0
  SECOND 1
  MINUTE 2
  HOUR 3
  DAY 4
  WEEK 7
  MONTH 5
  YEAR 6
message RateLimitResponse.DescriptorStatus
  enum:.envoy.service.ratelimit.v3.RateLimitResponse.Code code 1
  .envoy.service.ratelimit.v3.RateLimitResponse.RateLimit current_limit 2
  uint32 limit_remaining 3
  .google.protobuf.Duration duration_until_reset 4
service RateLimitService
  ShouldRateLimit .envoy.service.ratelimit.v3.RateLimitRequest .envoy.service.ratelimit.v3.RateLimitResponse
file envoy/type/v3/token_bucket.proto envoy.type.v3 google/protobuf/duration.proto google/protobuf/wrappers.proto
message TokenBucket
  uint32 max_tokens 1
  .google.protobuf.UInt32Value tokens_per_fill 2
  .google.protobuf.Duration fill_interval 3
file envoy/type/v3/ratelimit_strategy.proto envoy.type.v3 envoy/type/v3/token_bucket.proto
message RateLimitStrategy
  enum:.envoy.type.v3.RateLimitStrategy.BlanketRule blanket_rule 1 strategy
  .envoy.type.v3.TokenBucket token_bucket 3 strategy
enum RateLimitStrategy.BlanketRule
  ALLOW_ALL 0
  DENY_ALL 1
file envoy/service/rate_limit_quota/v3/rlqs.proto envoy.service.rate_limit_quota.v3 envoy/type/v3/ratelimit_strategy.proto google/protobuf/duration.proto
message RateLimitQuotaUsageReports
  string domain 1
  repeated .envoy.service.rate_limit_quota.v3.RateLimitQuotaUsageReports.BucketQuotaUsage bucket_quota_usages 2
message RateLimitQuotaUsageReports.BucketQuotaUsage
  .envoy.service.rate_limit_quota.v3.BucketId bucket_id 1
  .google.protobuf.Duration time_elapsed 2
  uint64 num_requests_allowed 3
  uint64 num_requests_denied 4
message RateLimitQuotaResponse
  repeated .envoy.service.rate_limit_quota.v3.RateLimitQuotaResponse.BucketAction bucket_action 1
message RateLimitQuotaResponse.BucketAction
  .envoy.service.rate_limit_quota.v3.BucketId bucket_id 1
  .envoy.service.rate_limit_quota.v3.RateLimitQuotaResponse.BucketAction.QuotaAssignmentAction quota_assignment_action 2 bucket_action
  .envoy.service.rate_limit_quota.v3.RateLimitQuotaResponse.BucketAction.AbandonAction abandon_action 3 bucket_action
message RateLimitQuotaResponse.BucketAction.QuotaAssignmentAction
  .google.protobuf.Duration assignment_time_to_live 2
  .envoy.type.v3.RateLimitStrategy rate_limit_strategy 3
message RateLimitQuotaResponse.BucketAction.AbandonAction
message BucketId
  map string bucket 1
service RateLimitQuotaService
  StreamRateLimitQuotas stream .envoy.service.rate_limit_quota.v3.RateLimitQuotaUsageReports stream .envoy.service.rate_limit_quota.v3.RateLimitQuotaResponse
";

/// All of it.
pub(crate) fn files() -> FileDescriptorSet {
    let files = FILES.split("\nfile ").skip(1);
    FileDescriptorSet {
        file: files.map(file).collect(),
    }
}

/// The part of the last declaration.
enum Part {
    Message(String),
    Enum(String),
    Service,
}

fn file(text: &str) -> FileDescriptorProto {
    let mut lines = text.lines();
    let mut head = lines
        .next()
        .unwrap_or_default()
        .split(' ')
        .map(str::to_owned);
    let mut file = FileDescriptorProto {
        name: head.next(),
        package: head.next(),
        dependency: head.collect(),
        syntax: Some("proto3".into()),
        ..FileDescriptorProto::default()
    };
    let mut messages: Vec<(String, DescriptorProto)> = Vec::new();
    let mut enums: Vec<(String, EnumDescriptorProto)> = Vec::new();
    let mut part = Part::Service;
    for line in lines {
        let words: Vec<&str> = line.split_whitespace().collect();
        match (line.starts_with("  "), &words[..]) {
            (false, ["message", name]) => {
                messages.push(((*name).into(), named(name)));
                part = Part::Message((*name).into());
            }
            (false, ["enum", name]) => {
                let declared = EnumDescriptorProto {
                    name: last(name),
                    ..EnumDescriptorProto::default()
                };
                enums.push(((*name).into(), declared));
                part = Part::Enum((*name).into());
            }
            (false, ["service", name]) => {
                file.service.push(ServiceDescriptorProto {
                    name: Some((*name).into()),
                    ..ServiceDescriptorProto::default()
                });
                part = Part::Service;
            }
            (true, words) => match &part {
                Part::Message(name) => {
                    let place = messages.iter_mut().find(|(other, _)| other == name);
                    let package = file.package.as_deref().unwrap_or_default();
                    let path = format!(".{package}.{name}");
                    field(&mut place.expect("declared").1, &path, words);
                }
                Part::Enum(name) => {
                    let place = enums.iter_mut().find(|(other, _)| other == name);
                    place
                        .expect("declared")
                        .1
                        .value
                        .push(EnumValueDescriptorProto {
                            name: words.first().map(|&it| it.into()),
                            number: words.get(1).and_then(|it| it.parse().ok()),
                            options: None,
                        });
                }
                Part::Service => {
                    let service = file.service.last_mut().expect("declared");
                    service.method.push(method(words));
                }
            },
            _ => {}
        }
    }
    nest(&mut file, messages, enums);
    file
}

/// A method: its name, what goes in and what comes out; `stream` before a type that comes
/// any number of times.
fn method(words: &[&str]) -> MethodDescriptorProto {
    let mut types = words[1..].iter().filter(|word| **word != "stream");
    let is_stream = |index: usize| words.get(index).is_some_and(|word| *word == "stream");
    let client_streaming = is_stream(1);
    MethodDescriptorProto {
        name: words.first().map(|&it| it.into()),
        input_type: types.next().map(|&it| it.into()),
        output_type: types.next().map(|&it| it.into()),
        client_streaming: Some(client_streaming),
        server_streaming: Some(is_stream(if client_streaming { 3 } else { 2 })),
        options: None,
    }
}

fn named(name: &str) -> DescriptorProto {
    DescriptorProto {
        name: last(name),
        ..DescriptorProto::default()
    }
}

/// The last part of a name with dots.
fn last(name: &str) -> Option<String> {
    name.rsplit('.').next().map(str::to_owned)
}

/// Puts what is declared inside a message there, and everything into the file.
fn nest(
    file: &mut FileDescriptorProto,
    messages: Vec<(String, DescriptorProto)>,
    enums: Vec<(String, EnumDescriptorProto)>,
) {
    let mut outer: HashMap<String, Vec<EnumDescriptorProto>> = HashMap::new();
    for (name, declared) in enums {
        match name.rsplit_once('.') {
            Some((parent, _)) => outer.entry(parent.into()).or_default().push(declared),
            None => file.enum_type.push(declared),
        }
    }
    // Innermost first: a message is complete when it goes into the one around it.
    let mut messages = messages;
    messages.sort_by_key(|(name, _)| std::cmp::Reverse(name.matches('.').count()));
    let mut inner: HashMap<String, Vec<DescriptorProto>> = HashMap::new();
    for (name, mut declared) in messages {
        declared
            .nested_type
            .extend(inner.remove(&name).unwrap_or_default());
        declared.enum_type = outer.remove(&name).unwrap_or_default();
        match name.rsplit_once('.') {
            Some((parent, _)) => inner.entry(parent.into()).or_default().push(declared),
            None => file.message_type.push(declared),
        }
    }
}

/// Adds a field to a message.
fn field(message: &mut DescriptorProto, path: &str, words: &[&str]) {
    let (label, words) = match words {
        ["repeated", rest @ ..] => (Label::Repeated, rest),
        ["map", kind, name, number] => {
            let mut entry = named(&format!("{}Entry", camel(name)));
            let entry_path = format!("{path}.{}Entry", camel(name));
            field(&mut entry, "", &["string", "key", "1"]);
            field(&mut entry, "", &[kind, "value", "2"]);
            entry.options = Some(MessageOptions {
                map_entry: Some(true),
                ..MessageOptions::default()
            });
            message.nested_type.push(entry);
            return field(message, path, &["repeated", &entry_path, name, number]);
        }
        words => (Label::Optional, words),
    };
    let (kind, type_name) = match words[0] {
        "string" => (Type::String, None),
        "bytes" => (Type::Bytes, None),
        "bool" => (Type::Bool, None),
        "double" => (Type::Double, None),
        "uint32" => (Type::Uint32, None),
        "uint64" => (Type::Uint64, None),
        "int32" => (Type::Int32, None),
        "int64" => (Type::Int64, None),
        other => match other.strip_prefix("enum:") {
            Some(name) => (Type::Enum, Some(name)),
            None => (Type::Message, Some(other)),
        },
    };
    let oneof = words.get(3).map(|name| {
        let declared = &mut message.oneof_decl;
        let known = declared
            .iter()
            .position(|it| it.name.as_deref() == Some(name));
        known.unwrap_or_else(|| {
            declared.push(OneofDescriptorProto {
                name: Some((*name).into()),
                options: None,
            });
            declared.len() - 1
        })
    });
    message.field.push(FieldDescriptorProto {
        name: Some(words[1].into()),
        json_name: Some({
            let name = camel(words[1]);
            name[..1].to_lowercase() + &name[1..]
        }),
        number: words[2].parse().ok(),
        label: Some(label.into()),
        r#type: Some(kind.into()),
        type_name: type_name.map(str::to_owned),
        oneof_index: oneof.and_then(|index| i32::try_from(index).ok()),
        ..FieldDescriptorProto::default()
    });
}

/// `hits_addend` as `HitsAddend`.
fn camel(name: &str) -> String {
    let parts = name.split('_');
    parts
        .map(|part| part[..1].to_uppercase() + &part[1..])
        .collect()
}
