//! Commands that clients send when they connect, and that people type to inspect a server.

use super::command::{CommandError, Name, unknown, wrong_count};
use super::frame::Arguments;
use super::reply::{Replies, Version};
use super::session::Session;
use super::text::{number, shown};
use crate::engine::Current;

/// Clients look at a server's version to know what it can do.
const REDIS_VERSION: &str = "7.4.0";

/// The longest name of a client.
const MAX_NAME: usize = 64;

/// All commands: name, number of arguments as Redis counts them (at least so many where
/// negative), and whether the first argument is a key.
const COMMANDS: [(&str, i64, bool); 18] = [
    ("cl.throttle", -5, true),
    ("throttle", -5, true),
    ("gcra", -5, true),
    ("tg.check", -4, false),
    ("tg.reset", -4, false),
    ("tg.refund", 2, false),
    ("tg.policies", 1, false),
    ("ping", -1, false),
    ("echo", 2, false),
    ("hello", -1, false),
    ("auth", -2, false),
    ("select", 2, false),
    ("client", -2, false),
    ("command", -1, false),
    ("info", -1, false),
    ("config", -2, false),
    ("quit", -1, false),
    ("reset", 1, false),
];

/// Answers a command by its name in capitals.
pub(super) fn answer(
    current: &Current,
    session: &mut Session,
    replies: &mut Replies,
    name: Name,
    arguments: &Arguments<'_>,
) {
    let answered = match &name[..] {
        b"PING" => ping(replies, arguments),
        b"ECHO" => echo(replies, arguments),
        b"HELLO" => hello(current, session, replies, arguments),
        b"AUTH" => auth(current, session, replies, arguments),
        b"SELECT" => select(replies, arguments),
        b"CLIENT" => client(session, replies, arguments),
        b"COMMAND" => command(replies, arguments),
        b"INFO" => {
            replies.bulk(information());
            Ok(())
        }
        b"CONFIG" => config(replies, arguments),
        b"QUIT" => {
            replies.ok();
            session.is_over = true;
            Ok(())
        }
        b"RESET" => {
            session.reset(replies);
            replies.simple("RESET");
            Ok(())
        }
        _ => Err(unknown(arguments[0])),
    };
    if let Err(error) = answered {
        replies.error(error.code, error.message);
    }
}

fn ping(replies: &mut Replies, arguments: &Arguments<'_>) -> Result<(), CommandError> {
    match arguments[1..] {
        [] => replies.simple("PONG"),
        [message] => replies.bulk(message),
        _ => return Err(wrong_count("PING", "[message]")),
    }
    Ok(())
}

fn echo(replies: &mut Replies, arguments: &Arguments<'_>) -> Result<(), CommandError> {
    match arguments[1..] {
        [message] => replies.bulk(message),
        _ => return Err(wrong_count("ECHO", "message")),
    }
    Ok(())
}

fn auth(
    current: &Current,
    session: &mut Session,
    replies: &mut Replies,
    arguments: &Arguments<'_>,
) -> Result<(), CommandError> {
    match arguments[1..] {
        [token] => session.authenticate(current, None, token)?,
        [user, token] => session.authenticate(current, Some(user), token)?,
        _ => return Err(wrong_count("AUTH", "[username] token")),
    }
    replies.ok();
    Ok(())
}

fn hello(
    current: &Current,
    session: &mut Session,
    replies: &mut Replies,
    arguments: &Arguments<'_>,
) -> Result<(), CommandError> {
    let mut rest = &arguments[1..];
    let mut version = replies.version;
    if let [text, after @ ..] = rest {
        version = match number(text) {
            Some(2) => Version::Two,
            Some(3) => Version::Three,
            _ => {
                let message = format!(
                    "unsupported protocol version {}: expected 2 or 3",
                    shown(text)
                );
                return Err(CommandError::new("NOPROTO", message));
            }
        };
        rest = after;
    }
    let mut name = None;
    loop {
        rest = match rest {
            [] => break,
            [word, user, token, after @ ..] if word.eq_ignore_ascii_case(b"AUTH") => {
                session.authenticate(current, Some(user), token)?;
                after
            }
            [word, text, after @ ..] if word.eq_ignore_ascii_case(b"SETNAME") => {
                name = Some(client_name(text)?);
                after
            }
            [word, ..] => {
                let word = shown(word);
                let message =
                    format!("HELLO: {word}: expected AUTH username token, or SETNAME name");
                return Err(message.into());
            }
        };
    }
    if !session.may_ask(current) {
        let message = "HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH <user> <pass> option can be used to authenticate the client and select the RESP protocol version at the same time";
        return Err(CommandError::new("NOAUTH", message));
    }
    if let Some(name) = name {
        session.name = name;
    }
    replies.version = version;
    replies.map(7);
    replies.bulk("server");
    replies.bulk("tidegate");
    replies.bulk("version");
    replies.bulk(REDIS_VERSION);
    replies.bulk("proto");
    replies.number(match version {
        Version::Two => 2,
        Version::Three => 3,
    });
    replies.bulk("id");
    replies.number(session.id);
    replies.bulk("mode");
    replies.bulk("standalone");
    replies.bulk("role");
    replies.bulk("master");
    replies.bulk("modules");
    replies.array(0);
    Ok(())
}

