//! What a check is asked with: named values.

use std::borrow::Borrow;
use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, Hash};

/// The named values of one check, such as `ip` or `user`: any bytes.
///
/// Pairs in an array, a slice or a `Vec` will do, and so will a map. A front end
/// can answer from its own types, without copying.
///
/// ```
/// use tidegate::Attributes;
///
/// let pairs = [("ip", "203.0.113.7"), ("user", "42")];
/// assert_eq!(pairs.value("user"), Some(&b"42"[..]));
/// assert_eq!(pairs.value("token"), None);
/// ```
pub trait Attributes {
    /// The value of this name, if there is one. Of several, the first.
    fn value(&self, name: &str) -> Option<&[u8]>;
}

impl<N: AsRef<str>, V: AsRef<[u8]>> Attributes for [(N, V)] {
    #[inline]
    fn value(&self, name: &str) -> Option<&[u8]> {
        self.iter()
            .find(|(other, _)| other.as_ref() == name)
            .map(|(_, value)| value.as_ref())
    }
}

impl<N: AsRef<str>, V: AsRef<[u8]>, const COUNT: usize> Attributes for [(N, V); COUNT] {
    #[inline]
    fn value(&self, name: &str) -> Option<&[u8]> {
        self.as_slice().value(name)
    }
}

impl<N: AsRef<str>, V: AsRef<[u8]>> Attributes for Vec<(N, V)> {
    fn value(&self, name: &str) -> Option<&[u8]> {
        self.as_slice().value(name)
    }
}

impl<N: Borrow<str> + Ord, V: AsRef<[u8]>> Attributes for BTreeMap<N, V> {
    fn value(&self, name: &str) -> Option<&[u8]> {
        self.get(name).map(AsRef::as_ref)
    }
}

impl<N: Borrow<str> + Eq + Hash, V: AsRef<[u8]>, S: BuildHasher> Attributes for HashMap<N, V, S> {
    fn value(&self, name: &str) -> Option<&[u8]> {
        self.get(name).map(AsRef::as_ref)
    }
}

impl<A: Attributes + ?Sized> Attributes for &A {
    #[inline]
    fn value(&self, name: &str) -> Option<&[u8]> {
        (**self).value(name)
    }
}

/// No attributes: for policies whose levels have no key.
impl Attributes for () {
    fn value(&self, _: &str) -> Option<&[u8]> {
        None
    }
}
