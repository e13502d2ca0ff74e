//! The values of a request's attributes: borrowed from it where they can be.

use smallvec::SmallVec;
use tidegate::Attributes;

/// A value that was made. Addresses fit in; for a hash, memory does not matter any more.
pub(crate) type Text = SmallVec<[u8; 24]>;

/// The value of one attribute.
#[derive(Debug)]
pub(crate) enum Value<'r> {
    Borrowed(&'r [u8]),
    Made(Text),
}

impl Value<'_> {
    pub(crate) fn as_bytes(&self) -> &[u8] {
        match self {
            Self::Borrowed(bytes) => bytes,
            Self::Made(text) => text,
        }
    }
}

/// The values of a request, by the names of the attributes.
#[derive(Debug)]
pub(crate) struct Values<'r>(pub(crate) SmallVec<[(&'r str, Value<'r>); 2]>);

/// [`Values`] without the request.
pub(crate) type OwnedValues = Vec<(Box<str>, Box<[u8]>)>;

impl Attributes for Values<'_> {
    #[inline]
    fn value(&self, name: &str) -> Option<&[u8]> {
        let found = self.0.iter().find(|(other, _)| *other == name);
        found.map(|(_, value)| value.as_bytes())
    }
}

impl Values<'_> {
    pub(crate) fn to_owned(&self) -> OwnedValues {
        let values = self.0.iter();
        let values = values.map(|(name, value)| ((*name).into(), value.as_bytes().into()));
        values.collect()
    }
}
