//! A user-defined script instead of an algorithm: `algorithm = "script"`.
//!
//! Here it is only data. Redis runs it, in one atomic call per check: KEYS are the keys of
//! the policy's levels, ARGV are the policy's `args`, one of which may be replaced by the
//! cost. It returns
//! `["allow" | "deny" | "block", [header values], ...]`.

/// A script and its arguments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CustomScript {
    source: ScriptSource,
    arguments: Box<[Box<str>]>,
}

/// Where the text of a script is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ScriptSource {
    /// In a file; a relative path is relative to the config file.
    File(Box<str>),
    /// The text itself.
    Text(Box<str>),
}

/// What a script returned beyond its verdict.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ScriptAnswer {
    /// Header fields, by name.
    pub headers: Vec<(String, String)>,
    /// What came after the header values.
    pub rest: Vec<String>,
}

impl CustomScript {
    /// The argument that is replaced by the cost of a check.
    pub const COST: &str = "{cost}";

    /// The maximum number of arguments.
    pub(crate) const MAX_ARGUMENTS: usize = 64;

    /// A script in a file.
    pub fn file(path: impl Into<Box<str>>) -> Self {
        Self::new(ScriptSource::File(path.into()))
    }

    /// A script in the program.
    pub fn text(lua: impl Into<Box<str>>) -> Self {
        Self::new(ScriptSource::Text(lua.into()))
    }

    fn new(source: ScriptSource) -> Self {
        Self {
            source,
            arguments: Box::default(),
        }
    }

    /// The arguments, passed as ARGV. The argument `{cost}` is replaced by the cost of the
    /// check; without it, only checks of cost 1 are accepted.
    #[must_use]
    pub fn args<A: Into<Box<str>>>(mut self, arguments: impl IntoIterator<Item = A>) -> Self {
        self.arguments = arguments.into_iter().map(Into::into).collect();
        self
    }

    /// Where its text is.
    pub fn source(&self) -> &ScriptSource {
        &self.source
    }

    /// The arguments.
    pub fn arguments(&self) -> impl ExactSizeIterator<Item = &str> {
        self.arguments.iter().map(|argument| &**argument)
    }

    /// Whether one of the arguments is the cost.
    pub fn takes_the_cost(&self) -> bool {
        self.arguments().any(|argument| argument == Self::COST)
    }

    /// What is wrong with it, by field.
    pub(crate) fn problems(&self) -> impl Iterator<Item = (&'static str, String)> {
        let (text, what) = match &self.source {
            ScriptSource::File(path) => (path, "the path of a script"),
            ScriptSource::Text(text) => (text, "the text of a script"),
        };
        let missing = text
            .is_empty()
            .then(|| ("script", format!("\"\": expected {what}")));
        let (count, most) = (self.arguments.len(), Self::MAX_ARGUMENTS);
        let many = format!("{count} of them: expected at most {most}");
        let many = (count > most).then_some(("args", many));
        missing.into_iter().chain(many)
    }
}
