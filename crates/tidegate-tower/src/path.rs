//! Templates of paths, such as `/users/{id}`, for keys made of a part of a path.

use percent_encoding::percent_decode;
use smallvec::SmallVec;

use crate::error::LayerError;
use crate::value::Value;

/// A template of paths, and which of its parameters is meant.
#[derive(Debug, Clone)]
pub(crate) struct PathParameter {
    segments: Box<[Segment]>,
    /// Whether the last segment takes the rest of the path.
    rest: bool,
}

#[derive(Debug, Clone)]
enum Segment {
    Literal(Box<str>),
    Other,
    Meant,
}

impl PathParameter {
    pub(crate) fn parse(path: &str, name: &str) -> Result<Self, LayerError> {
        let wrong = |problem: String| LayerError::Path {
            path: path.to_owned(),
            problem,
        };
        let Some(segments) = path.strip_prefix('/') else {
            return Err(wrong("expected it to begin with a slash".into()));
        };
        let texts: Vec<&str> = segments.split('/').collect();
        let (mut segments, mut rest, mut names) = (Vec::new(), false, Vec::new());
        for (index, text) in texts.iter().enumerate() {
            let inside = text.strip_prefix('{').and_then(|it| it.strip_suffix('}'));
            let Some(inside) = inside else {
                if text.contains(['{', '}']) {
                    let problem = "expected braces around a whole segment";
                    return Err(wrong(format!("{text:?}: {problem}")));
                }
                segments.push(Segment::Literal((*text).into()));
                continue;
            };
            let parameter = match inside.strip_prefix('*') {
                Some(parameter) if index + 1 == texts.len() => {
                    rest = true;
                    parameter
                }
                Some(_) => return Err(wrong(format!("expected nothing after {text:?}"))),
                None => inside,
            };
            if parameter.is_empty() || parameter.contains(['{', '}']) {
                return Err(wrong(format!("{text:?}: expected a name in braces")));
            }
            if names.contains(&parameter) {
                return Err(wrong(format!("{parameter:?} appears twice")));
            }
            names.push(parameter);
            segments.push(match parameter == name {
                true => Segment::Meant,
                false => Segment::Other,
            });
        }
        if !names.contains(&name) {
            return Err(wrong(format!("expected a parameter {{{name}}}")));
        }
        Ok(Self {
            segments: segments.into(),
            rest,
        })
    }

    /// The parameter's value in a path that fits, without percent signs: or one user
    /// would have many keys.
    pub(crate) fn find<'r>(&self, path: &'r str) -> Option<Value<'r>> {
        let mut found = None;
        let mut left = Some(path.strip_prefix('/')?);
        for (index, segment) in self.segments.iter().enumerate() {
            let text = left?;
            let takes_rest = self.rest && index + 1 == self.segments.len();
            let (text, after) = match text.split_once('/').filter(|_| !takes_rest) {
                Some((text, after)) => (text, Some(after)),
                None => (text, None),
            };
            left = after;
            match segment {
                Segment::Literal(literal) if **literal == *text => {}
                Segment::Literal(_) => return None,
                Segment::Other | Segment::Meant if text.is_empty() => return None,
                Segment::Other => {}
                Segment::Meant => found = Some(text),
            }
        }
        let found = found.filter(|_| left.is_none())?;
        if !found.contains('%') {
            return Some(Value::Borrowed(found.as_bytes()));
        }
        let decoded: SmallVec<_> = percent_decode(found.as_bytes()).collect();
        Some(Value::Made(decoded))
    }
}
