//! What can be a key: text, bytes, numbers, addresses, and tuples of these.

use std::borrow::Cow;
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

/// What requests are counted by: one value, a tuple of values, or `()` for everything.
///
/// ```
/// use std::net::IpAddr;
/// use tidegate::{Limit, Limiter};
///
/// let limiter = Limiter::in_memory(Limit::per_minute(5));
/// let address: IpAddr = "203.0.113.7".parse()?;
/// assert!(limiter.check("user:42").allowed());
/// assert!(limiter.check(42_u64).allowed());
/// assert!(limiter.check(address).allowed());
/// assert!(limiter.check((address, "/login")).allowed());
/// assert!(limiter.check(()).allowed());
/// # Ok::<(), std::net::AddrParseError>(())
/// ```
///
/// Values are compared as text, so `7_u64` and `"7"` are the same key, as they are in
/// a store that many programs share. Tuples are compared value by value: `("a:b", "c")`
/// and `("a", "b:c")` are different keys. Nothing allocates, unless the values of a
/// tuple take more than 128 bytes.
pub trait Key {
    /// Calls `ask` with the values.
    fn with_values<T>(&self, ask: impl FnOnce(&[&[u8]]) -> T) -> T;
}

/// One value of a [`Key`]. Implement it for types of your own, to use them as keys and
/// in tuples.
///
/// ```
/// use tidegate::{KeyValue, Limit, Limiter};
///
/// struct UserId(u64);
///
/// impl KeyValue for UserId {
///     fn with_bytes<T>(&self, ask: impl FnOnce(&[u8]) -> T) -> T {
///         self.0.with_bytes(ask)
///     }
/// }
///
/// let limiter = Limiter::in_memory(Limit::per_minute(5));
/// assert!(limiter.check((UserId(42), "upload")).allowed());
/// ```
pub trait KeyValue {
    /// Calls `ask` with the value as bytes.
    fn with_bytes<T>(&self, ask: impl FnOnce(&[u8]) -> T) -> T;
}

impl<V: KeyValue + ?Sized> Key for V {
    #[inline(always)]
    fn with_values<T>(&self, ask: impl FnOnce(&[&[u8]]) -> T) -> T {
        self.with_bytes(|value| ask(&[value]))
    }
}

/// No key: one counter for everything.
impl Key for () {
    #[inline]
    fn with_values<T>(&self, ask: impl FnOnce(&[&[u8]]) -> T) -> T {
        ask(&[])
    }
}

macro_rules! tuples {
    ($(($first:ident $($name:ident)+))+) => {$(
        #[expect(non_snake_case, reason = "values are named like their types")]
        impl<$first: KeyValue, $($name: KeyValue),+> Key for ($first, $($name),+) {
            #[inline]
            fn with_values<T>(&self, ask: impl FnOnce(&[&[u8]]) -> T) -> T {
                let ($first, $($name),+) = self;
                tuples!(@nest ask [] $first $($name)+)
            }
        }
    )+};
    (@nest $ask:ident [$($bytes:ident)*] $value:ident $($rest:ident)*) => {
        $value.with_bytes(|$value| tuples!(@nest $ask [$($bytes)* $value] $($rest)*))
    };
    (@nest $ask:ident [$($bytes:ident)*]) => { $ask(&[$($bytes),*]) };
}

tuples! {
    (A B)
    (A B C)
    (A B C D)
    (A B C D E)
    (A B C D E F)
}

macro_rules! bytes {
    ($($type:ty: $bytes:ident),+ $(,)?) => {$(
        impl KeyValue for $type {
            #[inline(always)]
            fn with_bytes<T>(&self, ask: impl FnOnce(&[u8]) -> T) -> T {
                ask(self.$bytes())
            }
        }
    )+};
}

bytes! {
    str: as_bytes,
    String: as_bytes,
    Box<str>: as_bytes,
    Arc<str>: as_bytes,
    Cow<'_, str>: as_bytes,
    [u8]: as_ref,
    Vec<u8>: as_slice,
    Box<[u8]>: as_ref,
    Arc<[u8]>: as_ref,
}

impl<const LENGTH: usize> KeyValue for [u8; LENGTH] {
    #[inline]
    fn with_bytes<T>(&self, ask: impl FnOnce(&[u8]) -> T) -> T {
        ask(self)
    }
}

impl<V: KeyValue + ?Sized> KeyValue for &V {
    #[inline(always)]
    fn with_bytes<T>(&self, ask: impl FnOnce(&[u8]) -> T) -> T {
        (**self).with_bytes(ask)
    }
}

macro_rules! integers {
    ($($type:ty),+) => {$(
        impl KeyValue for $type {
            #[inline]
            fn with_bytes<T>(&self, ask: impl FnOnce(&[u8]) -> T) -> T {
                ask(itoa::Buffer::new().format(*self).as_bytes())
            }
        }
    )+};
}

integers!(
    u8, u16, u32, u64, u128, usize, i8, i16, i32, i64, i128, isize
);

impl KeyValue for Ipv4Addr {
    #[inline]
    fn with_bytes<T>(&self, ask: impl FnOnce(&[u8]) -> T) -> T {
        let (mut text, mut length) = ([b'.'; 16], 0);
        for octet in self.octets() {
            let mut digits = itoa::Buffer::new();
            let digits = digits.format(octet).as_bytes();
            text[length..length + digits.len()].copy_from_slice(digits);
            length += digits.len() + 1;
        }
        ask(&text[..length - 1])
    }
}

impl KeyValue for Ipv6Addr {
    fn with_bytes<T>(&self, ask: impl FnOnce(&[u8]) -> T) -> T {
        // The longest is an IPv4 address in full IPv6 notation.
        let mut text = [0; 45];
        let mut rest = &mut text[..];
        write!(rest, "{self}").expect("an IPv6 address has at most 45 characters");
        let length = 45 - rest.len();
        ask(&text[..length])
    }
}

impl KeyValue for IpAddr {
    #[inline]
    fn with_bytes<T>(&self, ask: impl FnOnce(&[u8]) -> T) -> T {
        match self {
            Self::V4(address) => address.with_bytes(ask),
            Self::V6(address) => address.with_bytes(ask),
        }
    }
}
