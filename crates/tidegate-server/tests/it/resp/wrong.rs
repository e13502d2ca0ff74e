//! Commands that are wrong: the error names the argument and what was expected, and the
//! connection goes on.

use super::{Reply, Served, command};

#[test]
fn wrong_command_gets_an_error_and_the_connection_goes_on() {
    let served = Served::start(
        "[[policies]]\nname = \"p\"\nlimit = \"10r/s\"\n\
         [[policies]]\nname = \"two\"\n\
         [[policies.levels]]\nname = \"a\"\nkey = \"{a}\"\nlimit = \"10r/s\"\n\
         [[policies.levels]]\nname = \"b\"\nkey = \"{a}:{b}\"\nlimit = \"5r/s\"\n",
    );
    let table = [
        ("nope", "ERR unknown command \"nope\""),
        ("GET a", "ERR unknown command \"GET\""),
        ("MULTI", "transactions"),
        (
            "CL.THROTTLE",
            "expected CL.THROTTLE key max_burst count period [quantity]",
        ),
        (
            "CL.THROTTLE a 1 1",
            "wrong number of arguments for 'CL.THROTTLE'",
        ),
        ("CL.THROTTLE a 1 1 1 1 1", "wrong number of arguments"),
        (
            "CL.THROTTLE a x 1 1",
            "max_burst: \"x\": expected a whole number from 0 to 4294967294",
        ),
        ("CL.THROTTLE a -1 1 1", "max_burst: \"-1\""),
        ("CL.THROTTLE a 1.5 1 1", "max_burst: \"1.5\""),
        ("CL.THROTTLE a 4294967295 1 1", "max_burst: \"4294967295\""),
        ("CL.THROTTLE a 99999999999999999999 1 1", "max_burst"),
        (
            "CL.THROTTLE a 1 0 1",
            "count: \"0\": expected a whole number from 1 to 4294967295",
        ),
        ("CL.THROTTLE a 1 4294967296 1", "count: \"4294967296\""),
        (
            "CL.THROTTLE a 1 4294967295 1",
            "count: 4294967295: expected at most one request per nanosecond",
        ),
        (
            "CL.THROTTLE a 1 1 0",
            "period: \"0\": expected seconds from 1 to 31622400",
        ),
        ("CL.THROTTLE a 1 1 1.5", "period: \"1.5\""),
        ("CL.THROTTLE a 1 1 31622401", "period: \"31622401\""),
        (
            "CL.THROTTLE a 1000 1 31622400",
            "more than 100 years to refill",
        ),
        (
            "CL.THROTTLE a 1 1 1 -1",
            "quantity: \"-1\": expected a whole number from 0",
        ),
        ("CL.THROTTLE a 1 1 1 4294967296", "quantity: \"4294967296\""),
        ("CL.THROTTLE a 1 1 1 x", "quantity: \"x\""),
        (
            "THROTTLE a 0 1 1",
            "max_burst: \"0\": expected a whole number from 1 to 4294967295",
        ),
        ("THROTTLE a 1 1", "wrong number of arguments for 'THROTTLE'"),
        (
            "GCRA a 1 1 0.0001",
            "period: \"0.0001\": expected seconds from 0.001",
        ),
        ("GCRA a 1 1 1 1", "wrong number of arguments for 'GCRA'"),
        (
            "GCRA a 1 1 1 COST 1",
            "\"COST\": expected NUM_REQUESTS or TOKENS",
        ),
        ("GCRA a 1 1 1 TOKENS x", "quantity: \"x\""),
        ("TG.CHECK", "wrong number of arguments for 'TG.CHECK'"),
        ("TG.CHECK p", "wrong number of arguments"),
        ("TG.CHECK p a", "\"a\": expected COST, PEEK, KEY or ATTR"),
        ("TG.CHECK p KEY", "wrong number of arguments"),
        ("TG.CHECK p KEY a b", "wrong number of arguments"),
        (
            "TG.CHECK p COST 0 KEY a",
            "COST: \"0\": expected a whole number from 1 to 4294967295",
        ),
        ("TG.CHECK p COST", "wrong number of arguments"),
        ("TG.CHECK p ATTR key", "wrong number of arguments"),
        ("TG.CHECK p ATTR", "ATTR: 0 pairs: expected 1 to 64"),
        (
            "TG.CHECK p ATTR key a key b",
            "ATTR: \"key\" twice: expected it once",
        ),
        ("TG.CHECK p ATTR ip a", "the attribute \"key\" is missing"),
        ("TG.CHECK two KEY a", "the attribute \"a\" is missing"),
        ("TG.CHECK two ATTR a 1", "the attribute \"b\" is missing"),
        ("TG.CHECK nope KEY a", "NOPOLICY no policy"),
        ("TG.CHECK adhoc KEY a", "NOPOLICY no policy"),
        (
            "TG.RESET p KEY a",
            "NOPERM TG.RESET changes state: set admin_token",
        ),
        ("TG.REFUND x", "NOPERM TG.REFUND"),
        ("TG.POLICIES x", "wrong number of arguments"),
        ("SELECT 1", "SELECT: \"1\": expected 0"),
        ("SELECT", "wrong number of arguments"),
        ("ECHO", "wrong number of arguments"),
        ("PING a b", "wrong number of arguments"),
        (
            "HELLO 4",
            "NOPROTO unsupported protocol version \"4\": expected 2 or 3",
        ),
        ("HELLO 3 NOPE", "HELLO: \"NOPE\": expected AUTH"),
        ("CLIENT", "wrong number of arguments"),
        ("CLIENT REPLY OFF", "CLIENT: \"REPLY\""),
        ("CLIENT KILL x", "CLIENT: \"KILL\""),
        ("COMMAND NOPE", "COMMAND: \"NOPE\""),
        ("CONFIG SET a b", "wrong number of arguments for 'CONFIG'"),
        ("AUTH", "wrong number of arguments"),
        ("AUTH x", "no resp_token is set"),
        ("AUTH admin x", "WRONGPASS"),
    ];
    let mut client = served.connect();
    for (words, expected) in table {
        let reply = client.ask(words);
        assert!(reply.error().contains(expected), "{words}: {reply:?}");
        assert_eq!(client.ask("PING"), Reply::Simple("PONG".into()), "{words}");
    }
    // Bytes that are no text, and more of them than an error may repeat.
    for name in [&[0xff, 0][..], &[b'x'; 5_000]] {
        for words in [
            command(&[name]),
            command(&[b"TG.CHECK", name, b"KEY", b"a"]),
            command(&[b"TG.CHECK", b"p", name]),
            command(&[b"CL.THROTTLE", b"a", name, b"1", b"1"]),
            command(&[b"SELECT", name]),
        ] {
            client.send(&words);
            let reply = client.reply();
            assert!(reply.error().len() < 400, "{reply:?}");
        }
    }
    // Any bytes are a key, though.
    client.send(&command(&[b"CL.THROTTLE", &[0xff, 0], b"1", b"1", b"60"]));
    assert_eq!(client.reply().numbers(), [0, 2, 1, -1, 60]);
    client.send(&command(&[b"TG.CHECK", b"p", b"KEY", &[0xff, 0]]));
    assert_eq!(client.reply().get("remaining"), &Reply::Number(9));
}

#[test]
fn policy_adhoc_must_be_one_that_calls_can_use() {
    let table = [
        ("shadow = true", "has shadow = true"),
        ("count_denied = true", "count_denied"),
        ("key = \"{ip}\"", "a key other than {key}"),
        ("algorithm = \"fixed_window\"", "an algorithm"),
        ("enabled = false", "not enabled"),
    ];
    for (field, expected) in table {
        let config = format!("[[policies]]\nname = \"adhoc\"\nlimit = \"10r/s\"\n{field}\n");
        let start = crate::process::Start::new(&config);
        let start = start.argument("--resp").argument("127.0.0.1:0");
        let (code, _, error) = start.fail();
        assert_eq!(code, 2, "{error}");
        assert!(
            error.contains("policy \"adhoc\"") && error.contains(expected),
            "{error}"
        );
        // Without the protocol, it is a policy like any other.
        drop(crate::process::Tidegate::start(&config));
    }
}
