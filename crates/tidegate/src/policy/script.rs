//! A script of the user's own in place of an algorithm: `algorithm = "script"`.
//!
//! Here it is only data. Redis runs it, one atomic call a check: KEYS are the keys of
//! the policy's levels, ARGV the policy's `args`, one of which may stand for the cost.
//! It answers with
//! `["allow" | "deny" | "block", [header values], ...]`.

/// A script, and what it is called with.
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
    /// Here.
    Text(Box<str>),
}

/// What a script has answered beside its verdict.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ScriptAnswer {
    /// Header fields, by name.
    pub headers: Vec<(String, String)>,
    /// What came after the header values.
    pub rest: Vec<String>,
}

impl CustomScript {
    /// The argument that stands for the cost of a check.
    pub const COST: &str = "{cost}";

    /// The most arguments of a script.
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

    /// What it is called with, as its ARGV. An argument that is `{cost}` becomes the cost
    /// of the check; without one, only checks of cost 1 can be asked.
    #[must_use]
    pub fn args<A: Into<Box<str>>>(mut self, arguments: impl IntoIterator<Item = A>) -> Self {
        self.arguments = arguments.into_iter().map(Into::into).collect();
        self
    }

    /// Where its text is.
    #[must_use]
    pub fn source(&self) -> &ScriptSource {
        &self.source
    }

    /// What it is called with.
    pub fn arguments(&self) -> impl ExactSizeIterator<Item = &str> {
        self.arguments.iter().map(|argument| &**argument)
    }

    /// Whether one of them stands for the cost.
    #[must_use]
    pub fn is_told_the_cost(&self) -> bool {
        self.arguments().any(|argument| argument == Self::COST)
    }

    /// What is wrong with it, and the fields to blame.
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
