//! A door of its own, added to the server in a few lines: each line `policy key` is
//! answered with `yes REMAINING` or `no WAIT`. It shows all that a protocol has to
//! do: read, say when it is busy, ask the engine, answer, and end when told to.

use std::io::{BufRead, BufReader as LineReader, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use tidegate::Cost;
use tidegate_server::engine::Engine;
use tidegate_server::section::Address;
use tidegate_server::serve::{self, Connection, Listener, Protocol, Room, Serving, Stream};
use tidegate_server::settings::Settings;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};

struct Lines(Arc<Engine>);

impl Protocol for Lines {
    fn serve(&self, stream: Stream, connection: Arc<Connection>) -> Serving {
        let engine = Arc::clone(&self.0);
        Box::pin(async move {
            let (reader, mut writer) = tokio::io::split(stream);
            let mut lines = BufReader::new(reader).lines();
            loop {
                let line = tokio::select! {
                    line = lines.next_line() => line,
                    () = connection.ending() => break,
                };
                let Ok(Some(line)) = line else {
                    break;
                };
                let _busy = connection.busy();
                let answer = answer(&engine, &line).await;
                if writer.write_all(answer.as_bytes()).await.is_err() {
                    break;
                }
            }
        })
    }
}

async fn answer(engine: &Engine, line: &str) -> String {
    let (policy, key) = line.split_once(' ').unwrap_or((line, ""));
    let current = engine.current();
    match engine
        .decide(&current, policy, &[("key", key)], Cost::ONE)
        .await
    {
        Err(error) => format!("error {error}\n"),
        Ok(decided) => match decided.decision.retry_after() {
            Some(Duration::ZERO) => format!("yes {}\n", decided.decision.remaining()),
            wait => format!("no {:?}\n", wait),
        },
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn front_end_takes_less_than_a_hundred_lines() {
    assert!(include_str!("front_end.rs").lines().count() < 100);
    let loaded = Settings::default().load();
    let engine = Engine::new(loaded.expect("the default config"));
    let engine = Arc::new(engine.expect("the default policy"));
    let address = Address::Tcp("127.0.0.1:0".into());
    let (door, room) = (Arc::new(Lines(Arc::clone(&engine))), Room::new(100, 0));
    let listener = Listener::open(&address, "--lines", door, Arc::new(|| None), room).await;
    let listener = listener.expect("a free port");
    let address = listener.address().expect("a TCP address");
    let signals = serve::Signals::new().expect("signals");
    tokio::spawn(serve::run(Arc::clone(&engine), vec![listener], signals));
    let asked = tokio::task::spawn_blocking(move || {
        let mut stream = TcpStream::connect(address).expect("a listener");
        stream
            .write_all(b"default k\n".repeat(11).as_slice())
            .expect("a reader");
        stream.write_all(b"nope k\n").expect("a reader");
        let answers = LineReader::new(stream).lines().take(12);
        answers
            .map(|line| line.expect("a line"))
            .collect::<Vec<_>>()
    });
    let answers = asked.await.expect("twelve answers");
    assert_eq!(answers[..2], ["yes 9", "yes 8"]);
    assert!(answers[10].starts_with("no "), "{answers:?}");
    assert!(answers[11].starts_with("error no policy"), "{answers:?}");
}
