//! Where the value of an attribute comes from, and what happens when there is none.

use std::fmt;
use std::net::IpAddr;

use http::HeaderName;

use crate::address::Addresses;
use crate::error::LayerError;
use crate::head::RequestHead;
use crate::path::PathParameter;
use crate::token::{bearer, hashed};
use crate::value::Value;

/// Where the value of an attribute comes from.
///
/// A request without a value counts on one key that all such requests share, unless
/// [`or_skip`](Self::or_skip) or [`or_refuse`](Self::or_refuse) says otherwise: leaving
/// out a header is no way around a limit.
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

/// A function of the user's own.
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
    /// Policies with this attribute are not asked.
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

    /// The client's address: that of the connection, or, behind
    /// [`proxies`](crate::RateLimitBuilder::proxies), that of the client they speak for.
    /// IPv6 addresses are grouped by
    /// [their prefix](crate::RateLimitBuilder::ipv6_prefix).
    #[must_use]
    pub fn address() -> Self {
        Self::new(Source::Address)
    }

    /// The address of the connection, whoever it speaks for.
    #[must_use]
    pub fn peer_address() -> Self {
        Self::new(Source::PeerAddress)
    }

    /// The value of a header field, its first line if there are several.
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

    /// A part of the path, such as `id` in `/users/{id}`; `{*rest}` at the end takes
    /// several segments. A path that does not fit has no value.
    #[must_use]
    pub fn path_parameter(path: &str, name: &str) -> Self {
        Self::new(Source::PathParameter(PathParameter::parse(path, name)))
    }

    /// What a server or a layer further out has left in the request's extensions.
    #[must_use]
    pub fn extension<T, V, F>(function: F) -> Self
    where
        T: Send + Sync + 'static,
        V: Into<Vec<u8>>,
        F: Fn(&T) -> Option<V> + Send + Sync + 'static,
    {
        Self::function(move |head| function(head.extensions.get::<T>()?))
    }

    /// Whatever a function makes of the request.
    #[must_use]
    pub fn function<V, F>(function: F) -> Self
    where
        V: Into<Vec<u8>>,
        F: Fn(&RequestHead<'_>) -> Option<V> + Send + Sync + 'static,
    {
        let function = move |head: &RequestHead<'_>| function(head).map(Into::into);
        Self::new(Source::Function(Box::new(function)))
    }

    /// The SHA-256 of the value in its place, so that no store and no log ever has the
    /// value itself.
    #[must_use]
    pub fn hashed(mut self) -> Self {
        self.hashed = true;
        self
    }

    /// Requests without a value are not counted by policies with this attribute; others
    /// are asked all the same.
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

    /// Requests without a value have this one. It is the empty one when nothing is said.
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

    pub(crate) fn is_client_address(&self) -> bool {
        matches!(self.source, Source::Address)
    }

    /// What happens to a request without a value.
    pub(crate) fn missing(&self) -> &Missing {
        &self.missing
    }

    /// The value of a request whose client is known already.
    #[inline]
    pub(crate) fn value<'r>(
        &self,
        head: &RequestHead<'r>,
        client: Option<IpAddr>,
        addresses: &Addresses,
    ) -> Option<Value<'r>> {
        let value = match &self.source {
            Source::Address => Value::Made(addresses.text(client?)),
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
