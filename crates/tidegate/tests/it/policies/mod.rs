//! Policies over the in-memory store.
