//! A policy before validation: its fields as written in a file.
//!
//! This is for programs that read policies from text. They fill in a [`Draft`], build
//! it, and report each [`Problem`] where its field stands. `tidegate-config` does that
//! for `tidegate.toml`. In code, [`Policy::builder`](crate::Policy::builder) is shorter;
//! both end in the same checks.
//!
//! ```
//! use tidegate::draft::{Draft, LevelDraft, LimitFields, Place};
//!
//! let draft = Draft {
//!     name: "login".into(),
//!     only: LevelDraft {
//!         key: Some("{ip".into()),
//!         limit: LimitFields { rate: Some("5r/m".parse()?), ..LimitFields::default() },
//!         ..LevelDraft::default()
//!     },
//!     ..Draft::default()
//! };
//! let error = draft.build().expect_err("a brace is missing");
//! let problem = &error.problems()[0];
//! assert_eq!((problem.place, problem.field), (Place::Level(0), "key"));
//! # Ok::<(), tidegate::ParseError>(())
//! ```

pub use crate::policy::{Draft, LevelDraft, LimitFields, OverrideDraft, Place, Problem, Settings};
