//! Whether a server may evict limits that are in use.
//!
//! This uses `INFO memory` and not `CONFIG GET`, which also reveals passwords and is
//! therefore denied to most users. Without a `maxmemory`, nothing is ever evicted, so the
//! policy does not matter.

/// What is wrong with how the server keeps its memory; `None` when nothing is, or when
/// it does not say.
pub(crate) fn warning(info: &str) -> Option<String> {
    let field = |name: &str| {
        let lines = info.lines();
        let values = lines.filter_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        values.map(str::trim).next()
    };
    let (bytes, policy) = (field("maxmemory")?, field("maxmemory_policy")?);
    if bytes == "0" || policy == "noeviction" {
        return None;
    }
    // It is a word of the server's, and goes into a line of ours.
    let policy = policy.escape_debug();
    Some(format!(
        "maxmemory-policy is {policy}: a full server evicts limits that are in use, and refused clients get their full quota back; expected noeviction"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_server_that_can_throw_out_is_warned_about() {
        for (info, warned) in [
            ("maxmemory:100\r\nmaxmemory_policy:allkeys-lru\r\n", true),
            ("maxmemory:100\r\nmaxmemory_policy:volatile-ttl\r\n", true),
            ("maxmemory:100\r\nmaxmemory_policy:noeviction\r\n", false),
            ("maxmemory:0\r\nmaxmemory_policy:allkeys-lru\r\n", false),
            ("maxmemory_human:0B\r\nmaxmemory:100\r\n", false),
            ("maxmemory_policy:allkeys-lru\r\n", false),
            ("", false),
        ] {
            assert_eq!(warning(info).is_some(), warned, "{info:?}");
        }
    }
}
