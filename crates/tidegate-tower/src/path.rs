//! Templates of paths, such as `/users/{id}`, for keys made of a part of a path.

use matchit::Router;
use percent_encoding::percent_decode;

use crate::error::LayerError;
use crate::value::Value;

/// A template of paths, and which of its parameters is meant.
#[derive(Debug, Clone)]
pub(crate) struct PathParameter {
    template: Router<()>,
    name: Box<str>,
}

impl PathParameter {
    pub(crate) fn parse(path: &str, name: &str) -> Result<Self, LayerError> {
        let template = template(path, name).map_err(|problem| LayerError::Path {
            path: path.to_owned(),
            problem,
        })?;
        let name = name.into();
        Ok(Self { template, name })
    }

    /// The parameter's value in a path that fits, without percent signs: or one user
    /// would have many keys.
    pub(crate) fn find<'r>(&self, path: &'r str) -> Option<Value<'r>> {
        let parameters = self.template.at(path).ok()?.params;
        if parameters.iter().any(|(_, value)| value.is_empty()) {
            return None;
        }
        let found = parameters.get(&self.name)?;
        Some(match found.contains('%') {
            true => Value::Made(percent_decode(found.as_bytes()).collect()),
            false => Value::Borrowed(found.as_bytes()),
        })
    }
}

/// A path with a parameter of this name, or what is wrong with it.
fn template(path: &str, name: &str) -> Result<Router<()>, String> {
    if !path.starts_with('/') {
        return Err("expected it to begin with a slash".into());
    }
    let mut names = Vec::new();
    for segment in path.split('/').filter(|it| it.contains(['{', '}'])) {
        let inside = segment
            .strip_prefix('{')
            .and_then(|it| it.strip_suffix('}'));
        let Some(inside) = inside else {
            return Err(format!(
                "{segment:?}: expected braces around a whole segment"
            ));
        };
        let rest = inside.strip_prefix('*');
        if rest.is_some() && !path.ends_with(segment) {
            return Err(format!("expected nothing after {segment:?}"));
        }
        match rest.unwrap_or(inside) {
            "" => return Err(format!("{segment:?}: expected a name in braces")),
            other if names.contains(&other) => return Err(format!("{other:?} appears twice")),
            other => names.push(other),
        }
    }
    if !names.contains(&name) {
        return Err(format!("expected a parameter {{{name}}}"));
    }
    let mut template = Router::new();
    let inserted = template.insert(path, ());
    inserted
        .map_err(|error| error.to_string())
        .map(|()| template)
}
