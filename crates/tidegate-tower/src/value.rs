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

/// The values of a request, by the names of the attributes. One that is missing is in
/// no template of a policy that is asked.
#[derive(Debug)]
pub(crate) struct Values<'r>(pub(crate) SmallVec<[(&'r str, Value<'r>); 2]>);

impl Attributes for Values<'_> {
    fn value(&self, name: &str) -> Option<&[u8]> {
        let found = self.0.iter().find(|(other, _)| *other == name);
        found.map(|(_, value)| value.as_bytes())
    }
}

impl Values<'_> {
    /// The values without the request.
    pub(crate) fn to_owned(&self) -> Vec<(Box<str>, Box<[u8]>)> {
        let values = self.0.iter();
        let values = values.map(|(name, value)| ((*name).into(), value.as_bytes().into()));
        values.collect()
    }
}
