//! Any bytes are commands, the beginning of one, or a protocol error that stays short; and
//! whether they arrive at once or in two pieces, the replies are the same.

#![no_main]

use std::cell::RefCell;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use libfuzzer_sys::fuzz_target;
use tidegate_server::cli::Addresses;
use tidegate_server::engine::Engine;
use tidegate_server::resp::frame::{self, Arguments, MAX_COMMAND, Next};
use tidegate_server::resp::{Pass, Session};
use tidegate_server::settings::{Listen, Settings};

thread_local! {
    static ENGINE: RefCell<Option<Arc<Engine>>> = const { RefCell::new(None) };
}

fuzz_target!(|bytes: &[u8]| {
    frames(bytes);
    let whole = replies(&[bytes]);
    // An error is one line, and repeats little of what was sent.
    for line in whole.split(|byte| *byte == b'\n').filter(|line| line.starts_with(b"-")) {
        assert!(line.len() < 800, "{}", line.escape_ascii());
    }
    let cut = bytes.first().map_or(0, |byte| usize::from(*byte) % bytes.len());
    let (first, second) = bytes.split_at(cut);
    let pieces = replies(&[first, second]);
    // Decisions differ from run to run, but not how many replies there are.
    assert_eq!(count(&whole), count(&pieces), "{}", bytes.escape_ascii());
});

/// How many replies these bytes are, all of them whole.
fn count(mut replies: &[u8]) -> usize {
    let mut count = 0;
    while !replies.is_empty() {
        replies = after(replies);
        count += 1;
    }
    count
}

/// What follows the first reply.
fn after(replies: &[u8]) -> &[u8] {
    let end = replies.windows(2).position(|two| two == b"\r\n").expect("a line");
    let (line, rest) = (&replies[..end], &replies[end + 2..]);
    let number = || -> i64 {
        let text = std::str::from_utf8(&line[1..]).expect("text");
        text.parse().expect("a length")
    };
    match line[0] {
        b'$' if number() < 0 => rest,
        b'$' => {
            let (bulk, rest) = rest.split_at(usize::try_from(number()).expect("a length") + 2);
            assert!(bulk.ends_with(b"\r\n"));
            rest
        }
        b'*' => (0..number()).fold(rest, |rest, _| after(rest)),
        b'%' => (0..2 * number()).fold(rest, |rest, _| after(rest)),
        b'+' | b'-' | b':' | b'_' | b'#' | b',' => rest,
        other => panic!("{other} begins no reply"),
    }
}

/// Commands lie one behind the other, and their arguments within them.
fn frames(bytes: &[u8]) {
    let (mut rest, mut arguments) = (bytes, Arguments::new());
    while let Ok(next) = frame::next(rest, &mut arguments) {
        let length = match next {
            Next::Command(length) => length,
            Next::Line(length) => {
                drop(frame::words(&rest[..length]));
                length
            }
            Next::Partial => return,
        };
        assert!(0 < length && length <= rest.len().min(MAX_COMMAND));
        let inside = rest[..length].as_ptr_range();
        for argument in &arguments {
            let range = argument.as_ptr_range();
            assert!(inside.start <= range.start && range.end <= inside.end);
        }
        rest = &rest[length..];
    }
}

/// The replies to these pieces, as a connection would send them.
fn replies(pieces: &[&[u8]]) -> Vec<u8> {
    let mut pass = Pass::new(engine(), Session::new(1));
    let mut rest = Vec::new();
    for piece in pieces {
        rest.extend_from_slice(piece);
        loop {
            let (used, has_more) = now(pass.run(&rest, || ()));
            rest.drain(..used);
            if pass.is_over() || !has_more {
                break;
            }
        }
        if pass.is_over() {
            break;
        }
    }
    pass.replies().to_vec()
}

/// Counts in memory are decided without waiting.
fn now<F: Future>(future: F) -> F::Output {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("nothing has to be waited for"),
    }
}

fn engine() -> Arc<Engine> {
    ENGINE.with_borrow_mut(|engine| {
        let make = || {
            let resp = vec!["127.0.0.1:0".parse().expect("an address")];
            let addresses = Addresses {
                resp,
                ..Addresses::default()
            };
            let listen = Listen {
                addresses,
                ..Listen::default()
            };
            let loaded = Settings::listening(listen).load().expect("the default config");
            Arc::new(Engine::new(loaded).expect("the default policy"))
        };
        Arc::clone(engine.get_or_insert_with(make))
    })
}
