//! The config file: what is read, what is refused, what is printed. The section
//! `[server]` has its tests in `tidegate-server`.

mod files;
mod properties;
mod random;
mod sizes;
