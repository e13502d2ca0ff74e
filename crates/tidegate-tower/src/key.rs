//! Keys: where the value of an attribute comes from, and what happens without one.

use std::fmt;

use http::HeaderName;

use crate::address::Addresses;
use crate::error::LayerError;
use crate::head::RequestHead;
use crate::path::PathParameter;
use crate::token::{bearer, hashed};
use crate::value::Value;

/// Where the value of an attribute comes from.
///
/// By default, all requests without a value share one key, so that a client cannot avoid a
/// limit by leaving out a header. Use [`or_skip`](Self::or_skip) or
/// [`or_refuse`](Self::or_refuse) to change that.
///
/// ```
/// use http::HeaderName;
/// use tidegate_tower::Key;
///
/// Key::address();
/// Key::bearer_token().or_skip();
/// Key::header(HeaderName::from_static("x-api-key")).hashed().or_refuse();
/// Key::path_parameter("/users/{id}", "id");
///
/// #[derive(Clone)]
/// struct User { id: u64 }
/// Key::extension(|user: &User| Some(user.id.to_string())).or_shared("anonymous");
/// ```
#[derive(Debug)]
pub struct Key {
    source: Source,
    hashed: bool,
    missing: Missing,
}

/// A user-defined function.
type Function = Box<dyn Fn(&RequestHead<'_>) -> Option<Vec<u8>> + Send + Sync>;

enum Source {
    Address,
    PeerAddress,
    Header(HeaderName),
    BearerToken,
    Method,
    PathParameter(Result<PathParameter, LayerError>),
    Function(Function),
}

/// What happens to a request without a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Missing {
    /// Policies with this attribute are not checked.
    Skip,
    /// It is refused.
    Refuse,
    /// All such requests have this value.
    Shared(Box<[u8]>),
}

impl Key {
    fn new(source: Source) -> Self {
        Self {
            source,
            hashed: false,
            missing: Missing::Shared(Box::default()),
        }
    }

    /// The client's address: that of the connection or, behind
    /// [`proxies`](crate::RateLimitBuilder::proxies), that of the client they forward for.
    /// IPv6 addresses are grouped by
    /// [their prefix](crate::RateLimitBuilder::ipv6_prefix).
    #[must_use]
    pub fn address() -> Self {
        Self::new(Source::Address)
    }

    /// The address of the connection itself, even if it is a proxy.
    #[must_use]
    pub fn peer_address() -> Self {
        Self::new(Source::PeerAddress)
    }

    /// The value of a header; the first one if there are several.
    #[must_use]
    pub fn header(name: HeaderName) -> Self {
        Self::new(Source::Header(name))
    }

    /// The token in `Authorization: Bearer ...`, [`hashed`](Self::hashed).
    #[must_use]
    pub fn bearer_token() -> Self {
        Self::new(Source::BearerToken).hashed()
    }

    /// The method.
    #[must_use]
    pub fn method() -> Self {
        Self::new(Source::Method)
    }

    /// A segment of the path, such as `id` in `/users/{id}`; `{*rest}` at the end matches
    /// several segments. A path that does not match has no value.
    #[must_use]
    pub fn path_parameter(path: &str, name: &str) -> Self {
        Self::new(Source::PathParameter(PathParameter::parse(path, name)))
    }

    /// A value computed from an extension of the request, which the server or an outer layer
    /// set. `None`, or a missing extension, means that the request has no value.
    #[must_use]
    pub fn extension<T, V, F>(function: F) -> Self
    where
        T: Send + Sync + 'static,
        V: Into<Vec<u8>>,
        F: Fn(&T) -> Option<V> + Send + Sync + 'static,
    {
        Self::function(move |head| function(head.extensions.get::<T>()?))
    }

    /// A value computed from the request. The function returns anything that converts into
    /// `Vec<u8>`, such as a `String`, or `None` if the request has no value.
    #[must_use]
    pub fn function<V, F>(function: F) -> Self
    where
        V: Into<Vec<u8>>,
        F: Fn(&RequestHead<'_>) -> Option<V> + Send + Sync + 'static,
    {
        let function = move |head: &RequestHead<'_>| function(head).map(Into::into);
        Self::new(Source::Function(Box::new(function)))
    }

    /// Replaces the value by its SHA-256, so that the value itself never reaches a store or a
    /// log.
    #[must_use]
    pub fn hashed(mut self) -> Self {
        self.hashed = true;
        self
    }

    /// Requests without a value are not counted by policies with this attribute. Other
    /// policies still apply.
    #[must_use]
    pub fn or_skip(mut self) -> Self {
        self.missing = Missing::Skip;
        self
    }

    /// Requests without a value are refused, with status 400.
    #[must_use]
    pub fn or_refuse(mut self) -> Self {
        self.missing = Missing::Refuse;
        self
    }

    /// Requests without a value get this one. The default is the empty value.
    #[must_use]
    pub fn or_shared(mut self, value: impl AsRef<[u8]>) -> Self {
        self.missing = Missing::Shared(value.as_ref().into());
        self
    }

    /// What is wrong with it.
    pub(crate) fn check(&self) -> Result<(), LayerError> {
        match &self.source {
            Source::PathParameter(Err(error)) => Err(error.clone()),
            _ => Ok(()),
        }
    }

    /// What happens to a request without a value.
    pub(crate) fn missing(&self) -> &Missing {
        &self.missing
    }

    /// The value of a request.
    #[inline]
    pub(crate) fn value<'r>(
        &self,
        head: &RequestHead<'r>,
        addresses: &Addresses,
    ) -> Option<Value<'r>> {
        let value = match &self.source {
            Source::Address => Value::Made(addresses.text(addresses.client(head)?)),
            Source::PeerAddress => Value::Made(addresses.text(addresses.peer(head)?)),
            Source::Header(name) => Value::Borrowed(head.headers.get(name)?.as_bytes()),
            Source::BearerToken => Value::Borrowed(bearer(head)?),
            Source::Method => Value::Borrowed(head.method.as_str().as_bytes()),
            Source::PathParameter(parameter) => parameter.as_ref().ok()?.find(head.uri.path())?,
            Source::Function(function) => Value::Made(function(head)?.into()),
        };
        Some(match self.hashed {
            true => Value::Made(hashed(value.as_bytes())),
            false => value,
        })
    }
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address => f.write_str("Address"),
            Self::PeerAddress => f.write_str("PeerAddress"),
            Self::Header(name) => f.debug_tuple("Header").field(name).finish(),
            Self::BearerToken => f.write_str("BearerToken"),
            Self::Method => f.write_str("Method"),
            Self::PathParameter(parameter) => {
                f.debug_tuple("PathParameter").field(parameter).finish()
            }
            Self::Function(_) => f.write_str("Function"),
        }
    }
}
