//! A policy before validation: its fields as written in a file.
//!
//! This is for programs that read policies from text. They fill in a
//! [`PolicyBuilder`](crate::PolicyBuilder), build it, and report each [`Problem`] where its
//! field stands. `tidegate-config` does that for `tidegate.toml`.
//!
//! ```
//! use tidegate::PolicyBuilder;
//! use tidegate::draft::{LevelDraft, LimitFields, Place};
//!
//! let draft = PolicyBuilder {
//!     name: "login".into(),
//!     only: LevelDraft {
//!         key: Some("{ip".into()),
//!         limit: LimitFields { rate: Some("5r/m".parse()?), ..LimitFields::default() },
//!         ..LevelDraft::default()
//!     },
//!     ..PolicyBuilder::default()
//! };
//! let error = draft.build().expect_err("a brace is missing");
//! let problem = &error.problems()[0];
//! assert_eq!((problem.place, problem.field), (Place::Level(0), "key"));
//! # Ok::<(), tidegate::ParseError>(())
//! ```

pub use crate::policy::{LevelDraft, LimitFields, Place, Problem, Settings};
