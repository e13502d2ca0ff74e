//! The names that fields have in the logs of well-known programs.

use crate::simulate::arguments::Format;

/// The fields of a JSON format, each list with the first choice first.
pub(super) struct Known {
    pub(super) time: &'static [&'static str],
    pub(super) attributes: &'static [Attribute],
}

/// An attribute, and the fields that may hold it.
type Attribute = (&'static str, &'static [&'static str]);

/// Logs that call their fields what nginx calls its variables, or what most others do.
const JSON: Known = Known {
    time: &[
        "time",
        "timestamp",
        "@timestamp",
        "ts",
        "msec",
        "time_iso8601",
        "time_local",
        "start_time",
    ],
    attributes: &[
        (
            "ip",
            &["ip", "remote_addr", "client_ip", "remote_ip", "clientip"],
        ),
        ("method", &["method", "request_method"]),
        ("path", &["path", "uri", "request_uri", "url"]),
        ("host", &["host", "http_host", "server_name"]),
        ("user", &["user", "remote_user", "user_id"]),
        ("status", &["status", "status_code"]),
    ],
};

const CADDY: Known = Known {
    time: &["ts"],
    attributes: &[
        (
            "ip",
            &[
                "request.client_ip",
                "request.remote_ip",
                "request.remote_addr",
            ],
        ),
        ("method", &["request.method"]),
        ("path", &["request.uri"]),
        ("host", &["request.host"]),
        ("user", &["user_id"]),
        ("status", &["status"]),
    ],
};

const TRAEFIK: Known = Known {
    time: &["StartUTC", "StartLocal", "time"],
    attributes: &[
        ("ip", &["ClientHost", "ClientAddr"]),
        ("method", &["RequestMethod"]),
        ("path", &["RequestPath"]),
        ("host", &["RequestHost", "RequestAddr"]),
        ("user", &["ClientUsername"]),
        ("status", &["DownstreamStatus"]),
    ],
};

const ENVOY: Known = Known {
    time: &["start_time", "timestamp"],
    attributes: &[
        (
            "ip",
            &[
                "downstream_remote_address_without_port",
                "downstream_remote_address",
            ],
        ),
        ("method", &["method", ":method"]),
        ("path", &["path", "x-envoy-origin-path", ":path"]),
        ("host", &["authority", ":authority"]),
        ("user", &["user"]),
        ("status", &["response_code"]),
    ],
};

/// The fields of a format, where its lines are JSON.
pub(super) fn json(format: Format) -> Option<&'static Known> {
    match format {
        Format::Json => Some(&JSON),
        Format::Caddy => Some(&CADDY),
        Format::Traefik => Some(&TRAEFIK),
        Format::Envoy => Some(&ENVOY),
        Format::Nginx | Format::Combined | Format::Common => None,
    }
}

/// The fields of an attribute.
pub(super) fn find(attributes: &[Attribute], name: &str) -> Option<&'static [&'static str]> {
    let found = attributes.iter().find(|(other, _)| *other == name);
    found.map(|(_, fields)| *fields)
}

/// What a format is called on the command line.
pub(super) fn name(format: Format) -> &'static str {
    match format {
        Format::Nginx => "nginx",
        Format::Combined => "combined",
        Format::Common => "common",
        Format::Json => "json",
        Format::Caddy => "caddy",
        Format::Traefik => "traefik",
        Format::Envoy => "envoy",
    }
}
