//! An axum application with limits per address, per token, and in two levels, counted in
//! memory or, with `--redis URL`, in Redis. `--try` sends it a few requests, prints the
//! answers and exits:
//!
//! `cargo run --release -p tidegate-tower --example axum -- --try`

#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "an example prints its results"
)]

mod app;

use std::error::Error;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const HELP: &str = "usage: axum [--redis URL] [--listen ADDRESS | --try]";

/// The parsed command line.
struct Options {
    redis: Option<String>,
    listen: String,
    try_it: bool,
}

#[tokio::main]
async fn main() -> ExitCode {
    let Some(options) = Options::read(std::env::args().skip(1)) else {
        eprintln!("{HELP}");
        return ExitCode::from(2);
    };
    match run(options).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

impl Options {
    fn read(mut arguments: impl Iterator<Item = String>) -> Option<Self> {
        let mut options = Self {
            redis: None,
            listen: "127.0.0.1:3000".into(),
            try_it: false,
        };
        while let Some(argument) = arguments.next() {
            match argument.as_str() {
                "--redis" => options.redis = Some(arguments.next()?),
                "--listen" => options.listen = arguments.next()?,
                "--try" => {
                    options.try_it = true;
                    options.listen = "127.0.0.1:0".into();
                }
                _ => return None,
            }
        }
        Some(options)
    }
}

async fn run(options: Options) -> Result<(), Box<dyn Error>> {
    // `--try` shows what Redis decides, so it waits for a Redis that is slow.
    let deadline = Duration::from_secs(if options.try_it { 20 } else { 1 });
    let store = app::store(options.redis.as_deref(), deadline)?;
    let router = app::router(&store)?;
    let listener = TcpListener::bind(&options.listen).await?;
    let address = listener.local_addr()?;
    println!("listening on http://{address}");
    // The layer identifies clients by the address of their connection.
    let service = router.into_make_service_with_connect_info::<SocketAddr>();
    let server = axum::serve(listener, service);
    if options.try_it {
        tokio::spawn(async move { server.await });
        return show(address).await;
    }
    Ok(server.await?)
}

/// Sends a few requests of each kind and prints their statuses.
async fn show(address: SocketAddr) -> Result<(), Box<dyn Error>> {
    for (what, path, token, requests) in [
        ("5 per minute per address", "/", None, 8),
        ("3 per minute per token", "/items", Some("alice"), 5),
        ("another token", "/items", Some("bob"), 1),
        ("no token", "/items", None, 1),
        (
            "reports: 2 per minute per token",
            "/reports/1",
            Some("alice"),
            3,
        ),
        (
            "reports: 4 per minute in total",
            "/reports/1",
            Some("bob"),
            3,
        ),
        ("the total is used up", "/reports/1", Some("carol"), 1),
        ("no limit", "/health", None, 8),
    ] {
        let mut statuses = Vec::new();
        for _ in 0..requests {
            statuses.push(status(address, path, token).await?);
        }
        println!("{what:<34} GET {path:<12} {}", statuses.join(" "));
    }
    Ok(())
}

/// The status of one request.
async fn status(
    address: SocketAddr,
    path: &str,
    token: Option<&str>,
) -> Result<String, Box<dyn Error>> {
    let token = token.map(|token| format!("authorization: Bearer {token}\r\n"));
    let token = token.unwrap_or_default();
    let request =
        format!("GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n{token}\r\n");
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    let status = answer.split(' ').nth(1).ok_or("no answer")?;
    Ok(status.to_owned())
}
