//! A fleet in a box: nodes of each mode that ask one store over a bad network.
//!
//! The nodes drive the same state machines that production drives: [`Refusals`] in the mode
//! `exact`, [`Key`] in the mode `lease`, [`Table`] and [`Sender`] in the mode `background`.
//! The store decides by the arithmetic that the conformance tests hold equal to the scripts
//! ([`kept`]). The [world](tidegate_testkit::simulation) makes up everything else from a
//! seed. A run that fails prints its seed and its setting.
//!
//! [`Refusals`]: crate::mode::refusals::Refusals
//! [`Key`]: crate::mode::lease::key::Key
//! [`Table`]: crate::mode::background::Table
//! [`Sender`]: crate::mode::background::Sender
//! [`kept`]: crate::mode::lease::kept

mod background;
mod explorer;
mod fleet;
mod judge;
mod lease;
mod scale;
mod tests;