fn select(replies: &mut Replies, arguments: &Arguments<'_>) -> Result<(), CommandError> {
    match arguments[1..] {
        [b"0"] => replies.ok(),
        [index] => {
            return Err(format!("SELECT: {}: expected 0, the only database", shown(index)).into());
        }
        _ => return Err(wrong_count("SELECT", "0")),
    }
    Ok(())
}

fn client(
    session: &mut Session,
    replies: &mut Replies,
    arguments: &Arguments<'_>,
) -> Result<(), CommandError> {
    let Some(word) = arguments.get(1) else {
        return Err(wrong_count("CLIENT", "subcommand [argument ...]"));
    };
    match (word.to_ascii_uppercase().as_slice(), &arguments[2..]) {
        (b"SETNAME", [name]) => {
            session.name = client_name(name)?;
            replies.ok();
        }
        (b"GETNAME", []) if session.name.is_empty() => replies.null(),
        (b"GETNAME", []) => replies.bulk(&session.name),
        (b"ID", []) => replies.number(session.id),
        (b"INFO", []) => {
            let (id, name) = (session.id, String::from_utf8_lossy(&session.name));
            replies.bulk(format!("id={id} name={name} db=0\n"));
        }
        (b"SETINFO", [_, _]) | (b"NO-EVICT" | b"NO-TOUCH", [_]) => replies.ok(),
        (b"REPLY", [on]) if on.eq_ignore_ascii_case(b"ON") => replies.ok(),
        (b"TRACKING", [off]) if off.eq_ignore_ascii_case(b"OFF") => replies.ok(),
        _ => {
            let word = shown(word);
            return Err(format!("CLIENT: {word}: expected SETNAME, GETNAME, SETINFO, ID, INFO, NO-EVICT, NO-TOUCH, REPLY ON or TRACKING OFF").into());
        }
    }
    Ok(())
}

/// What a client calls itself. The server keeps it as long as the connection.
fn client_name(text: &[u8]) -> Result<Vec<u8>, CommandError> {
    match text.len() <= MAX_NAME {
        true => Ok(text.to_vec()),
        false => Err(format!("SETNAME: expected at most {MAX_NAME} bytes").into()),
    }
}

fn command(replies: &mut Replies, arguments: &Arguments<'_>) -> Result<(), CommandError> {
    let Some(word) = arguments.get(1) else {
        replies.array(COMMANDS.len());
        COMMANDS
            .iter()
            .for_each(|command| describe(replies, command));
        return Ok(());
    };
    match (word.to_ascii_uppercase().as_slice(), &arguments[2..]) {
        (b"COUNT", []) => replies.number(COMMANDS.len() as u64),
        (b"LIST", []) => {
            replies.array(COMMANDS.len());
            COMMANDS.iter().for_each(|(name, ..)| replies.bulk(name));
        }
        (b"DOCS", _) => replies.map(0),
        (b"INFO", names) => {
            replies.array(names.len());
            for name in names {
                let named =
                    |(known, ..): &&(&str, _, _)| name.eq_ignore_ascii_case(known.as_bytes());
                match COMMANDS.iter().find(named) {
                    Some(command) => describe(replies, command),
                    None => replies.null(),
                }
            }
        }
        _ => {
            let word = shown(word);
            return Err(format!("COMMAND: {word}: expected COUNT, LIST, DOCS or INFO").into());
        }
    }
    Ok(())
}

fn describe(replies: &mut Replies, (name, arity, has_key): &(&str, i64, bool)) {
    let key = u64::from(*has_key);
    replies.array(6);
    replies.bulk(name);
    replies
        .bytes
        .extend_from_slice(format!(":{arity}\r\n").as_bytes());
    replies.array(1);
    replies.simple("fast");
    for _ in 0..3 {
        replies.number(key);
    }
}

fn information() -> String {
    let (version, process) = (env!("CARGO_PKG_VERSION"), std::process::id());
    [
        "# Server",
        &format!("redis_version:{REDIS_VERSION}"),
        "redis_mode:standalone",
        &format!("tidegate_version:{version}"),
        &format!("process_id:{process}"),
        "",
        "# Persistence",
        "loading:0",
        "",
        "# Replication",
        "role:master",
        "connected_slaves:0",
        "",
    ]
    .join("\r\n")
}

/// What redis-benchmark and some clients ask for before they begin.
fn config(replies: &mut Replies, arguments: &Arguments<'_>) -> Result<(), CommandError> {
    const KNOWN: [(&str, &str); 3] = [("save", ""), ("appendonly", "no"), ("databases", "1")];
    let wanted = match arguments.get(1) {
        Some(word) if word.eq_ignore_ascii_case(b"GET") && arguments.len() > 2 => &arguments[2..],
        _ => return Err(wrong_count("CONFIG", "GET parameter [parameter ...]")),
    };
    let is_wanted = |(name, _): &&(&str, &str)| {
        let fits = |it: &&[u8]| it.eq_ignore_ascii_case(name.as_bytes()) || *it == b"*";
        wanted.iter().any(fits)
    };
    replies.map(KNOWN.iter().filter(is_wanted).count());
    for (name, value) in KNOWN.iter().filter(is_wanted) {
        replies.bulk(name);
        replies.bulk(value);
    }
    Ok(())
}
