//! The config file: what is read, what is refused, what is printed.
